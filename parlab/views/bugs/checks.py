"""Which check sees which bug, and for which price."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from parlab.arguments import amount
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import name_rows
from parlab.views.drawing.picture import Picture, panel, scale, sheet, write

LEFT, RIGHT, TOP, ROW, BOTTOM = 2.1, 0.3, 1.1, 0.36, 0.5  # inches around the rows, and of each
HALF, ASIDE = 0.42, 0.47  # of a row and of a column, from its middle to the edge of a box
SEES, BLIND = "#00684B", "#E4E4E4"  # a green that carries white words, which are black on pale green in the dark theme
MOST = 12  # bugs, and checks


def who_sees(sees: Mapping[str, Mapping[str, bool]], prices: Mapping[str, float]) -> Picture:
    """Draw a table of bugs and checks: a filled box is a check that sees the bug, a pale one a check that is blind.

    Args:
        sees: by bug and by check, whether the check comes out wrong.
        prices: of each check, in the order of the columns.

    Raises:
        ValueError: no bug or check, more than 12 of them, a price below 0, or a bug without one of the checks.

    >>> who_sees({"no sum": {"loss": False, "norm": True}}, {"loss": 2, "norm": 1})
    "norm", for 1, sees 1 of 1 bugs; "loss", for 2, sees 0
                        loss        norm
    no sum                 ·        sees
    """
    if not isinstance(prices, Mapping) or not 1 <= len(prices) <= MOST:
        raise ValueError(f"prices={prices!r:.60}: must be {{check: price}}, 1 to {MOST} of them")
    if not isinstance(sees, Mapping) or not 1 <= len(sees) <= MOST:
        raise ValueError(f"sees={sees!r:.60}: must be {{bug: {{check: whether it sees the bug}}}}, 1 to {MOST} of them")
    for check, price in prices.items():
        amount(f"prices[{check!r}]", price, least=0)
    for bug, of_bug in sees.items():
        if missing := [check for check in prices if check not in of_bug]:
            raise ValueError(f"sees[{bug!r}] lacks {missing[0]!r}: it needs every check of prices")
    found = {check: sum(bool(of_bug[check]) for of_bug in sees.values()) for check in prices}
    best = min(prices, key=lambda check: (-found[check], prices[check]))
    dearest = max(prices, key=lambda check: prices[check])
    headline = f'"{best}", for {prices[best]:g}, sees {found[best]} of {len(sees)} bugs'
    headline += f'; "{dearest}", for {prices[dearest]:g}, sees {found[dearest]}' if dearest != best else ""
    wide = max(12, *map(len, sees))
    lines = [f"{'':<{wide}}" + "".join(f"{check:>12}" for check in prices)]
    for bug, of_bug in sees.items():
        lines.append(f"{bug:<{wide}}" + "".join(f"{'sees' if of_bug[check] else '·':>12}" for check in prices))
    height = ROW * len(sees)
    figure = sheet([headline, *lines], TOP + height + BOTTOM, headline)
    axes = panel(figure, LEFT, TOP, theme.WIDTH - LEFT - RIGHT, height)
    scale(axes.xaxis, ends=(-0.5, len(prices) - 0.5), ticks=(), line=False)
    name_rows(axes, len(sees), list(sees), line=False)
    for (row, of_bug), (column, check) in product(enumerate(sees.values()), enumerate(prices)):
        seen = bool(of_bug[check])
        color = SEES if seen else BLIND
        edges = column - ASIDE, column + ASIDE, row - HALF, row + HALF
        marks.rectangles(axes, "sees" if seen else "blind", *edges, color)
        look: Any = {"ha": "center", "color": theme.text_color(color) if seen else theme.FAINT}
        marks.word(axes, column, row, "sees" if seen else "blind", **look)
    step = (theme.WIDTH - LEFT - RIGHT) / len(prices)
    for column, (check, price) in enumerate(prices.items()):
        middle = LEFT + step * (column + 0.5)
        write(figure, middle, TOP - 0.32, check, theme.TEXT, weight="bold", ha="center", va="baseline")
        write(figure, middle, TOP - 0.1, f"price {price:g}", color=theme.FAINT, ha="center", va="baseline")
        write(figure, middle, TOP + height + 0.28, f"{found[check]} of {len(sees)}", ha="center", va="baseline")
    return figure
