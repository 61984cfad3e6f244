"""Which check sees which bug, for which price, and how far it is off where there is no bug."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from parlab.arguments import amount
from parlab.views.engine import marks, theme
from parlab.views.engine.explore import Explorer, steps
from parlab.views.engine.lanes import name_rows
from parlab.views.engine.picture import Picture, panel, scale, sheet, write

LEFT, RIGHT, TOP, ROW, BOTTOM = 2.1, 0.2, 1.15, 0.52, 0.45  # inches around the boxes, and of a row
HALF, ASIDE, LINE = 0.44, 0.47, 0.17  # of a row and of a column: from its middle to a box's edge, to a line of words
SEES, SOME, BLIND = "#00684B", "#9BCFBB", "#E4E4E4"  # a check that sees the bug in all models, in some, in none
MOST = 12  # rows, and checks
ROUNDING = 1e-12  # a difference up to this is none
NO_BUG = "a right mesh"  # the name of the first row
Differences = Mapping[str, Mapping[str, Sequence[float]]]


def who_sees(differences: Differences, prices: Mapping[str, float], arithmetic: str) -> Picture:
    """Draw a table of bugs and checks: a filled box is a check that sees the bug, a gray one a check that is blind.

    The first row is of a mesh without a bug. A check sees a bug on a model if it is further off there than without a
    bug on any model. A box says on how many models, and how far off the check is. `explore_who_sees` shows this.

    Args:
        differences: by bug and check, how far the check is off on each model (0 is right; a whole number is a count of
            weights). The first is no bug. `labs.many_models().differences["bf16"]` has them.
        prices: of each check, in the order of the columns.
        arithmetic: of the trainings, for the headline.

    Raises:
        ValueError: no bug, check or model, more than 12 rows or checks, a number below 0, or a bug without one of the
            checks.

    >>> right, bug = {"loss": [0.0, 0.01], "norm": [0.002, 0.01]}, {"loss": [0.01, 0.0], "norm": [0.5, 0.008]}
    >>> who_sees({"right": right, "no sum": bug}, {"loss": 3, "norm": 1}, "bf16")
    bf16: "norm", for 1, sees 0 to 1 of 1 bugs; "loss", for 3, sees 0
                           loss           norm
    a right mesh      up to 1 %      up to 1 %
    no sum                    ·         1 of 2
                       0 to 1 %    0.8 to 50 %
    """
    if not isinstance(prices, Mapping) or not 1 <= len(prices) <= MOST:
        raise ValueError(f"prices={prices!r:.60}: must be {{check: price}}, 1 to {MOST} of them")
    if not isinstance(differences, Mapping) or not 2 <= len(differences) <= MOST:
        raise ValueError(f"differences={differences!r:.60}: must be {{bug: {{check: numbers}}}}, 2 to {MOST} rows")
    for check, price in prices.items():
        amount(f"prices[{check!r}]", price, least=0)
    models = {len(of_bug.get(check, ())) for of_bug in differences.values() for check in prices}
    if len(models) > 1 or models == {0}:
        raise ValueError("differences: every bug needs every check of prices, each on the same models, 1 or more")
    for bug, check in product(differences, prices):
        for number in differences[bug][check]:
            amount(f"differences[{bug!r}][{check!r}]", number, least=0)
    right, *bugs = differences
    noise = {check: max(ROUNDING, *differences[right][check]) for check in prices}
    seen = {check: _bugs_seen([differences[bug][check] for bug in bugs], noise[check]) for check in prices}
    best = min(prices, key=lambda check: (-sum(seen[check]), prices[check]))
    dearest = max(prices, key=lambda check: prices[check])
    headline = f'{arithmetic}: "{best}", for {prices[best]:g}, sees {_span(seen[best])} of {len(bugs)} bugs'
    headline += f'; "{dearest}", for {prices[dearest]:g}, sees {_span(seen[dearest])}' if dearest != best else ""
    height = ROW * len(differences)
    figure = sheet([headline, *_table(differences, noise)], TOP + height + BOTTOM, headline)
    wide = theme.WIDTH - LEFT - RIGHT
    axes = panel(figure, LEFT, TOP, wide, height)
    scale(axes.xaxis, ends=(-0.5, len(prices) - 0.5), ticks=(), line=False)
    name_rows(axes, len(differences), [NO_BUG, *bugs], line=False)
    for (row, bug), (column, check) in product(enumerate(differences), enumerate(prices)):
        off = differences[bug][check]
        edges = column - ASIDE, column + ASIDE, row - HALF, row + HALF
        if bug == right:
            marks.rectangles(axes, "right", *edges, theme.PAPER)
            marks.word(axes, column, row, _up_to(off), ha="center")
            continue
        count = sum(x > noise[check] for x in off)
        color = SEES if count == len(off) else SOME if count else BLIND
        marks.rectangles(axes, "sees" if count == len(off) else "some" if count else "blind", *edges, color)
        ink = theme.text_color(color) if count else theme.FAINT
        above = LINE if any(off) else 0.0
        look: Any = {"ha": "center", "color": ink}
        marks.word(axes, column, row - above, _said(off, noise[check]), **look, weight="bold" if count else "normal")
        if any(off):
            marks.word(axes, column, row + above, _range(off), **look)
    for column, (check, price) in enumerate(prices.items()):
        middle = LEFT + wide / len(prices) * (column + 0.5)
        write(figure, middle, TOP - 0.32, check, theme.TEXT, weight="bold", ha="center", va="baseline")
        write(figure, middle, TOP - 0.1, f"price {price:g}", color=theme.FAINT, ha="center", va="baseline")
        said = f"{_span(seen[check])} of {len(bugs)} bugs"
        write(figure, middle, TOP + height + 0.25, said, ha="center", va="baseline")
    return figure


def explore_who_sees(differences: Mapping[str, Differences], prices: Mapping[str, float]) -> Explorer:
    """A slider for `who_sees`: the arithmetic in which all trained.

    Args:
        differences: as there, by arithmetic; the last is shown first. `labs.many_models().differences` has them.
        prices: as there.

    Raises:
        ValueError: as `who_sees`.
    """

    def draw(arithmetic: str) -> Picture:
        return who_sees(differences[arithmetic], prices, arithmetic)

    names = list(differences)
    return Explorer("explore_who_sees", {"arithmetic": steps("arithmetic", names, names[-1])}, draw)


def _bugs_seen(by_bug: Sequence[Sequence[float]], noise: float) -> list[int]:
    """How many bugs a check sees, on each model."""
    return [sum(off > noise for off in of_model) for of_model in zip(*by_bug, strict=True)]


def _span(counts: Sequence[int]) -> str:
    least, most = min(counts), max(counts)
    return f"{least}" if least == most else f"{least} to {most}"


def _said(off: Sequence[float], noise: float) -> str:
    """In how many models the check sees the bug."""
    count = sum(x > noise for x in off)
    return "blind" if not count else f"{count} of {len(off)}"


def _up_to(off: Sequence[float]) -> str:
    """How far a check is off without a bug."""
    return f"up to {_percents(max(off))} %" if max(off) else "no difference"


def _range(off: Sequence[float]) -> str:
    """By how much the check is off, from the least to the most: in percent, or as a count of weights."""
    least, most = min(off), max(off)
    if all(float(x).is_integer() for x in off):
        said = f"{least:g}" if least == most else f"{least:g} to {most:g}"
        return f"{said} weight{'' if said == '1' else 's'}"
    low, high = _percents(least), _percents(most)
    return f"{low} %" if low == high else f"{low} to {high} %"


def _percents(share: float) -> str:
    return f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.2g}"


def _table(differences: Differences, noise: Mapping[str, float]) -> list[str]:
    """The boxes in words, two lines for a bug."""
    (_, of_right), *of_bugs = differences.items()
    wide = max(len(NO_BUG), *(len(bug) for bug, _ in of_bugs))
    lines = [f"{'':<{wide}}" + "".join(f"{check:>15}" for check in noise)]
    lines.append(f"{NO_BUG:<{wide}}" + "".join(f"{_up_to(of_right[check]):>15}" for check in noise))
    for bug, of_bug in of_bugs:
        seen = [_said(of_bug[check], noise[check]).replace("blind", "·") for check in noise]
        ranges = [_range(of_bug[check]) if any(of_bug[check]) else "" for check in noise]
        lines.append(f"{bug:<{wide}}" + "".join(f"{cell:>15}" for cell in seen))
        lines.append((" " * wide + "".join(f"{cell:>15}" for cell in ranges)).rstrip())
    return lines
