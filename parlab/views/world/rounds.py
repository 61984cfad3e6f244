"""The rounds of a loop: how long each took on each rank, as a job that notes the time once a round sees it."""

from __future__ import annotations

from statistics import median
from typing import Any

from parlab.views.engine import marks, theme
from parlab.views.engine.lanes import lanes_at, legend_of, timeline_of
from parlab.views.engine.picture import Picture, sheet
from parlab.views.world.timeline import WHOLE
from parlab.world import Run, Timeline

TOP, LANE, BOTTOM = 0.95, 0.34, 0.6  # inches: above the lanes, of a lane, below them
LONGER = 1.1  # times the median round
USUAL, LONG = theme.GRID, theme.paler("#E08214", 0.35)


def rounds(run: Run | Timeline, *, headline: str | None = None) -> Picture:
    """Draw each rank's rounds, a box for each: from the start of one computation to the start of the next.

    A box holds the work of its round and all waits after it, and does not say which is which. Rounds that take more
    than 1.1 times the median are orange.

    Args:
        run: what `run` returned, or a timeline in which each rank computes once a round.
        headline: what stands above; None: how many rounds are longer.

    Raises:
        ValueError: something else than a run, or a run in which a rank does not compute.
    """
    shown = timeline_of(run)
    found: list[Any] = []
    lines = []
    for rank in range(shown.size):
        works = sorted((span for span in shown.computes if span.rank == rank), key=lambda span: span.start)
        if not works:
            raise ValueError(f"run={run!r:.60}: rank {rank} does not compute, so it has no rounds")
        starts = [span.start for span in works]
        own = [work._replace(end=end) for work, end in zip(works, [*starts[1:], works[-1].end], strict=True)]
        lines.append(f"rank {rank}: {', '.join(shown.format(one.end - one.start) for one in own)}")
        found += own
    usual = median(one.end - one.start for one in found)
    long = [one.end - one.start > LONGER * usual for one in found]
    headline = headline or f"{sum(long)} of {len(found)} rounds take longer than the others"
    figure = sheet("\n".join([headline, *lines]), TOP + LANE * shown.size + BOTTOM, headline)
    axes = lanes_at(figure, shown, None, TOP, LANE * shown.size)
    colors = [LONG if longer else USUAL for longer in long]
    texts = [[shown.format(one.end - one.start)] for one in found]
    marks.boxes(axes, "rounds", found, [one.rank for one in found], WHOLE, colors, texts)
    legend_of(figure, [(USUAL, "a round", ""), (LONG, "a longer round", "")][: 1 + any(long)])
    return figure
