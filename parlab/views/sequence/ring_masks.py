"""The masks of a cut sequence, in a ring's steps or in packed documents, and how evenly they divide the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from parlab.arguments import checked, optional
from parlab.nn.attention import CAUSAL
from parlab.sequence import RingSchedule, Tile, positions, unmasked_pairs
from parlab.sequence.tiles import kv_hops, sharded_mask
from parlab.views.engine import marks, theme
from parlab.views.engine.arguments import RULES, within
from parlab.views.engine.lanes import legend_of, name_lanes, name_rows
from parlab.views.engine.marks import text_width
from parlab.views.engine.picture import Picture, panel, scale, sheet, write

MOST_TOKENS, MOST_RANKS = 1024, 16
Rule = Callable[[int, int, int], tuple[slice, slice, bool]]  # of rank, source and length of a shard


def _rule(name: str, value: Any) -> None:
    if not callable(value):
        raise ValueError(
            f"{name}={value!r:.60}: must be a function (rank, source, length) that returns two slices and a bool"
        )


DRAWN = RULES | {
    "S": partial(within, most=MOST_TOKENS),
    "size": partial(within, most=MOST_RANKS),
    "rule": optional(_rule),
}
SKIPPED, MASKED = "#FFFFFF", "#E4E4E4"
BARS, TOP = 2.6, 1.1  # inches: of the load on the right, and above the tiles
HALVES = "early", "late"  # of a zigzag shard
LEFT = 0.9  # inches: of the ranks' names
INSET = 2  # points: half of the gap between tiles
SIDE = 4.6  # inches: the square of packed documents
MEAN = {"color": theme.INK, "linewidth": 1.2, "linestyle": (0, (4, 3)), "gid": "mean"}


@checked(DRAWN)
def ring_masks(
    S: int = 32, size: int = 4, layout: str = "contiguous", *, causal: bool = True, rule: Rule | None = None
) -> Picture:
    """Draw, for each rank and step, the pairs of a query (down) and an arriving key (across) that the mask allows.

    Allowed pairs ("seen") have the colour of the keys' rank. Masked pairs are grey. Tiles that no rank computes are
    white. The bars on the right count the seen pairs, which are the work of a rank.

    Args:
        S: tokens in the sequence, at most 1024.
        size: ranks in the ring, at most 16.
        layout: contiguous, zigzag or striped.
        causal: a token sees only itself and earlier tokens.
        rule: finds the tiles of zigzag in place of the library, right or wrong, as lesson 02's exercise does: from the
            rank, the rank of the keys and the tokens of a shard, the slices of queries and of keys, and whether they
            have a causal mask.

    Raises:
        ValueError: too many tokens or ranks, a length that the layout cannot divide, or a rule for another layout or
            that returns something else.
    """
    if rule is not None and (layout, causal) != ("zigzag", True):
        raise ValueError(f"rule={rule!r:.60}: is for layout='zigzag' and causal=True, not {layout!r} and {causal}")
    unmasked_pairs(S, size, layout, causal=causal)  # refuses what cannot be divided
    tiles = _tiles(size, S // size, layout, causal, rule)
    pairs = [sum(tile.pairs for _, tile in row if tile) for row in tiles]
    if not any(pairs):
        raise ValueError(f"rule={rule!r:.60}: selects no pair of a query and a key on any rank")
    headline = _headline(pairs, S, layout, causal)
    words = [", ".join(_in_words(tile) for _, tile in row) for row in _tiles(size, 2, layout, causal, rule)]
    rows = [f"rank {rank}: {pairs[rank]} pairs; {words[rank]}" for rank in range(size)]
    figure = sheet([headline, *rows], _height(size), headline)
    _draw_ring(figure, S, tiles, pairs, halves=layout == "zigzag")
    return figure


def _headline(pairs: list[int], S: int, layout: str, causal: bool) -> str:
    """The headline of a ring: how unevenly the work is divided."""
    ratio = max(pairs) * len(pairs) / sum(pairs)
    kind = "causal" if causal else "no mask"
    setting = f"{layout}, {kind}, {len(pairs)} ranks, {S} tokens"
    if ratio == 1:
        return f"All ranks have the same work: {setting}"
    return f"The slowest rank works {ratio:.3g} times the mean: {setting}"


def _tiles(size: int, length: int, layout: str, causal: bool, rule: Rule | None) -> list[list[tuple[int, Tile | None]]]:
    """For each rank and step: the rank that owns the K/V of `length` tokens, and the tile that is computed."""
    rings = [RingSchedule(rank, size) for rank in range(size)]
    sources = [[ring.rank, *(step.kv_source for step in ring.steps)] for ring in rings]

    def tile(ring: RingSchedule, source: int) -> Tile | None:
        if rule is None:
            return ring.tile(source, length, layout, causal=causal)
        return _as_tile(rule(ring.rank, source, length), length)

    return [[(source, tile(ring, source)) for source in row] for ring, row in zip(rings, sources, strict=True)]


def _as_tile(found: Any, length: int) -> Tile | None:
    """The tile of a learner's rule on shards of `length` tokens; None if it has no pairs."""
    kinds = [type(part) for part in found] if isinstance(found, tuple | list) else []
    if kinds[:2] != [slice, slice] or kinds[2:] not in ([bool], [np.bool_]):
        raise ValueError(f"rule returned {found!r:.80}, expected (slice of queries, slice of keys, whether causal)")
    (top, low, down), (left, right, along) = (part.indices(length) for part in found[:2])
    if (down, along) != (1, 1):
        raise ValueError(f"rule returned {found!r:.80}: slices with a step cannot be drawn")
    queries, keys = slice(top, max(top, low)), slice(left, max(left, right))
    tile = Tile(queries, keys, CAUSAL if found[2] else None)
    return tile if tile.pairs else None


