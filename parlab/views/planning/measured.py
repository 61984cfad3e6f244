"""Predicted beside published: the error of every row, and what the row can show."""

from __future__ import annotations

from parlab.plan import Validation
from parlab.views.drawing import theme
from parlab.views.drawing.lanes import name_rows
from parlab.views.drawing.picture import Picture, line_legend, plot, scale

COLORS = {"fitted": "#BBBBBB", "formula": theme.RANKS[4], "unseen": theme.RANKS[5]}
MEAN = {"color": theme.GRID, "linewidth": 12, "solid_capstyle": "butt", "zorder": 1}
POINT = {"marker": "o", "linestyle": "none", "markersize": 7, "markeredgecolor": theme.PAPER}


def predicted_and_measured(table: Validation, headline: str = "") -> Picture:
    """Draw a line for each family: the errors of its rows, and a bar as long as their mean absolute error.

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
    widest = max(6.0, 100 * abs(worst.error) * 1.1)
    off = "error in percent: predicted over published, less 1; the grey bar: the mean error"
    scale(axes.xaxis, off, ends=(-widest, widest), size=theme.SMALL)
    means = [f"{name}\nmean {mean:.1%}" for name, (mean, _) in errors.items()]
    name_rows(axes, len(errors), means, size=theme.SMALL)
    axes.axvline(0, color=theme.FAINT, linewidth=1)
    for line, (family, (mean, _)) in enumerate(errors.items()):
        axes.plot([-100 * mean, 100 * mean], [line, line], **MEAN)
        found = [row for row in rows if row.family == family]
        errors_here = [100 * row.error for row in found]
        axes.plot(errors_here, [line] * len(found), gid=family, color=COLORS[found[0].kind], zorder=2, **POINT)
    entries = [(f"{kind}: {number} rows", {"color": COLORS[kind], **POINT}) for kind, number in kinds.items() if number]
    line_legend(figure, entries)
    return figure
