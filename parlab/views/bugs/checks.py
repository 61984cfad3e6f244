"""Which check sees which bug, for which price, and what the limit of clipping has to do with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from matplotlib.axes import Axes

from parlab.arguments import amount, positive
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import name_rows
from parlab.views.drawing.picture import BOUND, Picture, line_legend, panel, percent, scale, sheet, write
from parlab.views.widgets.explorer import Explorer, steps

LEFT, WIDE, BETWEEN, RIGHT = 2.1, 4.7, 0.25, 0.25  # inches: of the table's left edge, of the table, beside it
TOP, ROW, BOTTOM = 1.25, 0.4, 0.55  # inches around the rows, and of each
HALF, ASIDE = 0.42, 0.47  # of a row and of a column, from its middle to the edge of a box
SEES, BLIND = "#00684B", "#E4E4E4"  # a green that carries white words, which are black on pale green in the dark theme
ONE_RANK = {"marker": "o", "markersize": 5, "linestyle": "none", "color": "none", "markeredgecolor": theme.RIGHT}
EIGHT_RANKS = {"marker": "o", "markersize": 4, "linestyle": "none", "color": theme.ALARM, "markeredgewidth": 0}
NORMS, TICKS = (0.03, 16.0), (0.1, 1.0, 10.0)  # the ends of the axis of norms, and its ticks
MOST = 12  # bugs, and checks
Checked = tuple[Mapping[str, float], Sequence[float], Sequence[float]]


def who_sees(checked: Mapping[str, Checked], prices: Mapping[str, float], limit: float) -> Picture:
    """Draw a table of bugs and checks: a filled box is a check that sees the bug, a pale one a check that is blind.

    A box says by how much the check is wrong, or that it sees, if its difference is a whole number, as of a count.
    Beside the table, a ring is the norm of a step on one rank, and a dot that of a step with the bug; those to the
    right of the dashed line are clipped. `explore_who_sees` shows this.

    Args:
        checked: by bug, how far each check is from right, by its name (0 is right); the norm of each step on one rank;
            the norms of the trainer with the bug. `labs.checks_by_limit()[limit]` has them.
        prices: of each check, in the order of the columns.
        limit: of clipping.

    Raises:
        ValueError: no bug or check, more than 12 of them, a number below 0, or a bug without one of the checks.

    >>> who_sees({"no sum": ({"loss": 0.0, "norm": 0.5}, [4.0], [2.0])}, {"loss": 3, "norm": 1}, 0.1)
    Limit 0.1: "norm", for 1, sees 1 of 1 bugs; "loss", for 3, sees 0
                        loss        norm
    no sum                 ·        50 %
    steps that are clipped: 1 of 1 on one rank
    no sum: 1 of 1
    """
    if not isinstance(prices, Mapping) or not 1 <= len(prices) <= MOST:
        raise ValueError(f"prices={prices!r:.60}: must be {{check: price}}, 1 to {MOST} of them")
    if not isinstance(checked, Mapping) or not 1 <= len(checked) <= MOST:
        raise ValueError(f"checked={checked!r:.60}: must be {{bug: (differences, norms, norms)}}, 1 to {MOST} of them")
    positive("limit", limit)
    for check, price in prices.items():
        amount(f"prices[{check!r}]", price, least=0)
    for bug, (of_bug, *norms) in checked.items():
        if missing := [check for check in prices if check not in of_bug]:
            raise ValueError(f"checked[{bug!r}] lacks {missing[0]!r}: it needs every check of prices")
        for norm in [*of_bug.values(), *norms[0], *norms[1]]:
            amount(f"checked[{bug!r}]", norm, least=0)
    differences = {bug: of_bug for bug, (of_bug, *_) in checked.items()}
    found = {check: sum(of_bug[check] > 0 for of_bug in differences.values()) for check in prices}
    best = min(prices, key=lambda check: (-found[check], prices[check]))
    dearest = max(prices, key=lambda check: prices[check])
    headline = f'Limit {limit:g}: "{best}", for {prices[best]:g}, sees {found[best]} of {len(checked)} bugs'
    headline += f'; "{dearest}", for {prices[dearest]:g}, sees {found[dearest]}' if dearest != best else ""
    height = ROW * len(checked)
    text = [headline, *_table(differences, prices), *_clipped(checked, limit)]
    figure = sheet(text, TOP + height + BOTTOM, headline)
    line_legend(figure, [("norm of a step on one rank", ONE_RANK), ("with the bug", EIGHT_RANKS), ("limit", BOUND)])
    axes = panel(figure, LEFT, TOP, WIDE, height)
    scale(axes.xaxis, ends=(-0.5, len(prices) - 0.5), ticks=(), line=False)
    name_rows(axes, len(checked), list(checked), line=False)
    for (row, of_bug), (column, check) in product(enumerate(differences.values()), enumerate(prices)):
        seen = of_bug[check] > 0
        color = SEES if seen else BLIND
        edges = column - ASIDE, column + ASIDE, row - HALF, row + HALF
        marks.rectangles(axes, "sees" if seen else "blind", *edges, color)
        look: Any = {"ha": "center", "color": theme.text_color(color) if seen else theme.FAINT}
        marks.word(axes, column, row, _said(of_bug[check]), **look)
    step = WIDE / len(prices)
    for column, (check, price) in enumerate(prices.items()):
        middle = LEFT + step * (column + 0.5)
        write(figure, middle, TOP - 0.32, check, theme.TEXT, weight="bold", ha="center", va="baseline")
        write(figure, middle, TOP - 0.1, f"price {price:g}", color=theme.FAINT, ha="center", va="baseline")
        write(figure, middle, TOP + height + 0.28, f"{found[check]} of {len(checked)}", ha="center", va="baseline")
    left = LEFT + WIDE + BETWEEN
    _draw_norms(panel(figure, left, TOP, theme.WIDTH - left - RIGHT, height), checked, limit)
    return figure


def explore_who_sees(by_limit: Mapping[float, Mapping[str, Checked]], prices: Mapping[str, float]) -> Explorer:
    """A slider for `who_sees`: the limit of clipping.

    Args:
        by_limit: `who_sees`'s first argument, by limit, two or more of them; the picture begins with 0.1, or with the
            first. `labs.checks_by_limit()` has them.
        prices: as there.

    Raises:
        ValueError: fewer than two limits, or as `who_sees`.
    """
    if not isinstance(by_limit, Mapping) or len(by_limit) < 2:
        raise ValueError(f"by_limit={by_limit!r:.60}: must be {{limit: what the checks say of each bug}}, 2 or more")
    limits = sorted(by_limit)
    first = 0.1 if 0.1 in by_limit else limits[0]
    slider = steps("max_norm", limits, first, "{:g}".format)
    return Explorer("explore_who_sees", {"limit": slider}, partial(_at, by_limit, prices))


def _at(by_limit: Mapping[float, Mapping[str, Checked]], prices: Mapping[str, float], limit: float) -> Picture:
    return who_sees(by_limit[limit], prices, limit)


def _said(difference: float) -> str:
    """The word in a box: whether the check sees the bug, or by how much it is wrong."""
    if not difference:
        return "blind"
    if float(difference).is_integer():
        return "sees"
    if difference >= 0.005:
        return percent(difference)
    if difference >= 0.0005:
        return f"{100 * difference:.1f} %"
    return "10" + str(round(math.log10(difference))).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _table(differences: Mapping[str, Mapping[str, float]], prices: Mapping[str, float]) -> list[str]:
    """The boxes in words."""
    wide = max(12, *map(len, differences))
    lines = [f"{'':<{wide}}" + "".join(f"{check:>12}" for check in prices)]
    for bug, of_bug in differences.items():
        cells = (_said(of_bug[check]).replace("blind", "·") for check in prices)
        lines.append(f"{bug:<{wide}}" + "".join(f"{cell:>12}" for cell in cells))
    return lines


def _clipped(checked: Mapping[str, Checked], limit: float) -> list[str]:
    """How many steps are clipped."""

    def above(norms: Sequence[float]) -> str:
        return f"{sum(norm > limit for norm in norms)} of {len(norms)}"

    _, right, _ = next(iter(checked.values()))
    first = f"steps that are clipped: {above(right)} on one rank"
    return [first, "; ".join(f"{bug}: {above(norms)}" for bug, (*_, norms) in checked.items())]


def _draw_norms(axes: Axes, checked: Mapping[str, Checked], limit: float) -> None:
    """Rings and dots in the rows of the table, and the limit."""
    scale(axes.yaxis, ends=(len(checked) - 0.5, -0.5), ticks=(), line=False)
    scale(axes.xaxis, "norm of the gradient", ends=NORMS, log=10, ticks=TICKS, says="{:g}".format)
    for row, (_, right, norms) in enumerate(checked.values()):
        axes.plot(right, [row - 0.17] * len(right), gid="one rank", **ONE_RANK)
        axes.plot(norms, [row + 0.17] * len(norms), gid="eight ranks", **EIGHT_RANKS)
    axes.axvline(limit, gid="limit", **BOUND)
    left = limit > math.sqrt(NORMS[0] * NORMS[1])
    look: Any = {"color": theme.FAINT, "va": "bottom", "ha": "right" if left else "left"}
    marks.word(axes, limit, -0.55, "not clipped " if left else " clipped", **look)
