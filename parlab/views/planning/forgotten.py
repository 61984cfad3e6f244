"""A term left out of the time bill: the seconds that were promised, and those that had been forgotten."""

from __future__ import annotations

from collections.abc import Mapping

from parlab.plan import Estimate
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import name_rows
from parlab.views.drawing.picture import Picture, key, panel, scale, sheet
from parlab.views.planning.bills import TIME

TOP, ROW, BOTTOM, LEFT = 0.95, 0.52, 0.55, 1.35  # inches
HALF = 0.36  # of a row
PROMISED = "#BFD9EC"
ROOM = 1.12  # of the longest bill


def forgotten(chosen: Mapping[str, Estimate], headline: str = "") -> Picture:
    """Draw what planners promised that forget a kind of seconds, and, in a frame at the end, what they had forgotten.

    Args:
        chosen: by the forgotten kind, the estimate of the planner's choice, with everything counted.
        headline: above the figure. Empty: the promise that misses the most.

    Raises:
        ValueError: no estimates, or a kind that has no seconds.
    """
    if not isinstance(chosen, Mapping) or not chosen or not all(isinstance(e, Estimate) for e in chosen.values()):
        raise ValueError(f"chosen={chosen!r:.60}: must be estimates by the forgotten kind")
    if unknown := [kind for kind in chosen if kind not in TIME]:
        raise ValueError(f"chosen: {unknown[0]!r} is no kind of seconds; they are {', '.join(TIME)}")
    totals = {kind: e.total_seconds for kind, e in chosen.items()}
    promised = {kind: e.total_seconds - e.seconds[kind] for kind, e in chosen.items()}
    worst = max(totals, key=lambda kind: totals[kind] - promised[kind])
    said = (
        headline or f"Without {worst} a planner promises {promised[worst]:.1f} s; its layout takes {totals[worst]:.1f}"
    )
    lines = [
        f"without {kind}: promised {promised[kind]:.2f} s, takes {totals[kind]:.2f} s: {e.layout}"
        for kind, e in chosen.items()
    ]
    figure = sheet([said, *lines], TOP + ROW * len(chosen) + BOTTOM, said)
    axes = panel(figure, LEFT, TOP, theme.WIDTH - LEFT - 0.25, ROW * len(chosen))
    name_rows(axes, len(chosen), [f"without {kind}" for kind in chosen], size=theme.SMALL)
    most = max(totals.values())
    scale(axes.xaxis, "seconds a step", ends=(0, ROOM * most), size=theme.SMALL)
    for row, kind in enumerate(chosen):
        for name, start, end, color in (
            ("promised", 0.0, promised[kind], PROMISED),
            ("forgotten", promised[kind], totals[kind], TIME[kind]),
        ):
            marks.rectangles(axes, name, start, end, row - HALF, row + HALF, color)
            words = f"promised {end:.2f} s" if name == "promised" else f"{kind}: {end - start:.2f} s"
            ink = theme.text_color(color)
            if end - start > 0.1 * most:
                marks.word(axes, (start + end) / 2, row, words, ha="center", color=ink)
        marks.frames(axes, "frame", [marks.Interval(promised[kind], totals[kind])], [row], (-HALF, HALF), theme.INK)
        marks.word(axes, totals[kind] + 0.01 * most, row, f"{totals[kind]:.2f} s", gid="sum", weight="bold")
    key(figure, LEFT, TOP - 0.3, PROMISED, "promised: all terms but one")
    return figure
