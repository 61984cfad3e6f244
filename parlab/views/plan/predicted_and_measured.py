"""Predicted beside published: the error of every row, and what the row can show."""

from __future__ import annotations

from parlab.plan import Validation
from parlab.views.engine import theme
from parlab.views.engine.lanes import name_rows
from parlab.views.engine.picture import Picture, line_legend, plot, scale

COLORS = {"fitted": theme.PAPER, "formula": theme.RANKS[4], "unseen": theme.RANKS[5]}
EDGES = {"fitted": theme.FAINT, "formula": theme.PAPER, "unseen": theme.PAPER}  # fitted ones are hollow
MARKS = {"fitted": "o", "formula": "D", "unseen": "o"}
MEAN = {"color": theme.GRID, "linewidth": 12, "solid_capstyle": "butt", "zorder": 1}
LOOKS = {
    kind: {"marker": MARKS[kind], "color": COLORS[kind], "markeredgecolor": EDGES[kind], "linestyle": "none"}
    | {"markersize": 8 if kind == "unseen" else 6}
    for kind in COLORS
}


def _signed(percents: float) -> str:
    return f"{percents:+g}".replace("-", "−") if percents else "0"


def predicted_and_measured(table: Validation, headline: str = "") -> Picture:
    """Draw a line for each family: the errors of its rows, and a bar as long as their mean absolute error, to the sides
    on which there are errors.

    A dot is fitted (constants were chosen on this row), a formula (nothing was measured), or unseen.

    Args:
        table: what `validation()` returned.
        headline: above the figure. Empty: the number of rows, and the largest error.

    Raises:
        ValueError: no validation, or one without rows.
    """
    if not isinstance(table, Validation) or not table:
        raise ValueError(f"table={table!r:.60}: must be what validation() returned, with a row or more")
    errors = table.errors
    rows = list(table)
    worst = max(rows, key=lambda row: abs(row.error))
    said = headline or f"{len(rows)} published numbers; the worst, {worst.name}, is {worst.error:+.1%} off"
    kinds = {kind: sum(row.kind == kind for row in rows) for kind in COLORS}
    figure, axes = plot([said, str(table)], 1.55 + 0.5 * len(errors), said, left=2.6, top=0.85)
    percents = [100 * row.error for row in rows]
    ends = (-max(6.0, -1.1 * min(percents)), max(6.0, 1.1 * max(percents)))
    off = "error in percent: predicted over published, less 1; the grey bar: the mean error"
    scale(axes.xaxis, off, ends=ends, says=_signed, size=theme.SMALL)
    means = [f"{name}\nmean {mean:.1%}" for name, (mean, _) in errors.items()]
    name_rows(axes, len(errors), means, size=theme.SMALL)
    axes.axvline(0, color=theme.FAINT, linewidth=1)
    for line, (family, (mean, _)) in enumerate(errors.items()):
        found = [row for row in rows if row.family == family]
        errors_here = [100 * row.error for row in found]
        low, high = (100 * mean * any(side * error > 0 for error in errors_here) for side in (-1, 1))
        axes.plot([-low, high], [line, line], gid=f"mean of {family}", **MEAN)
        axes.plot(errors_here, [line] * len(found), gid=family, zorder=2, **LOOKS[found[0].kind])
    entries = [(f"{kind}: {number} rows", LOOKS[kind]) for kind, number in kinds.items() if number]
    line_legend(figure, entries)
    return figure
