"""Predicted against measured: the error of every published row."""

from __future__ import annotations

from parlab.plan import Validation
from parlab.views.drawing import theme
from parlab.views.drawing.lanes import name_rows
from parlab.views.drawing.picture import Picture, plot, scale

MEAN = {"color": theme.GRID, "linewidth": 12, "solid_capstyle": "butt", "zorder": 1}
POINT = {"marker": "o", "linestyle": "none", "markersize": 7, "markeredgecolor": theme.PAPER}


def predicted_and_measured(table: Validation, headline: str = "") -> Picture:
    """Draw a line for each family: the errors of its rows, and a bar as long as their mean absolute error.

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
    figure, axes = plot([said, str(table)], 1.3 + 0.5 * len(errors), said, left=2.6, top=0.6)
    widest = max(6.0, 100 * abs(worst.error) * 1.1)
    off = "error in percent: predicted over measured, less 1; the grey bar: the mean error"
    scale(axes.xaxis, off, ends=(-widest, widest), size=theme.SMALL)
    means = [f"{name}\nmean {mean:.1%}" for name, (mean, _) in errors.items()]
    name_rows(axes, len(errors), means, size=theme.SMALL)
    axes.axvline(0, color=theme.FAINT, linewidth=1)
    for line, (family, (mean, _)) in enumerate(errors.items()):
        axes.plot([-100 * mean, 100 * mean], [line, line], **MEAN)
        found = [100 * row.error for row in rows if row.family == family]
        axes.plot(found, [line] * len(found), gid=family, color=theme.RANKS[0], zorder=2, **POINT)
    return figure
