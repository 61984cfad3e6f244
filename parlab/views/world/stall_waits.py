"""How far a stall travels: the lanes of a ring around the rank that stalls, and beside each how long its rank waits."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from parlab.views.engine import marks, theme
from parlab.views.engine.explore import Explorer, choice, steps
from parlab.views.engine.lanes import LEFT, RIGHT, lanes_at, legend_of, ring_around, timeline_of
from parlab.views.engine.picture import Picture, panel, scale, sheet
from parlab.views.world.timeline import WHOLE, draw_computes, draw_waits
from parlab.world import Run, Timeline

TOP, LANE, BESIDE = 1.15, 0.42, 2.6  # inches: above the lanes, of a lane, of the bars beside them
STALLS, MESSAGES = range(1, 33), range(1, 13)  # ms: stalls of each work − message, messages longer than the work


def stall_waits(run: Run | Timeline) -> Picture:
    """Draw a ring in which one rank stalls, that rank in the middle, and how long each of the others waits.

    If the rank stalls once, and the messages are posted ahead and no longer than the work, a rank that is d steps away
    waits for max(0, stall − d · (work − message)). The picture does not say so: it is for the reader to find.

    Args:
        run: what `run` returned, or a timeline: every rank does the same work several times, and one work is longer,
            or each work of one rank.

    Raises:
        ValueError: something else than a run, or a run without work.
    """
    shown = timeline_of(run)
    if not shown.computes:
        raise ValueError(f"run={run!r:.60}: no rank works in it")
    longest = max(shown.computes, key=lambda span: span.end - span.start)
    work = int(median(span.end - span.start for span in shown.computes))
    message = max((one.end - one.start for one in shown.transfers), default=0)
    ranks = ring_around(shown, longest.rank)
    waited = [shown.waited(rank) for rank in ranks]
    many = sum(map(bool, waited))
    says = shown.format
    late = [span for span in shown.computes if span.rank == longest.rank and span.end - span.start > work]
    often = f" in each of {len(late)} works" if len(late) > 1 else ""
    headline = f"Rank {longest.rank} stalls for {says(longest.end - longest.start - work)}{often}: "
    headline += f"{many} rank{'s wait' if many != 1 else ' waits'}; the job takes {says(shown.makespan)}"
    lines = [headline, f"work {says(work)}, message {says(message)}"]
    lines += [f"rank {rank} waits {says(waits)}" for rank, waits in zip(ranks, waited, strict=True)]
    height = LANE * shown.size
    figure = sheet(lines, TOP + height + 0.6, headline)
    whole = _round(shown.makespan)
    axes = lanes_at(figure, shown, whole, TOP, height, ranks=ranks, right=BESIDE + 0.7)
    lane_of = {rank: lane for lane, rank in enumerate(ranks)}
    kinds = draw_computes(axes, shown, lane_of, WHOLE, timed=longest) + draw_waits(axes, shown, lane_of, WHOLE)
    _bars(figure, waited, height, whole)
    legend_of(figure, [*(theme.KINDS[kind] for kind in dict.fromkeys(kinds)), (theme.FAINT, "waits in all", "")])
    return figure


def _bars(figure: Picture, waited: list[Any], height: float, whole: Any) -> None:
    """Beside each lane how long its rank waits.

    A millisecond is as long as in the lanes, which end at `whole`, if there is room.
    """
    wide = BESIDE - 0.1
    axes = panel(figure, theme.WIDTH - BESIDE - RIGHT + 0.1, TOP, wide, height)
    end = max(whole * wide / (theme.WIDTH - LEFT - BESIDE - 0.7), 1.25 * max(waited))
    scale(axes.xaxis, "waits in all (ms)", ends=(0, end), says=lambda time: f"{time / 1e9:g}")
    scale(axes.yaxis, ends=(len(waited) - 0.5, -0.5), ticks=[], dashes=False)
    marks.bars(axes, "waits of a rank", 0, waited, theme.FAINT, 0.3)
    for row, time in enumerate(waited):
        marks.word(axes, time + 0.02 * end, row, f"{time / 1e9:g}", theme.TEXT)


def _round(time: Any) -> Any:
    """The end of an axis that holds `time`: 1, 2, 5 or 10 of its decade, so that the axis stands still for a while."""
    decade = 10 ** (len(str(int(time))) - 1)
    return next(step * decade for step in (1, 2, 5, 10) if step * decade >= time)


def explore_stall(again: Callable[[float, float, bool], Run]) -> Explorer:
    """Controls of `stall_waits`: by how much a rank stalls, how long a message takes, and how often the rank stalls.

    Args:
        again: `again(stall, message, always)` runs the ring anew: two times in seconds, and whether each work stalls.

    Raises:
        ValueError: `again` cannot be called.
    """
    if not callable(again):
        raise ValueError(f"again={again!r:.60}: must be a function again(stall, message, always) that returns a run")
    controls: dict[str, Any] = {
        "stall": steps("the stall takes", STALLS, 20, "{} ms".format),
        "message": steps("a message takes", MESSAGES, 2, "{} ms".format),
        "always": choice("it stalls", [("once", False), ("in every round", True)], False),
    }

    def draw(stall: int, message: int, always: bool) -> Picture:
        return stall_waits(again(stall / 1e3, message / 1e3, always))

    return Explorer("explore_stall", controls, draw)
