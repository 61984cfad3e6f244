"""The bytes that a rank keeps of a block for its backward: by the number of ranks t, and array by array."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Any

from parlab.arguments import checked, whole
from parlab.views.arguments import RULES, mapping
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import legend_of, name_rows
from parlab.views.drawing.marks import Interval
from parlab.views.drawing.picture import Picture, curve, line_legend, plot, scale, write
from parlab.world.units import SIZES, format_bytes

KEPT = ("#332288", "#AA4499", "#44AA99", "#999933", "#882255")  # unlike ranks'. Source: Tol, "Colour schemes" (2021)
WHOLE, CUT = "#BBBBBB", KEPT[2]
SUMS, ARRAYS = (-0.36, 0.08), (0.08, 0.36)  # of a bar's height: the words, and below them the arrays
SMALLEST = 0.01  # of the longest bar: smaller arrays are drawn together
Bytes = Mapping[str, Mapping[int, int]]  # way of keeping: t: bytes


def bytes_by_ranks(name: str, value: Any) -> None:
    """The rule of bytes by way of keeping and number of ranks."""
    mapping(name, value)
    for way, at in value.items():
        mapping(f"{name}[{way!r}]", at)


@checked(RULES | {"counted": bytes_by_ranks, "formula": bytes_by_ranks})
def kept_activations(counted: Bytes, formula: Bytes, *, headline: str | None = None) -> Picture:
    """Draw the bytes that a rank keeps of one block: closed forms as lines, counted bytes as dots.

    Args:
        counted: `{way: {t: bytes}}`, such as `{"tensor parallel": {1: 8192, 2: 5120}}`.
        formula: the same from the closed form.
        headline: above the figure. None: whether the two agree.

    Raises:
        ValueError: the two have different ways or numbers of ranks, or none.
    """
    if not counted or {way: set(at) for way, at in counted.items()} != {way: set(at) for way, at in formula.items()}:
        raise ValueError("counted and formula must have the same ways of keeping and the same t, at least one")
    sizes = sorted({t for at in counted.values() for t in at})
    equal = all(counted[way][t] == formula[way][t] for way in counted for t in counted[way])
    verdict = f"Kept by one rank of one block: {'counted = closed form everywhere' if equal else 'NOT the closed form'}"
    width = max(map(len, counted))
    lines = [verdict, f"{'':<{width}}" + "".join(f"{f't = {t}':>12}" for t in sizes)]
    lines += [f"{way:<{width}}" + "".join(f"{at[t]:>12}" for t in sizes) for way, at in counted.items()]
    figure, axes = plot(lines, 4.2, headline or verdict, left=1.0, top=1.0)
    scale(axes.xaxis, log=2, ticks=sizes, says="t = {:g}".format)
    scale(axes.yaxis, log=2, says=format_bytes, grid=True)
    styles = dict(zip(formula, map(curve, cycle(KEPT), cycle(theme.DASHES)), strict=False))
    for way, style in styles.items():
        axes.plot(list(formula[way]), list(formula[way].values()), gid=f"formula {way}", **style)
        axes.plot(list(counted[way]), list(counted[way].values()), "o", color=style["color"], gid=f"counted {way}")
    line_legend(figure, list(styles.items()))
    return figure


def bytes_by_array(name: str, value: Any) -> None:
    """The rule of bytes by way of keeping and array: the same arrays in each way."""
    mapping(name, value)
    for way, arrays in value.items():
        mapping(f"{name}[{way!r}]", arrays)
        for array, nbytes in arrays.items():
            whole(f"{name}[{way!r}][{array!r}]", nbytes, 0)
    if len({frozenset(arrays) for arrays in value.values()}) > 1:
        raise ValueError(f"{name}: each of {', '.join(value)} must have the same arrays")


@checked(RULES | {"ways": bytes_by_array})
def kept_arrays(ways: Mapping[str, Mapping[str, int]], *, headline: str | None = None) -> Picture:
    """Draw the bytes that one rank keeps of one block, a bar a way and a box below it an array; names stand below.

    An array that some later way keeps as large as the first one does stands first: there it is whole on every rank.

    Args:
        ways: `{way: {array: bytes}}`, the first one of a single rank.
        headline: above the figure. None: the sums.

    Raises:
        ValueError: nothing to draw, different arrays, or bytes that are none.
    """
    first, *later = ways.values()
    totals = {way: sum(arrays.values()) for way, arrays in ways.items()}
    stays = {array for array in first if any(arrays[array] == first[array] for arrays in later)}
    said = _in_one_unit(totals)
    lines = [headline or ", ".join(f"{way}: {total}" for way, total in said.items())]
    for way, arrays in ways.items():
        left = sum(nbytes for array, nbytes in arrays.items() if array in stays)
        lines.append(f"{way}: {said[way]}, of these {format_bytes(left)} in {', '.join(sorted(stays))}")
    figure, axes = plot(lines, 2.0 + 0.62 * len(ways), lines[0], left=2.2, right=1.0, top=1.0, bottom=0.8)
    longest = max(totals.values())
    scale(axes.xaxis, ends=(0, longest), ticks=(), line=False)
    name_rows(axes, len(ways), list(ways))
    large = {way: [array for array in arrays if arrays[array] >= SMALLEST * longest] for way, arrays in ways.items()}
    for row, (way, arrays) in enumerate(ways.items()):
        uncut = [array for array in large[way] if array in stays and arrays[array] == first[array]]
        start, spans = 0, []
        for array in uncut + [array for array in large[way] if array not in uncut]:
            spans.append(Interval(start, start := start + arrays[array]))
        spans.append(Interval(start, totals[way]))
        colors = [WHOLE] * len(uncut) + [CUT] * (len(spans) - len(uncut))
        marks.boxes(axes, f"arrays {way}", spans, [row] * len(spans), ARRAYS, colors)
        edge = sum(arrays[array] for array in uncut)
        groups = [Interval(0, edge), Interval(edge, totals[way])]
        marks.boxes(axes, f"sums {way}", groups, [row] * 2, SUMS, [WHOLE, CUT])
        parts = _in_one_unit({"all": longest, "whole": edge, "cut": totals[way] - edge})
        texts = [[f"{len(uncut)} arrays: {parts['whole']}", parts["whole"]] if uncut else [""], [parts["cut"]]]
        inks = [theme.text_color(color) for color in (WHOLE, CUT)]
        marks.labels(axes, groups, [row] * 2, SUMS, texts, inks)
    marks.beside(axes, list(range(len(ways))), list(said.values()), theme.TEXT)
    for line, group in enumerate((True, False)):
        named = ", ".join(array for array in large[next(iter(ways))] if (array in stays) == group)
        small = " and smaller ones" if len(large[next(iter(ways))]) < len(first) and not group else ""
        words = f"{'whole' if group else 'cut'}: {named}{small}" if named else ""
        write(figure, 0.15, 1.3 + 0.62 * len(ways) + 0.26 * line, words)
    legend_of(figure, [(WHOLE, "whole on every rank", ""), (CUT, "cut among the ranks", "")])
    return figure


def _in_one_unit(totals: Mapping[str, int]) -> dict[str, str]:
    """Bytes in the unit of the most, so that they can be compared: `3.97 GiB` and `0.50 GiB`."""
    unit = format_bytes(max(totals.values())).rpartition(" ")[2]
    size = SIZES.get(unit)
    return {name: f"{nbytes / size:.2f} {unit}" if size else f"{nbytes} B" for name, nbytes in totals.items()}
