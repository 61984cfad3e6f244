"""Who owns which elements: a strip a block, in the colours of the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from parlab.arguments import whole
from parlab.views.drawing import marks, picture, theme
from parlab.views.drawing.picture import Picture, plot
from parlab.zero import ShardMap

STRIP, TALLEST = 0.4, 8.0  # inches: of a strip with the space around it, and of all strips together
THICK = 0.34  # half of a strip, of the distance between two
HAT = (-THICK - 0.12, -THICK - 0.03)  # above the strip of a rank that owns one element more
MOST_COLUMNS = 8  # ranks that the text lists one by one

Owned = Mapping[str, Sequence[int]]


class Piece(NamedTuple):
    """Elements `start` to `end` of a block are `rank`'s; `more`: its share has one of those that an even cut leaves."""

    rank: int
    start: int
    end: int
    more: bool


def shard_owners(owned: Owned | ShardMap, *, title: str | None = None) -> Picture:
    """Draw each block as a strip as long as its elements, cut where the owner changes.

    Where the ranks do not divide a block, those that own one element more than the others are marked `+1`.

    Args:
        owned: elements of each block that each rank owns, as `Zero(...).owned` says; or a map of whole blocks, which
            are drawn equally long.
        title: above it; None: how many elements, and how many a rank.

    Raises:
        ValueError: no blocks, blocks with different numbers of ranks, or negative numbers of elements.

    >>> shard_owners({"embedding": [2, 2, 1], "head": [1, 1, 2]})
    9 elements on 3 ranks: 3 each
    block      elements  rank 0  rank 1  rank 2
    embedding         5       2       2       1
    head              4       1       1       2
    all               9       3       3       3
    """
    unit = "blocks" if isinstance(owned, ShardMap) else "elements"
    checked = _checked(owned)
    headline = _headline(checked, unit)
    height = 1.55 + min(TALLEST, STRIP * len(checked))
    left = 0.35 + max(marks.text_width(name, theme.TEXT) for name in checked) / 72
    figure, axes = plot(_table(headline, checked), height, left=left, right=1.15, top=0.75, bottom=0.65)
    _draw_strips(axes, checked)
    _name_axes(axes, checked, unit)
    picture.title(figure, title or headline)
    _legend(figure, len(next(iter(checked.values()))))
    return figure


def _checked(owned: Any) -> dict[str, list[int]]:
    if isinstance(owned, ShardMap):
        of_map = [[int(rank == owner) for rank in range(owned.size)] for owner in owned.owners]
        owned = {f"block {number}": counts for number, counts in enumerate(of_map)}
    if not isinstance(owned, Mapping) or not owned:
        raise ValueError(f"owned={owned!r:.60}: elements by rank are needed for each block, at least one")
    checked = {}
    for block, counts in owned.items():
        if not isinstance(counts, list | tuple) or not counts:
            raise ValueError(f"owned[{block!r}]={counts!r:.60}: a list of elements, one for each rank, is needed")
        checked[str(block)] = [whole(f"owned[{block!r}]", count, 0) for count in counts]
    sizes = {len(counts) for counts in checked.values()}
    if len(sizes) > 1:
        raise ValueError(f"owned has blocks on {sorted(sizes)} ranks: the same number is needed in all")
    return checked


def _totals(owned: Mapping[str, Sequence[int]]) -> list[int]:
    return [sum(of_rank) for of_rank in zip(*owned.values(), strict=True)]


def _headline(owned: Mapping[str, Sequence[int]], unit: str) -> str:
    totals = _totals(owned)
    low, high = min(totals), max(totals)
    if low == high:
        share = f"{low} each"
    elif high == low + 1:
        share = f"{low} each, and {totals.count(high)} of them one more"
    else:
        share = f"{low} to {high} a rank"
    return f"{sum(totals)} {unit} on {len(totals)} rank{'s' if len(totals) > 1 else ''}: {share}"


def _table(headline: str, owned: Mapping[str, Sequence[int]]) -> str:
    width = max(5, *map(len, owned))
    shown = min(len(_totals(owned)), MOST_COLUMNS)
    rows = [headline, f"{'block':<{width}}{'elements':>10}" + "".join(f"{f'rank {rank}':>8}" for rank in range(shown))]
    for name, counts in (*owned.items(), ("all", _totals(owned))):
        cells = "".join(f"{count:>8}" for count in counts[:shown])
        rows.append(f"{name:<{width}}{sum(counts):>10}{cells}" + (" ..." if len(counts) > shown else ""))
    return "\n".join(rows)


def _pieces(counts: Sequence[int]) -> list[Piece]:
    """What each rank owns of a block, in order; ranks that own nothing are left out."""
    uneven = _left_over(counts)
    return [
        Piece(rank, end - count, end, uneven and count == max(counts))
        for rank, (count, end) in enumerate(zip(counts, accumulate(counts), strict=True))
        if count
    ]


def _left_over(counts: Sequence[int]) -> bool:
    """Whether the block is cut as evenly as it can be, and its ranks still differ. A whole block is not cut."""
    return max(counts) == min(counts) + 1 and sum(counts) > 1


def _draw_strips(axes: Axes, owned: Mapping[str, Sequence[int]]) -> None:
    axes.set_xlim(0, max(1, *map(sum, owned.values())))
    axes.set_ylim(len(owned) - 0.5, -0.5)
    for lane, counts in enumerate(owned.values()):
        pieces = _pieces(counts)
        colors = [theme.rank_color(piece.rank) for piece in pieces]
        lanes = [lane] * len(pieces)
        marks.boxes(axes, "strips", pieces, lanes, (-THICK, THICK), colors)
        hats = [piece for piece in pieces if piece.more]
        marks.boxes(axes, "one more", hats, lanes[: len(hats)], HAT, [theme.INK] * len(hats))
        words = [_words(piece) for piece in pieces]
        marks.labels(axes, pieces, lanes, (-THICK, THICK), words, [theme.text_color(color) for color in colors])


def _words(piece: Piece) -> list[str]:
    """From the longest to the shortest: which rank, and whether it has one of the elements left over."""
    if piece.more:
        return [f"rank {piece.rank}, +1", f"{piece.rank}, +1", f"{piece.rank}"]
    return [f"rank {piece.rank}", f"{piece.rank}"]


def _legend(figure: Picture, size: int) -> None:
    """Every eighth rank has the same colour."""
    square = {"linewidth": 9, "solid_capstyle": "butt"}
    every = len(theme.RANKS)
    names = [f"rank {rank}" for rank in range(min(size, every))]
    if size > 2 * every:
        names = [f"{rank}, …" for rank in range(every)]
    elif size > every:
        names = [", ".join(map(str, range(rank, size, every))) for rank in range(every)]
    picture.line_legend(
        figure, [(name, {"color": theme.rank_color(rank), **square}) for rank, name in enumerate(names)]
    )


def _name_axes(axes: Axes, owned: Mapping[str, Sequence[int]], unit: str) -> None:
    axes.set_yticks(range(len(owned)), list(owned))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:g}"))
    hat = "; dark line above, +1: one more than the other ranks" if any(map(_left_over, owned.values())) else ""
    axes.set_xlabel(f"{unit} of a block{hat}", size=theme.TEXT, color=theme.INK)
    marks.beside(axes, range(len(owned)), [str(sum(counts)) for counts in owned.values()], theme.SMALL)
