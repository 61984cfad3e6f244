"""A term left out of the time bill: the seconds that were promised, and those that had been forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from parlab.arguments import checked, instance, optional
from parlab.plan import Estimate
from parlab.views.engine import marks, theme
from parlab.views.engine.lanes import name_rows
from parlab.views.engine.picture import Picture, key, panel, scale, sheet, write
from parlab.views.plan.bills import TIME

TOP, ROW, BOTTOM, LEFT = 0.95, 0.52, 0.55, 1.35  # inches
HALF = 0.36  # of a row
PROMISED = "#BFD9EC"
ROOM = 1.12  # of the longest bill
COLUMN = 1.6  # inches, of the errors
LINE: dict[str, Any] = {"color": theme.FAINT, "linewidth": 1.6, "linestyle": "dotted", "zorder": 6}


@checked({"best": optional(partial(instance, kind=Estimate))})
def forgotten(
    chosen: Mapping[str, Estimate],
    *,
    best: Estimate | None = None,
    errors: Mapping[str, float] | None = None,
) -> Picture:
    """Draw what planners promised that forget a kind of seconds, and, in a frame at the end, what they had forgotten.

    The promise that misses the most stands above the figure.

    Args:
        chosen: by the forgotten kind, the estimate of the planner's choice, with everything counted.
        best: the choice of a planner that forgets nothing, a dotted line.
        errors: by the forgotten kind, the mean error on published rows of a planner that forgets it, as a fraction;
            they stand at the right.

    Raises:
        ValueError: no estimates, a kind that has no seconds, a best that is none, or errors of other kinds.
    """
    if not isinstance(chosen, Mapping) or not chosen or not all(isinstance(e, Estimate) for e in chosen.values()):
        raise ValueError(f"chosen={chosen!r:.60}: must be estimates by the forgotten kind")
    if unknown := [kind for kind in chosen if kind not in TIME]:
        raise ValueError(f"chosen: {unknown[0]!r} is no kind of seconds; they are {', '.join(TIME)}")
    if errors is not None and set(errors) != set(chosen):
        raise ValueError(f"errors={errors!r:.60}: must have the kinds of chosen, {', '.join(chosen)}")
    totals = {kind: e.total_seconds for kind, e in chosen.items()}
    promised = {kind: e.total_seconds - e.seconds[kind] for kind, e in chosen.items()}
    worst = max(totals, key=lambda kind: totals[kind] - promised[kind])
    said = f"Without {worst} a planner promises {promised[worst]:.1f} s, and its layout takes {totals[worst]:.1f} s"
    lines = [
        f"without {kind}: promised {promised[kind]:.2f} s, takes {totals[kind]:.2f} s"
        + (f", unseen rows {errors[kind]:.1%} off" if errors else "")
        + f": {e.layout}"
        for kind, e in chosen.items()
    ]
    figure = sheet([said, *lines], TOP + ROW * len(chosen) + BOTTOM, said)
    axes = panel(figure, LEFT, TOP, theme.WIDTH - LEFT - (COLUMN if errors else 0.25), ROW * len(chosen))
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
                marks.word(axes, _middle(start, end, best), row, words, ha="center", color=ink)
        marks.frames(axes, "frame", [marks.Interval(promised[kind], totals[kind])], [row], (-HALF, HALF), theme.INK)
        marks.word(axes, totals[kind] + 0.01 * most, row, f"{totals[kind]:.2f} s", gid="sum", weight="bold")
        if errors:
            x = theme.WIDTH - COLUMN / 2
            write(figure, x, TOP + ROW * (row + 0.5) - 0.09, f"{errors[kind]:.1%}", theme.SMALL, ha="center")
    key(figure, LEFT, TOP - 0.3, PROMISED, "promised: all terms but one")
    if errors:
        write(figure, theme.WIDTH - COLUMN / 2, TOP - 0.42, "mean error on\nunseen times", theme.SMALL, ha="center")
    if best is not None:
        axes.axvline(best.total_seconds, gid="best", **LINE)
        words = f"dotted: nothing forgotten, {best.total_seconds:.2f} s"
        write(figure, LEFT + 3.1, TOP - 0.38, words, theme.SMALL)
    return figure


def _middle(start: float, end: float, best: Estimate | None) -> float:
    """Of a box, or of the larger part beside the dotted line."""
    line = best.total_seconds if best and start < best.total_seconds < end else start
    return (line + end) / 2 if end - line > line - start else (start + line) / 2
