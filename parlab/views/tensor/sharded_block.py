"""A decoder block cut among tensor-parallel ranks: norms, the owners of each slice of a matrix, messages, residuals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from parlab.arguments import checked
from parlab.nn.llama import LlamaConfig
from parlab.tensor import WeightSlice, block_collectives, weight_slices
from parlab.views.engine import marks, theme
from parlab.views.engine.arguments import RULES
from parlab.views.engine.picture import Picture, line_legend, panel, sheet

LAYER = "model.layers.0"
PARTS = {"attention": ("self_attn", ("q", "k", "v"), "o"), "mlp": ("mlp", ("gate", "up"), "down")}
ENDS = {"attention": ("x", "h"), "mlp": ("h", "y")}  # the stream before and after a part
COLOR: dict[str, Any] = {"marker": "s", "markersize": 9, "linestyle": "none"}  # of a rank, in the legend
KEY = "full colour: a weight; pale: an activation; gaps: cut; a stack of cards: a copy on each of these ranks; "
WAYS, ASKED_WAYS = "→ forward, ← backward", "1 to 8: is anything added here?"
TALLEST, WIDEST, LARGEST = 2.1, 4.6, 0.65  # inches of a matrix, of those of a row together, of the hidden size
TOKENS = 0.5  # inches that stand for S
CUT, COPY, THINNEST = 0.03, 0.055, 0.035  # inches: between slices, between cards, and of a slice that would vanish
TOP, LEFT, RIGHT = 0.95, 0.5, 0.2  # inches around the drawing
WORDS, APART, BEFORE = 0.64, 0.95, 0.35  # inches: for words between two arrays, from k to v, from columns to rows
NORM, PLUS = 0.1, 0.11  # inches: of a norm's weight, which has one number for each of E; of the circle of an addition
WIDER = 0.4  # inches more before the norm, and from columns to rows, where a place is asked about
SLOT = 0.13  # inches: half of a place that is asked about
ABOVE = 0.4  # inches from a row's highest matrix to the residual that passes it
PALE, EDGE = 0.8, 0.02  # white in an activation's colour; inches of its edge
Place = tuple[float, float, float, float]  # left, low, width and height
Groups = Sequence[Sequence[int]]  # the ranks that have each slice, along the axis that is cut


@checked(RULES)
def sharded_block(
    config: LlamaConfig,
    size: int,
    *,
    sequence_parallel: bool = False,
    asked: bool = False,
    headline: str | None = None,
) -> Picture:
    """Draw one decoder block: norms, residuals, matrices in proportion with each slice in its rank's colour, operators.

    Args:
        config: the model's sizes.
        size: t, the tensor-parallel ranks.
        sequence_parallel: every rank has S/t tokens between attention and MLP.
        asked: eight numbered places are shown in place of the operators, which stand in four of them.
        headline: above the figure. None: how it is cut.

    Raises:
        ValueError: no LlamaConfig, or heads or columns do not divide among the ranks.
    """
    text = block_text(config, size, sequence_parallel=sequence_parallel, asked=asked)
    E, M = config.hidden_size, config.intermediate_size
    unit = min(TALLEST / M, WIDEST / (M + 3 * E), LARGEST / E)  # inches
    heights = {"attention": E * unit + WORDS + TOKENS, "mlp": max(M * unit, 2 * (E * unit + WORDS) + TOKENS) + 8 * CUT}
    height = TOP + sum(heights.values()) + 2 * (WORDS + ABOVE) + 0.65
    figure = sheet(text, height, headline or text.partition("\n")[0])
    axes = panel(figure, 0, 0, theme.WIDTH, height)  # in inches; one pair of axes for all, because each costs 20 ms
    axes.set(xlim=(0, theme.WIDTH), ylim=(0, height))
    line_legend(figure, [(f"rank {rank}", {"color": theme.rank_color(rank), **COLOR}) for rank in range(min(size, 8))])
    marks.word(axes, 0.15, height - 0.82, KEY + (ASKED_WAYS if asked else WAYS))
    high = height - TOP - WORDS - ABOVE
    for part in PARTS:
        _row(axes, part, high - heights[part], heights[part], unit, config, size, sequence_parallel, asked)
        high -= heights[part] + WORDS + 0.35 + ABOVE
    return figure


def block_text(config: LlamaConfig, size: int, *, sequence_parallel: bool = False, asked: bool = False) -> str:
    """The text of the drawing: the slices of rank 0, and the collectives of one block, or where they may be."""
    held = "S/t tokens between them" if sequence_parallel else "all tokens between them"
    lines = [
        f"A block among t = {size} ranks: columns, then rows; {held}",
        f"{'weight':>10} {'whole':>14} {'a rank has':>14}  cut",
    ]
    shapes, owned = config.weight_shapes, weight_slices(config, 0, size)
    for part, (_, firsts, last) in PARTS.items():
        for name in (*firsts, last):
            piece, whole = owned[_full(part, name)], shapes[_full(part, name)]
            cut = "along its columns" if piece.axis == 1 else "along its rows"
            shared = f", each slice on {piece.owners} ranks" if piece.owners > 1 else ""
            own = _shape(_own(whole, piece))
            lines.append(f"{name + '_proj':>10} {_shape(whole):>14} {own:>14}  {cut}{shared}")
    if asked:
        places = "between x and norm, norm and columns, columns and rows, rows and +"
        return "\n".join([*lines, f"attention, 1 to 4: {places}", "MLP, 5 to 8: the same"])
    for backward in (False, True):
        calls = block_collectives(config, 1, 1, size, 1, backward=backward, sequence_parallel=sequence_parallel)
        said = ", ".join(f"{call.name} ({call.what})" for call in calls) if size > 1 else "no message"
        lines.append(f"{'backward' if backward else 'forward'}: {said}")
    return "\n".join(lines)


def _row(
    axes: Axes,
    part: str,
    low: float,
    height: float,
    unit: float,
    config: LlamaConfig,
    size: int,
    cut_tokens: bool,
    asked: bool,
) -> None:
    """One part of the block, from left to right: x, a norm, an operator, the matrices, an operator, + x."""
    inner = config.weight_shapes[_full(part, PARTS[part][2])][0] * unit
    middle, across = low + height / 2, config.hidden_size * unit
    columns = max(inner + size * CUT, APART) + (1.8 * APART if part == "attention" else 0)
    last = theme.WIDTH - RIGHT - across - 0.2  # the left side of the stream behind the part
    wider, before = WIDER * asked, BEFORE + WIDER * asked
    norm = LEFT + across + (0.35 if cut_tokens else 0.55) + wider
    begin = norm + NORM + min(COPY * size, 0.3)  # of the way from the norm to the matrices
    operator = (last - begin - across - columns - before) / 2
    first = begin + operator
    second = first + columns + before
    marks.word(axes, 0.15, middle, {"mlp": "MLP"}.get(part, part), theme.TEXT, ha="center", rotation=90)
    cut, said, groups = None, "whole on each", [range(size)]
    operators = [("copy", "nothing", "all-reduce"), ("reduce", "all-reduce", "nothing")]
    if cut_tokens:
        cut, said, groups = 0, "S/t tokens each", [range(rank, rank + 1) for rank in range(size)]
        operators = [("gather", "all-gather", "reduce-scatter"), ("scatter", "reduce-scatter", "all-gather")]
    for name, shown, left in zip(("x", "y"), ENDS[part], (LEFT, last), strict=True):
        _sheet(
            axes, f"{part} {name}", (shown, said), (left, middle - TOKENS / 2, across, TOKENS), cut, groups, pale=True
        )
    _sheet(axes, f"{part} norm", ("norm", ""), (norm, middle - TOKENS / 2, NORM, TOKENS), None, [range(size)])
    stack = LEFT + across + (0 if cut_tokens else 0.3)
    ways = (stack, norm), (begin, first), (first + columns + 0.15, second), (second + across, last - 0.3)
    if asked:
        _slots(axes, part, ways, middle)
    else:
        for number in (1, 3):  # where nothing is sent
            place, at = number + 4 * list(PARTS).index(part), sum(ways[number - 1]) / 2
            marks.word(axes, at, middle, str(place), ha="center", color=theme.FAINT)
        sides = (2, begin - 0.1), (4, second + across)
        for (number, left), (name, sent, back) in zip(sides, operators, strict=True):
            place = number + 4 * list(PARTS).index(part)
            _operator(axes, left, operator, middle, (f"{place}: {name}", sent, back), size)
    _residual(axes, part, LEFT + across / 2, last - 0.22, middle, low + height + ABOVE)
    _matrices(axes, part, first, second, middle, unit, config, size, asked)


def _matrices(
    axes: Axes,
    part: str,
    first: float,
    second: float,
    middle: float,
    unit: float,
    config: LlamaConfig,
    size: int,
    asked: bool,
) -> None:
    """The column matrices from `first` on, above their results, and the row matrix at `second`."""
    _, names, last = PARTS[part]
    owned, across = weight_slices(config, 0, size), config.hidden_size * unit
    wholes = {name: config.weight_shapes[_full(part, name)] for name in (*names, last)}
    shapes = {}
    for name, whole in wholes.items():
        columns = owned[_full(part, name)].axis == 1
        what = " columns" if columns else " rows"
        if size > 1:
            what = " each" if name in "kv" else f"{what}\neach"  # k and v stand close behind q
        shapes[name] = f"{_own(whole, owned[_full(part, name)])[int(columns)]}{what}"
    inner = wholes[last][0] * unit
    stacked = len(names) if part == "mlp" else 1
    left, top = first, middle + (stacked * (across + WORDS) + TOKENS) / 2
    below = top - stacked * (across + WORDS)
    for name, whole in wholes.items():
        piece = owned[_full(part, name)]
        groups = [range(at, at + piece.owners) for at in range(0, size, piece.owners)]
        place = left, top - across, whole[1] * unit, across
        if name == last:
            place = second, middle - (inner + size * CUT) / 2, across, inner
        _sheet(axes, f"matrix {name}", (f"W {name}", shapes[name]), place, piece.axis, groups)
        if part == "mlp":
            top -= across + WORDS
        elif name == "q":
            said = sum(marks.text_width(shapes[near].partition("\n")[0]) for near in "qk") / 72
            left += max(max(inner + size * CUT, 0.7) + 0.35, (inner - wholes["k"][1] * unit + said) / 2 + 0.06)
        else:
            left += APART
    words = "heads" if part == "attention" else "silu(gate) ∘ up", "" if asked else "no message"
    alone: Groups = [[rank] for rank in range(size)]
    _sheet(axes, f"{part} core", words, (first, below - TOKENS, inner, TOKENS), 1, alone, pale=True)


def _sheet(
    axes: Axes, gid: str, words: tuple[str, str], place: Place, axis: int | None, groups: Groups, *, pale: bool = False
) -> None:
    """An array: its slices along `axis` with gaps between them, each a stack of cards, one a rank that has it."""
    left, low, width, height = place
    copies = len(groups[0])
    card = min(COPY, 0.3 / copies)
    gap = CUT + card * (copies - 1)
    wide, tall = (max(side / (len(groups) if axis == cut else 1), THINNEST) for side, cut in ((width, 1), (height, 0)))
    corners, colors = [], []
    for number, ranks in enumerate(groups):
        x = left + number * (wide + gap) if axis == 1 else left
        y = low + (len(groups) - 1 - number) * (tall + gap) if axis == 0 else low
        for behind, rank in reversed(list(enumerate(ranks))):
            corners.append((x + behind * card, y + behind * card))
            colors.append(theme.rank_color(rank))
    lefts, lows = np.array(corners).T
    marks.rectangles(axes, gid, lefts, lefts + wide, lows, lows + tall, colors)
    if pale:
        inside = lefts + EDGE, lefts + wide - EDGE, lows + EDGE, lows + tall - EDGE
        marks.rectangles(axes, f"{gid}, inside", *inside, [theme.paler(color, PALE) for color in colors])
    over = (len(groups) - 1) * gap + (copies - 1) * card
    high = low + height + (over if axis == 0 else (copies - 1) * card)
    middle = left + (width + (over if axis == 1 else 0)) / 2
    marks.word(axes, middle, high + 0.12, words[0], theme.TEXT, ha="center")
    for line, said in enumerate(filter(None, words[1].split("\n"))):
        marks.word(axes, middle, low - 0.12 - 0.17 * line, said, ha="center")


def _operator(axes: Axes, left: float, room: float, middle: float, words: tuple[str, str, str], size: int) -> None:
    """An arrow with the operator's name and its messages: of the forward above, of the backward below."""
    name, sent, back = words
    start, end = left + 0.15, left + room - 0.36
    marks.arrows(axes, [(start, middle)], [(end, middle)], theme.FAINT)
    at = (start + end) / 2
    marks.word(axes, at, middle + 0.38, name, theme.TEXT, ha="center", weight="bold")
    marks.word(axes, at, middle + 0.15, f"→ {sent if size > 1 else 'nothing'}", ha="center")
    marks.word(axes, at, middle - 0.15, f"← {back if size > 1 else 'nothing'}", ha="center")


