"""The arrays that a rank keeps of a block for its backward, without sequence parallelism and with it."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from parlab.arguments import checked
from parlab.nn.llama import LlamaConfig
from parlab.tensor import llama_kept_by_place
from parlab.views.engine import marks, theme
from parlab.views.engine.arguments import RULES
from parlab.views.engine.lanes import legend_of
from parlab.views.engine.marks import Interval
from parlab.views.engine.picture import Picture, note, panel, sheet
from parlab.world.units import SIZES, format_bytes

WHOLE = "#BBBBBB"  # as in the film of the MLP
GROUPS = {  # the arrays between two operators; the statistics of norms and attention are too small to see
    "x, norm(x)": ("attention_norm.x", "attention.x"),
    "q, k, v, out": ("attention.q", "attention.k", "attention.v", "attention.merged"),
    "h, norm(h)": ("mlp_norm.x", "mlp.x"),
    "gate, up, product": ("mlp.gate", "mlp.up", "mlp.hidden"),
}
OPERATORS = (
    (("copy", "nothing", "all-reduce"), ("reduce", "all-reduce", "nothing")),
    (("gather", "all-gather", "reduce-scatter\n← all-gather again"), ("scatter", "reduce-scatter", "all-gather")),
)  # without sequence parallelism, and with it
ROW_TOPS, TALL = (1.4, 3.1), 0.9  # inches: from the top to the arrays of each row; the height of all tokens
ARRAYS_WIDE, SIDE, GAP, THINNEST = 4.7, 0.2, 0.09, 0.03  # inches


@checked(RULES)
def kept_arrays(
    config: LlamaConfig, size: int, tokens: int, *, itemsize: int = 2, headline: str | None = None
) -> Picture:
    """Draw the arrays that one rank keeps of a block, in their order: without sequence parallelism, and below with it.

    An array is as high as it has tokens, and as wide as it has numbers of a token, so its area is its bytes.

    Args:
        config: the model's sizes.
        size: t, the tensor-parallel ranks.
        tokens: of one sequence.
        itemsize: bytes of a number.
        headline: above the figure. None: both sums.

    Raises:
        ValueError: no LlamaConfig, or heads, columns or tokens do not divide among the ranks.
    """
    ways = [llama_kept_by_place(config, 1, tokens, size, itemsize, sequence_parallel=cut) for cut in (False, True)]
    whole = sum(nbytes for place, nbytes in ways[0].items() if nbytes > ways[1][place])
    before, after, copied = _in_one_unit([*(sum(kept.values()) for kept in ways), whole])
    verdict = f"One of {size} ranks keeps {before} of a block, with sequence parallelism {after}"
    lines = [verdict, f"{'array':>22} {'without':>12} {'with it':>12}"]
    lines += [f"{place:>22} {format_bytes(ways[0][place]):>12} {format_bytes(ways[1][place]):>12}" for place in ways[0]]
    figure = sheet(lines, ROW_TOPS[-1] + TALL + 0.5, headline or verdict)
    legend_of(figure, [(WHOLE, "whole on every rank", ""), (theme.rank_color(0), "rank 0's shard", "")])
    axes = panel(figure, 0, 0, theme.WIDTH, figure.get_figheight())  # in inches
    axes.set(xlim=(0, theme.WIDTH), ylim=(figure.get_figheight(), 0))
    wide = {place: nbytes / tokens for place, nbytes in ways[0].items()}  # bytes of a token
    note(figure, "down: tokens; across: numbers of a token")
    drawn = [place for group in GROUPS.values() for place in group]
    unit = (ARRAYS_WIDE - GAP * len(drawn)) / sum(wide[place] for place in drawn)
    room = (theme.WIDTH - 2 * SIDE - ARRAYS_WIDE) / len(GROUPS)
    for cut, top in enumerate(ROW_TOPS):
        said = f"and sequence parallelism: {after}" if cut else f"tensor parallelism: {before}, of these {copied} whole"
        marks.word(axes, SIDE, top - 0.32, said, theme.TEXT, weight="bold")
        left = SIDE
        for (label, group), operator in zip(GROUPS.items(), 2 * OPERATORS[cut], strict=True):
            first = left
            for place in group:
                right = left + max(unit * wide[place], THINNEST)
                by_tokens = place.endswith(".x")
                high = TALL / size if cut and by_tokens else TALL
                color = WHOLE if by_tokens and not cut and size > 1 else theme.rank_color(0)
                if cut and by_tokens:
                    gone = {"linewidths": 0.8, "linestyles": "dashed"}
                    marks.frames(axes, f"gone {place}", [Interval(left, right)], [top], (0, TALL), theme.FAINT, **gone)
                marks.rectangles(axes, f"{('before', 'after')[cut]} {place}", left, right, top, top + high, color)
                left = right + GAP
            marks.word(axes, (first + left - GAP) / 2, top + TALL + 0.16, label, ha="center")
            _operator(axes, left, left + room, top + TALL / 2, operator)
            left += room
    return figure


def _operator(axes: Axes, left: float, right: float, y: float, words: tuple[str, str, str]) -> None:
    """An arrow to the next arrays, with the operator's name and its messages, forward above and backward below."""
    name, sent, back = words
    middle = (left + right - GAP) / 2
    marks.arrows(axes, [(left + 0.02, y)], [(right - GAP - 0.02, y)], theme.FAINT)
    marks.word(axes, middle, y - 0.34, name, ha="center", weight="bold")
    marks.word(axes, middle, y - 0.13, f"→ {sent}", ha="center")
    for line, said in enumerate(f"← {back}".split("\n")):
        marks.word(axes, middle, y + 0.13 + 0.2 * line, said, ha="center")


def _in_one_unit(sizes: Sequence[int]) -> list[str]:
    """Bytes in the unit of the most, so that they can be compared: `3.97 GiB` and `0.50 GiB`."""
    unit = format_bytes(max(sizes)).rpartition(" ")[2]
    return [f"{nbytes / SIZES[unit]:.2f} {unit}" if unit in SIZES else f"{nbytes} B" for nbytes in sizes]
