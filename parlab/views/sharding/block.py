"""A decoder block cut among tensor-parallel ranks: who owns which slice of each matrix, and what travels where."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from parlab.nn.llama import LlamaConfig
from parlab.tensor import Piece, block_collectives, pieces
from parlab.views.drawing import marks, theme
from parlab.views.drawing.picture import Picture, line_legend, title

UNIT, ABOVE = 0.95, 0.85  # inches: of the drawing's unit, and of title and legend
WHOLE = "#D9D9D9"  # what every rank has
LAYER = "model.layers.0"
ROWS = {"attention": ("self_attn", ("q", "k", "v"), "o", "heads"), "mlp": ("mlp", ("gate", "up"), "down", "silu ∘")}
X, ENTER, FIRST, CORE, LAST, LEAVE, Y = 0.0, 1.35, 2.1, 5.5, 6.6, 8.25, 9.05  # where things stand, from left to right
SIDE, STEP = 0.85, 1.15
LOW = {"attention": 1.85, "mlp": 0.0}
SAID = 8.0  # points: what an operator sends


def sharded_block(config: LlamaConfig, size: int, *, sequence_parallel: bool = False) -> Picture:
    """Draw one decoder block: each matrix in the colours of the ranks that own its slices, and the four operators.

    Args:
        config: the model's sizes.
        size: t, the tensor-parallel ranks.
        sequence_parallel: between the parts every rank has S/t tokens.

    Raises:
        ValueError: heads or columns do not divide among the ranks.
    """
    text = block_text(config, size, sequence_parallel=sequence_parallel)
    return draw_block(text, text.partition("\n")[0], config, size, sequence_parallel=sequence_parallel)[0]


def block_text(config: LlamaConfig, size: int, *, sequence_parallel: bool = False) -> str:
    """What the drawing says: the slices of rank 0, and the collectives of one block."""
    held = "S/t tokens between them" if sequence_parallel else "all tokens between them"
    lines = [
        f"A block among t = {size} ranks: columns, then rows; {held}",
        f"{'weight':>10} {'whole':>14} {'a rank has':>14}  cut",
    ]
    shapes, owned = config.weight_shapes, pieces(config, 0, size)
    for part, firsts, last, _ in ROWS.values():
        for name in (*firsts, last):
            full = f"{LAYER}.{part}.{name}_proj.weight"
            piece, whole = owned[full], shapes[full]
            own = [piece.stop - piece.start if axis == piece.axis else n for axis, n in enumerate(whole)]
            cut = "along its columns" if piece.axis == 1 else "along its rows"
            shared = f", each slice on {piece.owners} ranks" if piece.owners > 1 else ""
            lines.append(f"{name + '_proj':>10} {_shape(whole):>14} {_shape(own):>14}  {cut}{shared}")
    for backward in (False, True):
        calls = block_collectives(config, 1, 1, size, 1, backward=backward, sequence_parallel=sequence_parallel)
        said = ", ".join(f"{call.name} ({call.what})" for call in calls) if size > 1 else "no message"
        lines.append(f"{'backward' if backward else 'forward'}: {said}")
    return "\n".join(lines)


def draw_block(
    text: str, headline: str, config: LlamaConfig, size: int, *, sequence_parallel: bool = False, below: float = 0.0
) -> tuple[Picture, Axes]:
    """The drawing of `sharded_block`, with room for `below` units under it.

    One pair of axes without ticks, because each further one costs 20 ms. A unit is 0.9 inches.
    """
    lowest, highest = -0.5 - below, LOW["attention"] + SIDE + 0.35
    height = UNIT * (highest - lowest) + ABOVE
    figure = Picture(text, theme.WIDTH, height)
    axes = figure.add_axes((0.01, 0, 0.98, 1 - ABOVE / height))
    axes.set_axis_off()
    axes.set_xlim(-0.6, Y + SIDE + 0.55)
    axes.set_ylim(lowest, highest)
    title(figure, headline)
    rank_legend(figure, size)
    owned = [pieces(config, rank, size) for rank in range(size)]
    for row, (part, firsts, last, core) in ROWS.items():
        low = LOW[row]
        names = {name: f"{LAYER}.{part}.{name}_proj.weight" for name in (*firsts, last)}
        for place, name in [*((FIRST + STEP * i, name) for i, name in enumerate(firsts)), (LAST, last)]:
            _matrix(axes, name, place, low, config.weight_shapes[names[name]], [own[names[name]] for own in owned])
        _activations(axes, row, low, size, core, sequence_parallel)
        _operators(axes, row, low, size, sequence_parallel)
    return figure, axes


def _matrix(axes: Axes, name: str, left: float, low: float, shape: tuple[int, ...], owned: list[Piece]) -> None:
    """A square, its slices in the colours of their owners; where several share one, each has a part of the slice."""
    sides: dict[str, list[float]] = {"left": [], "right": [], "low": [], "high": []}
    for rank, (axis, start, stop, owners) in enumerate(owned):
        length = shape[axis or 0]
        along = SIDE * start / length, SIDE * stop / length
        across = SIDE * (rank % owners) / owners, SIDE * (rank % owners + 1) / owners
        x, y = (along, across) if axis == 1 else (across, along)
        sides["left"].append(left + x[0])
        sides["right"].append(left + x[1])
        sides["low"].append(low + SIDE - y[1])
        sides["high"].append(low + SIDE - y[0])
    colors = [theme.rank_color(rank) for rank in range(len(owned))]
    marks.rectangles(axes, f"matrix {name}", sides["left"], sides["right"], sides["low"], sides["high"], colors)
    axis, start, stop, _ = owned[0]
    own = [stop - start if number == axis else n for number, n in enumerate(shape)]
    word(axes, left + SIDE / 2, low + SIDE + 0.1, f"W {name}", theme.TEXT)
    word(axes, left + SIDE / 2, low - 0.13, _shape(own), theme.SMALL)


def _activations(axes: Axes, row: str, low: float, size: int, core: str, sequence_parallel: bool) -> None:
    """x and y, whole or some tokens a rank, and what is between columns and rows: some columns a rank."""
    edges = [low + SIDE * (1 - rank / size) for rank in range(size + 1)]
    colors = [theme.rank_color(rank) for rank in range(size)]
    for name, left in (("x", X), ("y", Y)):
        if sequence_parallel:
            sides = [left] * size, [left + 0.6] * size, edges[1:], edges[:-1]
            marks.rectangles(axes, f"{row} {name}", *sides, colors)
        else:
            marks.rectangles(axes, f"{row} {name}", [left], [left + 0.6], [low], [low + SIDE], [WHOLE])
        word(axes, left + 0.3, low + SIDE + 0.1, name, theme.TEXT)
        word(axes, left + 0.3, low - 0.13, "S/t tokens each" if sequence_parallel else "whole on each", theme.SMALL)
    width = SIDE / size
    lefts = [CORE + rank * width for rank in range(size)]
    rights = [left + width for left in lefts]
    marks.rectangles(axes, f"{row} core", lefts, rights, [low] * size, [low + SIDE] * size, colors)
    word(axes, CORE + SIDE / 2, low + SIDE + 0.1, core, theme.TEXT)
    word(axes, CORE + SIDE / 2, low - 0.13, "no message", theme.SMALL)
    word(axes, -0.33, low + SIDE / 2, row, theme.TEXT, rotation=90)


def _operators(axes: Axes, row: str, low: float, size: int, sequence_parallel: bool) -> None:
    """The two operators of a row, each with what it sends forward (above) and backward (below)."""
    cut = {ENTER: ("gather", "all-gather", "reduce-scatter"), LEAVE: ("scatter", "reduce-scatter", "all-gather")}
    whole = {ENTER: ("copy", "nothing", "all-reduce"), LEAVE: ("reduce", "all-reduce", "nothing")}
    middle = low + SIDE / 2
    tails = [(X + 0.62, middle), (ENTER + 0.36, middle), (LAST + SIDE + 0.02, middle), (LEAVE + 0.42, middle)]
    heads = [(ENTER - 0.36, middle), (FIRST - 0.03, middle), (LEAVE - 0.42, middle), (Y - 0.03, middle)]
    marks.arrows(axes, tails, heads, theme.FAINT)
    for place, (name, sent, back) in (cut if sequence_parallel else whole).items():
        word(axes, place, middle + 0.13, name, theme.TEXT, weight="bold")
        word(axes, place, middle + 0.38, f"→ {sent if size > 1 else 'nothing'}", SAID)
        word(axes, place, middle - 0.22, f"← {back if size > 1 else 'nothing'}", SAID)


def word(axes: Axes, x: float, y: float, text: str, size: float, **style: Any) -> None:
    """`text` around a point."""
    axes.text(x, y, text, size=size, color=theme.INK, ha="center", va="center", **style)


def _shape(shape: Any) -> str:
    return " × ".join(map(str, shape))


def rank_legend(figure: Picture, size: int) -> None:
    """Name the ranks' colours."""
    square = {"linewidth": 9, "solid_capstyle": "butt"}
    line_legend(figure, [(f"rank {rank}", {"color": theme.rank_color(rank), **square}) for rank in range(min(size, 8))])
