"""Meta's two runs of Llama 3 405B beside a planner's bill of memory, and the dial that tells two planners apart."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from parlab.arguments import checked, whole
from parlab.pipeline import ScheduleTimeline, interleaved_one_f_one_b, simulate
from parlab.plan import LLAMA_405B, Estimate, Layout, estimate
from parlab.views.engine import marks, theme
from parlab.views.engine.explore import Explorer, steps
from parlab.views.engine.lanes import name_rows
from parlab.views.engine.picture import BOUND, Picture, curve, key, panel, percent, scale, sheet, write
from parlab.views.plan.bills import MEMORY
from parlab.world import DGX_H100

RUN = Layout(pp=16, tp=8, chunks=8, zero=2, sequence_parallel=True)  # of both: Llama team 2024, table 4, section 3.3.2
REPLICAS = {16384: 128, 8192: 64}
STEP: dict[str, Any] = {"batch": 2048, "sequence": 8192}
CARD = 79.6  # GiB that an 80 GB H100 reports: NVIDIA/nccl issue 1264
GIB = 2**30
AXIS = 160  # GiB
MICROBATCHES = STEP["batch"] // REPLICAS[8192]
FULLEST = 1  # the second stage: the first has a layer less
KEPT = curve(theme.RANKS[0], "solid")


def meta_run(gpus: int, **turned: Any) -> Estimate:
    """The planner's bill of Meta's run on 16 384 or 8192 GPUs, with other fields of its layout where they are given."""
    return estimate(LLAMA_405B, DGX_H100, RUN.but(dp=REPLICAS[gpus], **turned), **STEP)


def two_runs(headline: str = "", schedule: str = "looped_bfs") -> Picture:
    """Draw a planner's memory of the fullest GPU in Meta's two runs of table 4 with sequences of 8192 tokens.

    Args:
        headline: above the figure. Empty: both sums.
        schedule: the order that the planner takes Meta's to be.
    """
    found = {gpus: meta_run(gpus, schedule=schedule) for gpus in REPLICAS}
    totals = [e.total_bytes / GIB for e in found.values()]
    said = headline or " and ".join(
        f"{total:.1f} GiB for {_gpus(gpus)}" for gpus, total in zip(found, totals, strict=True)
    )
    figure = sheet([said, *(f"{_gpus(gpus)}: {e.total_bytes / GIB:.1f} GiB" for gpus, e in found.items())], 2.95, said)
    left, top, width = 1.3, 1.15, 7.9
    axes = panel(figure, left, top, width, 1.2)
    name_rows(axes, len(found), [_gpus(gpus) for gpus in found], size=theme.TEXT)
    scale(axes.xaxis, "GiB of the fullest GPU", ends=(0, AXIS), ticks=range(0, AXIS + 1, 40))
    kept = [e.bytes["activations"] / GIB for e in found.values()]
    rest = [total - part for total, part in zip(totals, kept, strict=True)]
    colors = {"activations": MEMORY["activations"], "all else": MEMORY["weights"]}
    marks.stacked(axes, {"activations": kept, "all else": rest}, colors)
    over = [row for row, total in enumerate(totals) if total > CARD]
    spans = [marks.Interval(CARD, totals[row]) for row in over]
    marks.frames(axes, "too large", spans, over, (-0.36, 0.36), theme.ALARM, hatch="///", zorder=5)
    for row, total in enumerate(totals):
        marks.word(axes, 2, row, f"{total:.1f} GiB", gid="sum", weight="bold", size=theme.TEXT)
    axes.axvline(CARD, gid="device", **BOUND)
    write(figure, left + width * CARD / AXIS, top - 0.27, f"the card: {CARD} GiB", theme.TEXT, ha="center")
    key(figure, 0.15, 0.62, colors["activations"], "activations")
    key(figure, 1.35, 0.62, colors["all else"], "weights, gradients and all else")
    return figure


def _gpus(number: int) -> str:
    """`16 384 GPUs`, and `8192 GPUs`, as in the lessons."""
    return f"{number:,} GPUs".replace(",", " " if number > 9999 else "")


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