def _slots(axes: Axes, part: str, ways: Sequence[tuple[float, float]], middle: float) -> None:
    """A numbered, empty place in the middle of each way from left to right."""
    first = 1 + len(ways) * list(PARTS).index(part)
    for number, (start, end) in enumerate(ways, first):
        at = (start + end) / 2
        marks.arrows(axes, [(start + 0.05, middle)], [(end - 0.03, middle)], theme.FAINT)
        look: dict[str, Any] = {
            "facecolors": theme.PAPER,
            "linewidths": 1.2,
            "linestyles": "dashed",
            "zorder": marks.ABOVE,
        }
        marks.frames(axes, f"place {number}", [marks.Interval(at - SLOT, at + SLOT)], [middle], (-SLOT, SLOT), **look)
        marks.word(axes, at, middle, str(number), theme.TEXT, ha="center", weight="bold", zorder=marks.ABOVE + 1)


def _residual(axes: Axes, part: str, start: float, end: float, middle: float, high: float) -> None:
    """The stream's way around a part: from above x, at `start`, to the addition at `end`."""
    corners = [(start, middle + TOKENS / 2 + 0.6), (start, high), (end, high), (end, middle + PLUS)]
    axes.plot(*zip(*corners[:3], strict=True), color=theme.FAINT, linewidth=1.1, gid=f"{part} residual")
    marks.arrows(axes, [corners[2]], [corners[3]], theme.FAINT)
    marks.word(axes, end, middle, "⊕", theme.TITLE, ha="center", gid=f"{part} addition")
    marks.word(axes, (start + end) / 2, high + 0.13, f"residual: {ENDS[part][0]} as it is", ha="center")


def _full(part: str, name: str) -> str:
    return f"{LAYER}.{PARTS[part][0]}.{name}_proj.weight"


def _own(whole: tuple[int, ...], piece: WeightSlice) -> list[int]:
    return [piece.stop - piece.start if axis == piece.axis else n for axis, n in enumerate(whole)]


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape))