def _in_words(tile: Tile | None) -> str:
    """The mask in words. If it covers only half of a shard (of two tokens), the words say which half."""
    if tile is None:
        return "none"
    if tile.queries.start:
        return f"{tile.mask} (late queries)"
    return f"{tile.mask} (early keys)" if tile.keys.stop < 2 else tile.mask


def _side(size: int) -> float:
    """The side of the square of a ring's tiles, in inches."""
    return min(5.2, max(2.2, 0.62 * size))


def _height(size: int) -> float:
    return TOP + _side(size) + 0.65


def _square(axes: Axes, image: np.ndarray, size: int, first: float, **edges: Any) -> None:
    """An image of `size` × `size` tiles, a row for each rank. The columns begin at `first`."""
    axes.imshow(image, extent=(first, first + size, size - 0.5, -0.5), aspect="auto", interpolation="none")
    for edge in range(1, size):
        axes.axhline(edge - 0.5, **edges)
        axes.axvline(edge + first, **edges)


def _draw_ring(
    figure: Picture, S: int, tiles: list[list[tuple[int, Tile | None]]], pairs: list[int], *, halves: bool
) -> None:
    """Draw a row of tiles for each rank, a column for each step, and beside them the work; `halves`: named."""
    size = len(tiles)
    c, side = S // size, _side(size)
    image = np.full((S, S, 3), to_rgb(SKIPPED))  # a row of tiles for each rank, a column for each step
    for rank, row in enumerate(tiles):
        for step, (source, tile) in enumerate(row):
            if tile is not None:
                rows = image[rank * c : (rank + 1) * c, step * c : (step + 1) * c][tile.queries, tile.keys]
                seen = np.ones(rows.shape[:2], dtype=bool)
                if tile.diagonal is not None:
                    seen = np.tril(seen, tile.diagonal)  # query i of these sees keys 0..i + diagonal
                rows[:] = to_rgb(MASKED)
                rows[seen] = to_rgb(theme.rank_color(source))
    width = theme.WIDTH - BARS - 1.35 - LEFT
    grid = panel(figure, LEFT, TOP, width, side)
    gap = {"color": theme.PAPER, "linewidth": 2 * INSET}
    _square(grid, image, size, 0, **gap)
    for end in (0, size):  # no tile reaches beyond its edge
        grid.axhline(end - 0.5, **gap)
        grid.axvline(end, **gap)
    _edges(grid, size, width, side)
    if halves:
        _name_halves(figure, size, width, side)
    name_lanes(grid, list(range(size)))
    hops, places = ["own", *map(str, range(1, size))], [step + 0.5 for step in range(size)]
    scale(grid.xaxis, "K/V after this many hops", ticks=places, says=hops, line=False, dashes=False)
    _draw_load(panel(figure, theme.WIDTH - BARS - 0.55, TOP, BARS, side), pairs)
    seen_as = theme.rank_color(0), "seen: in the colour of the keys' rank", ""
    legend_of(figure, [seen_as, (MASKED, "masked", ""), (SKIPPED, "skipped", "")])


