"""The dial that tells two planners apart: N microbatches in a row, and the memory of Meta's run on 8192 GPUs."""

from __future__ import annotations

from functools import cache, partial

from parlab.arguments import checked, whole
from parlab.pipeline import ScheduleTimeline, interleaved_one_f_one_b, simulate
from parlab.views.engine import marks, theme
from parlab.views.engine.explore import Explorer, steps
from parlab.views.engine.picture import BOUND, Picture, curve, panel, percent, scale, sheet, write
from parlab.views.plan.bills import MEMORY
from parlab.views.plan.two_runs import AXIS, CARD, FULLEST, GIB, REPLICAS, RUN, STEP, meta_run

MICROBATCHES = STEP["batch"] // REPLICAS[8192]
KEPT = curve(theme.RANKS[0], "solid")


@cache
def _order(group: int) -> ScheduleTimeline:
    """A replica's step on 8192 GPUs, with `group` microbatches in a row: a forward takes 1/24 of its time a chunk."""
    return simulate(interleaved_one_f_one_b(RUN.pp, MICROBATCHES, RUN.chunks, group))


@checked({"microbatches": partial(whole, least=1)})
def dial(microbatches: int = MICROBATCHES) -> Picture:
    """Draw what the fullest stage of Meta's 8192 GPUs keeps during a step, and its bill, with N microbatches in a row.

    The planner's bill of N = 16 holds the activations of as many chunks as the simulated order keeps. Its seconds are
    those of N = 16, times the simulated makespans; messages take no time in these.

    Args:
        microbatches: N, that pass a chunk in a row; from 16 to 32, the last group has the rest.

    Raises:
        ValueError: a number that is not from 16 to 32.

    >>> dial(32).text_shown.splitlines()[0]
    'N = 32: 133.4 GiB, and the step is as short as with 16'
    """
    if not RUN.pp <= microbatches <= MICROBATCHES:
        raise ValueError(f"microbatches={microbatches!r}: must be from {RUN.pp} to {MICROBATCHES}")
    usual, shown = _order(RUN.pp), _order(microbatches)
    found = meta_run(8192)
    activations = found.bytes["activations"] * shown.peak_activations[FULLEST] / usual.peak_activations[FULLEST] / GIB
    rest = (found.total_bytes - found.bytes["activations"]) / GIB
    longer = shown.makespan / usual.makespan - 1
    said = f"N = {microbatches}: {activations + rest:.1f} GiB"
    if microbatches > RUN.pp:
        said += f", and the step is {f'{percent(longer)} longer than' if longer > 0 else 'as short as'} with {RUN.pp}"
    most = max(kept for _, kept in shown.kept(FULLEST)) / RUN.chunks
    figure = sheet([said, f"the fullest stage keeps at most {most:.1f} microbatches of {MICROBATCHES}"], 3.9, said)
    axes = panel(figure, 0.9, 0.75, 8.3, 1.55)
    times, kept = zip(*[(time, chunks / RUN.chunks) for time, chunks in shown.kept(FULLEST)], strict=True)
    axes.step(times, kept, where="post", gid="kept", **KEPT)
    scale(
        axes.xaxis,
        "time of the step",
        ends=(0, _order(MICROBATCHES - 1).makespan),
        ticks=[],
        dashes=False,
        size=theme.SMALL,
    )
    scale(axes.yaxis, "microbatches kept", ends=(0, 36), ticks=(0, 16, 32), size=theme.SMALL)
    held = panel(figure, 0.9, 3.0, 8.3, 0.42)
    scale(held.xaxis, "GiB of the fullest GPU", ends=(0, AXIS), ticks=range(0, AXIS + 1, 40), size=theme.SMALL)
    scale(held.yaxis, ends=(-0.5, 0.5), ticks=[], dashes=False)
    colors = {"activations": MEMORY["activations"], "all else": MEMORY["weights"]}
    marks.stacked(held, {"activations": [activations], "all else": [rest]}, colors)
    marks.word(held, activations / 2, 0, "activations")
    if activations + rest > CARD:
        over = [marks.Interval(CARD, activations + rest)]
        marks.frames(held, "too large", over, [0], (-0.36, 0.36), theme.ALARM, hatch="///", zorder=5)
    held.axvline(CARD, gid="device", **BOUND)
    write(figure, 0.9 + 8.3 * CARD / AXIS, 2.72, f"the card: {CARD} GiB", theme.SMALL, ha="center")
    return figure


def explore_dial() -> Explorer:
    """A slider for `dial`: N, the microbatches that pass a chunk in a row, from all of them down."""
    controls = {"microbatches": steps("N in a row", list(range(RUN.pp, MICROBATCHES + 1)), MICROBATCHES)}
    return Explorer("explore_dial", controls, dial)
