"""The way back from a wait to its cause: the rank that it is for, the rank that this one waited for, and so on."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from parlab.arguments import checked_rank
from parlab.views.engine import marks, theme
from parlab.views.engine.lanes import lanes, legend, timeline_of
from parlab.views.engine.picture import Picture
from parlab.views.world.timeline import WHOLE, draw_computes, draw_waits
from parlab.world import Run, Span, Timeline, Wait


def trace_back(run: Run | Timeline, rank: int | None = None) -> Picture:
    """Draw a run's computing and waiting, and in red the way back from a wait to the rank that caused it.

    A rank that comes late has computed, or has waited itself. So from the last wait of `rank` for a rank that had not
    come, the way goes to that rank, to its own last such wait before, and so on. It ends at a rank that waited for
    nobody before: red is its longest computation until it came. If one rank stalls, it is this one; a second stall on
    the way is passed by.

    Args:
        run: what `run` returned, or a timeline.
        rank: whose last wait; None: of the last rank that waits for another.

    Raises:
        ValueError: something else than a run, or a rank that is not there.
    """
    shown = timeline_of(run)
    waits = _chain(shown, None if rank is None else checked_rank(rank, "rank", shown.size))
    culprit = _culprit(shown, waits)
    steps = [f"rank {w.rank} waits {shown.format(w.came - w.start)} for rank {w.peer}" for w in waits]
    headline = "No rank waits for another"
    if waits:
        headline = f"Rank {waits[0].rank} waits for {', '.join(_links(waits))}"
    if culprit:
        spent = shown.format(culprit.end - culprit.start)
        headline += f", which computes for {spent}"
        steps.append(f"rank {culprit.rank} waited for nobody before: {culprit.name}, {spent}")
    figure, axes = lanes("\n".join([headline, *steps]), shown, list(range(shown.size)), headline)
    lane_of = {one: one for one in range(shown.size)}
    kinds = draw_computes(axes, shown, lane_of, WHOLE, timed=culprit) + draw_waits(axes, shown, lane_of, WHOLE)
    red: list[Any] = [wait._replace(end=wait.came) for wait in waits] + [culprit] * bool(culprit)
    marks.frames(axes, "way back", red, [one.rank for one in red], WHOLE, theme.ALARM, zorder=marks.ABOVE)
    ways = list(pairwise(red))
    tails = [(one.start, _edge(one.rank, cause.rank)) for one, cause in ways]
    heads = [(min(one.start, cause.end), _edge(cause.rank, one.rank)) for one, cause in ways]
    marks.arrows(axes, tails, heads, theme.ALARM, marks.ABOVE)
    legend(figure, kinds)
    return figure


def _edge(lane: int, other: int) -> float:
    """The edge of a lane on the side of another."""
    return lane + (WHOLE[1] if other > lane else WHOLE[0])


def _chain(shown: Timeline, rank: int | None) -> list[Wait]:
    """The waits for ranks that had not come, from the last one back, each on the rank that the one before is for."""
    absent = [wait for wait in shown.waits if wait.came > wait.start and wait.peer != wait.rank]
    found: list[Wait] = []
    own = [wait for wait in absent if rank in (None, wait.rank)]
    while own:
        found.append(max(own, key=lambda wait: (wait.came, wait.rank)))
        last = found[-1]
        own = [wait for wait in absent if wait.rank == last.peer and wait.came < last.came]
    return found


def _culprit(shown: Timeline, waits: list[Wait]) -> Span | None:
    """The longest computation of the rank at the end of the waits, until it came."""
    if not waits:
        return None
    last = waits[-1]
    own = [span for span in shown.computes if span.rank == last.peer and span.start < last.came]
    return max(own, key=lambda span: span.end - span.start, default=None)


def _links(waits: list[Wait]) -> list[str]:
    return [str(waits[0].peer), *(f"{a.peer} for {b.peer}" for a, b in pairwise(waits))]