def _edges(axes: Axes, size: int, width: float, height: float) -> None:
    """The edge of each tile, so that the part that is skipped is seen. `width` and `height` of all are in inches."""
    x, y = INSET / 72 * size / width, INSET / 72 * size / height
    ranks, hops = zip(*np.ndindex(size, size), strict=True)
    tiles = [marks.Interval(hop + x, hop + 1 - x) for hop in hops]
    marks.frames(axes, "tiles", tiles, ranks, (y - 0.5, 0.5 - y), "#999999", linewidths=0.6, zorder=3)


def _name_halves(figure: Picture, size: int, width: float, height: float) -> None:
    """The early and the late keys above the tiles, the early and the late queries beside them, where there is room."""
    wide, tall = width / size, height / size
    if wide / 2 < text_width(f" {HALVES[0]} ") / 72:
        return
    write(figure, LEFT - 0.1, TOP - 0.05, "keys", ha="right", va="baseline")
    write(figure, LEFT + width + 0.06, TOP - 0.05, "queries", va="baseline")
    for tile in range(size):
        for half, name in enumerate(HALVES):
            write(figure, LEFT + wide * (tile + 0.25 + half / 2), TOP - 0.05, name, ha="center", va="baseline")
            middle = TOP + tall * (tile + 0.25 + half / 2)
            write(figure, LEFT + width + 0.06, middle, name, va="center_baseline")


def _draw_load(axes: Axes, load: list[int]) -> None:
    mean, most = sum(load) / len(load), max(load)
    scale(axes.xaxis, "pairs that a rank attends", ends=(0, 1.02 * most), ticks=[mean], says=["mean"])
    name_rows(axes, len(load), line=False)
    marks.bars(axes, "load", 0, load, theme.KINDS["compute"].color, half=0.33)
    axes.axvline(mean, **MEAN)
    for rank, pairs in enumerate(load):
        marks.word(axes, 0.02 * most, rank, f"{pairs}")


@checked(DRAWN)
def packed_ring(documents: Sequence[int], size: int = 4, layout: str = "contiguous") -> Picture:
    """Draw the pairs of a rank's query (down) and a key (across) that the mask allows: causal, and in one document.

    These pairs have the colour of the keys' rank. The hops that each rank's K/V make are on the right.

    Args:
        documents: starts of the packed documents, and the end: [0, ..., S], S at most 1024.
        size: ranks in the ring, at most 16.
        layout: contiguous, zigzag (inside each document) or striped.

    Raises:
        ValueError: too many tokens or ranks, or documents that the layout cannot divide.

    >>> packed_ring([0, 2, 8, 12], 4)
    K/V make 4 of 12 hops, the slowest rank has 1.41 × the mean work
    rank 0: 4 pairs, its K/V make 2 hops
    rank 1: 9 pairs, its K/V make 1 hop
    rank 2: 12 pairs, its K/V make 1 hop
    rank 3: 9 pairs, its K/V make 0 hops
    """
    S = documents[-1]
    within("documents[-1]", S, MOST_TOKENS)
    owned = np.concatenate(positions(S, size, layout, documents))  # [S]: rank by rank
    number = np.searchsorted(documents, owned, side="right")
    seen = (owned[:, None] >= owned[None, :]) & (number[:, None] == number[None, :])  # [S, S]
    pairs = seen.reshape(size, -1).sum(axis=1).tolist()
    travel = kv_hops(sharded_mask(size, S // size, True, layout, documents))
    headline = f"K/V make {sum(travel)} of {size * (size - 1)} hops, the slowest rank has "
    headline += f"{max(pairs) * size / sum(pairs):.3g} × the mean work"
    rows = [
        f"rank {rank}: {pairs[rank]} pairs, its K/V make {hops} {'hop' if hops == 1 else 'hops'}"
        for rank, hops in enumerate(travel)
    ]
    figure = sheet([headline, *rows], SIDE + 1.25, headline)
    axes = panel(figure, 0.9, 0.6, SIDE, SIDE)
    colors = np.array([to_rgb(theme.rank_color(rank)) for rank in range(size)]).repeat(S // size, axis=0)  # [S, 3]
    _square(axes, np.where(seen[:, :, None], colors, 1), size, -0.5, color=theme.GRID, linewidth=1.2)
    name_lanes(axes, list(range(size)))
    scale(axes.xaxis, "keys of rank", ticks=range(size), says=list(map(str, range(size))), dashes=False)
    for rank, row in enumerate(rows):
        top = 0.6 + SIDE * (rank + 0.5) / size
        write(figure, 0.9 + SIDE + 0.3, top, row.partition(": ")[2], theme.TEXT, va="baseline")
    return figure
