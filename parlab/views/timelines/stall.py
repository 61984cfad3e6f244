"""How far a stall travels: the lanes of a ring around the rank that stalls, and beside each how long it waits."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from parlab.arguments import positive
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import LEFT, RIGHT, lanes_at, legend_of, timeline_of
from parlab.views.drawing.picture import Picture, panel, scale, sheet
from parlab.views.timelines.timeline import WHOLE, draw_computes, draw_waits
from parlab.views.widgets.explorer import Explorer, steps
from parlab.world import Run, Timeline

TOP, LANE, BESIDE = 1.15, 0.42, 2.3  # inches: above the lanes, of a lane, of the bars beside them
STALLS, MESSAGES = range(2, 33, 2), range(1, 9)  # ms
LAW = "stall − steps · (work − message)"


def stall_waits(run: Run | Timeline, message: float) -> Picture:
    """Draw a ring in which one rank stalls once, that rank in the middle, and how long each of the others waits for it.

    A rank that is d steps away from it waits for max(0, stall − d · (work − message)), if the messages are posted
    ahead and no longer than the work. A black line marks it beside the bars that the clock gives.

    Args:
        run: what `run` returned, or a timeline: every rank does the same work several times, and one work is longer.
        message: the seconds that a message takes.

    Raises:
        ValueError: something else than a run, a run without work, or a message that takes no time.
    """
    shown = timeline_of(run)
    positive("message", message, finite=True)
    if not shown.computes:
        raise ValueError(f"run={run!r:.60}: no rank works in it")
    longest = max(shown.computes, key=lambda span: span.end - span.start)
    work = int(median(span.end - span.start for span in shown.computes))
    stall = longest.end - longest.start - work
    first = longest.rank - shown.size // 2
    ranks = [(first + row) % shown.size for row in range(shown.size)]
    waited = [shown.waited(rank) for rank in ranks]
    apart = [min((rank - longest.rank) % shown.size, (longest.rank - rank) % shown.size) for rank in ranks]
    slack = work - round(message * 1e12)
    law = [max(0, stall - steps * slack) * (steps > 0) for steps in apart]
    many = sum(map(bool, waited))
    says = shown.format
    headline = f"Rank {longest.rank} stalls for {says(stall)}: "
    headline += f"{many} rank{'s wait' if many != 1 else ' waits'}, {says(sum(waited))} in all"
    lines = [headline, f"work {says(work)}, message {says(round(message * 1e12))}; by {LAW}:"]
    for rank, steps_away, waits, by_law in zip(ranks, apart, waited, law, strict=True):
        lines.append(f"rank {rank}, {steps_away} steps away, waits {says(waits)}; by the law {says(by_law)}")
    height = LANE * shown.size
    figure = sheet(lines, TOP + height + 0.6, headline)
    whole = _round(shown.makespan)
    axes = lanes_at(figure, shown, whole, TOP, height, ranks=ranks, right=BESIDE + 0.7)
    lane_of = {rank: lane for lane, rank in enumerate(ranks)}
    kinds = draw_computes(axes, shown, lane_of, WHOLE) + draw_waits(axes, shown, lane_of, WHOLE)
    _bars(figure, shown, waited, law, height, whole)
    signs = [theme.KINDS[kind] for kind in dict.fromkeys(kinds)]
    legend_of(figure, [*signs, (theme.FAINT, "waits in all", ""), (theme.INK, LAW, "")])
    return figure


def _bars(figure: Picture, shown: Timeline, waited: list[Any], law: list[Any], height: float, whole: Any) -> None:
    """Beside each lane how long its rank waits, and a line where the law says that the bar ends.

    A millisecond is as long as in the lanes, which end at `whole`, if there is room.
    """
    wide = BESIDE - 0.1
    axes = panel(figure, theme.WIDTH - BESIDE - RIGHT + 0.1, TOP, wide, height)
    end = max(whole * wide / (theme.WIDTH - LEFT - BESIDE - 0.7), 1.04 * max(*waited, *law))
    scale(axes.xaxis, "waits in all (ms)", ends=(0, end), says=lambda time: f"{time / 1e9:g}")
    scale(axes.yaxis, ends=(shown.size - 0.5, -0.5), ticks=[], dashes=False)
    marks.bars(axes, "waits of a rank", 0, waited, theme.FAINT, 0.3)
    rows = range(shown.size)
    thin = 0.006 * end
    low, high = ([row + half for row in rows] for half in (-0.42, 0.42))
    left, right = ([time + half for time in law] for half in (-thin, thin))
    marks.rectangles(axes, "law", left, right, low, high, theme.INK)


def _round(time: Any) -> Any:
    """The end of an axis that holds `time`: 1, 2, 5 or 10 of its decade, so that the axis stands still for a while."""
    decade = 10 ** (len(str(int(time))) - 1)
    return next(step * decade for step in (1, 2, 5, 10) if step * decade >= time)


def explore_stall(again: Callable[[float, float], Run]) -> Explorer:
    """Sliders for `stall_waits`: by how much a rank stalls, and how long a message takes.

    Args:
        again: `again(stall, message)`, both in seconds, runs the ring anew.

    Raises:
        ValueError: `again` cannot be called.
    """
    if not callable(again):
        raise ValueError(f"again={again!r:.60}: must be a function again(stall, message) that returns a run")
    controls: dict[str, Any] = {
        "stall": steps("rank 5 stalls for", STALLS, 12, "{} ms".format),
        "message": steps("a message takes", MESSAGES, 2, "{} ms".format),
    }
    return Explorer(
        "explore_stall", controls, lambda stall, message: stall_waits(again(stall / 1e3, message / 1e3), message / 1e3)
    )
