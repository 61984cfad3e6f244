"""Which part of every block is work: a rank a row, a step a column, and the load that each rank ends up with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from parlab.sequence import Block, RingSchedule, load_ratio, positions, unmasked_pairs
from parlab.views.drawing import marks, theme
from parlab.views.drawing.film import Film, chips, steps_of, wrapped
from parlab.views.drawing.lanes import legend_of, name_lanes, name_rows
from parlab.views.drawing.marks import Span
from parlab.views.drawing.picture import Picture, panel, png, scale, sheet

MOST_TOKENS, MOST_RANKS = 1024, 16
SKIPPED, MASKED = "#FFFFFF", "#E4E4E4"
BARS, TOP = 2.6, 1.1  # inches: for the load, on the right, and above the blocks
LEFT, HOLDING = 0.9, 1.7  # inches: for the ranks' names, and for the K/V that they hold


def ring_masks(S: int = 32, size: int = 4, layout: str = "contiguous", *, causal: bool = True) -> Picture:
    """Draw, for every rank and step, which of its queries (down) see which of the arriving keys (across).

    Seen pairs have the colour of the rank that the keys come from, hidden ones are grey; what is never computed is
    white. The bars on the right count the seen pairs: a rank's work.

    Args:
        S: tokens in the sequence, at most 1024.
        size: ranks in the ring, at most 16.
        layout: contiguous, zigzag or striped.
        causal: a token sees itself and earlier ones only.

    Raises:
        ValueError: too many, or a length that the layout cannot deal out.
    """
    checked_number("S", S, MOST_TOKENS)
    checked_number("size", size, MOST_RANKS)
    headline = masks_headline(S, size, layout, causal)
    rows = [
        f"rank {rank}: {pairs} pairs; " + ", ".join(mask_in_words(*at, layout, causal) for at in sources_of(rank, size))
        for rank, pairs in enumerate(unmasked_pairs(S, size, layout, causal=causal))
    ]
    figure = masks_sheet([headline, *rows], size, headline)
    draw_masks(figure, S, size, layout, causal)
    return figure


def masks_headline(S: int, size: int, layout: str, causal: bool) -> str:
    """How uneven the work is."""
    ratio = load_ratio(S, size, layout, causal=causal)
    kind = "causal" if causal else "no mask"
    return f"{layout}, {kind}, {size} ranks, {S} tokens: the slowest rank has {ratio:.3g} × the mean work"


def masks_side(size: int) -> float:
    """Inches of the square of blocks."""
    return min(5.2, max(2.2, 0.62 * size))


def masks_sheet(text: str | Iterable[str], size: int, headline: str) -> Picture:
    """A picture as high as `draw_masks` needs it."""
    return sheet(text, TOP + masks_side(size) + 0.65, headline)


def draw_masks(
    figure: Picture, S: int, size: int, layout: str, causal: bool, left: float = LEFT, steps: int | None = None
) -> None:
    """The square of blocks, from `left` inches on, of `steps` columns (None: all), and beside it the load so far."""
    side, shown = masks_side(size), size if steps is None else steps
    grid = panel(figure, left, TOP, theme.WIDTH - BARS - 1.35 - left, side)
    image = _image(S, size, layout, causal)
    image[:, shown * (S // size) :] = 1
    grid.imshow(image, extent=(0, size, size - 0.5, -0.5), aspect="auto", interpolation="none")
    for edge in range(1, size):
        grid.axhline(edge - 0.5, color=theme.PAPER, linewidth=3)
        grid.axvline(edge, color=theme.PAPER, linewidth=3)
    name_lanes(grid, list(range(size)), words=left == LEFT)
    hops, places = ["own", *map(str, range(1, size))], [step + 0.5 for step in range(size)]
    scale(grid.xaxis, "K/V after this many hops", ticks=places, says=hops, line=False, dashes=False)
    blocks = [
        [ring.block((ring.rank - step) % size, S // size, layout, causal=causal) for step in range(shown)]
        for ring in (RingSchedule(rank, size) for rank in range(size))
    ]
    load = [sum(block.pairs for block in row if block) for row in blocks]
    at_end = unmasked_pairs(S, size, layout, causal=causal)
    _draw_load(panel(figure, theme.WIDTH - BARS - 0.55, TOP, BARS, side), load, at_end)
    seen = theme.rank_color(0), "seen: in the colour of the keys' rank", ""
    legend_of(figure, [seen, (MASKED, "masked", ""), (SKIPPED, "skipped", "")])


def sources_of(rank: int, size: int) -> list[tuple[int, int, int]]:
    """For each step, `(rank, source, size)`: whose K/V the rank attends."""
    sources = [rank, *(step.kv_source for step in RingSchedule(rank, size).steps)]
    return [(rank, source, size) for source in sources]


def mask_in_words(rank: int, source: int, size: int, layout: str, causal: bool) -> str:
    """What `rank` attends of the K/V of rank `source`."""
    block = RingSchedule(rank, size).block(source, 2, layout, causal=causal)
    return "none" if block is None else f"{block.mask}{_half(block)}"


def _half(block: Block) -> str:
    """Which part of a shard of two tokens the block is, if not the whole."""
    if block.queries.start:
        return " (late queries)"
    return " (early keys)" if block.keys.stop < 2 else ""


def _image(S: int, size: int, layout: str, causal: bool) -> np.ndarray:  # [S, S, 3]
    """Every block's pairs as pixels, rank by rank down and step by step across; seen ones from the token positions."""
    c = S // size
    owned = np.array(positions(S, size, layout))  # [P, c]
    image = np.full((S, S, 3), to_rgb(SKIPPED))
    for rank in range(size):
        ring = RingSchedule(rank, size)
        for step in range(size):
            source = (rank - step) % size
            block = ring.block(source, c, layout, causal=causal)
            if block is None:
                continue
            pixels = image[rank * c : (rank + 1) * c, step * c : (step + 1) * c]
            pixels[block.queries, block.keys] = to_rgb(MASKED)
            seen = owned[rank][:, None] >= owned[source][None, :] if causal else np.ones((c, c), dtype=bool)
            pixels[seen] = to_rgb(theme.rank_color(source))
    return image


def _draw_load(axes: Axes, load: list[int], at_end: list[int]) -> None:
    mean = sum(at_end) / len(at_end)
    scale(axes.xaxis, "pairs that a rank attends", ends=(0, 1.02 * max(at_end)), ticks=[mean], says=["mean"])
    name_rows(axes, len(load), line=False)
    marks.bars(axes, "load", 0, load, theme.KINDS["compute"].color, half=0.33)
    axes.axvline(mean, color=theme.INK, linewidth=1.2, linestyle=(0, (4, 3)), gid="mean")
    for rank, pairs in enumerate(load):
        marks.word(axes, 0.02 * max(at_end), rank, f"{pairs}")


def checked_number(name: str, value: object, most: int) -> None:
    """Refuse, with a ValueError, what is no whole number from 1 to `most`: more cannot be drawn."""
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{name}={value!r}: must be a whole number from 1 to {most}")


def ring_film(size: int, layout: str, S: int, *, causal: bool) -> Film:
    """For `step_through`: the K/V that every rank holds, and below each hop the blocks attended so far."""
    checked_number("S", S, MOST_TOKENS)
    checked_number("size", size, MOST_RANKS)
    headline = masks_headline(S, size, layout, causal)
    lines = [_line(step, size, layout, causal) for step in range(size)]
    return Film(headline, lines, steps_of(size), lambda place: png(_frame(headline, place, size, layout, S, causal)))


def _frame(headline: str, place: float, size: int, layout: str, S: int, causal: bool) -> Picture:
    step = int(place)
    figure = masks_sheet(headline, size, headline)
    draw_masks(figure, S, size, layout, causal, left=LEFT + HOLDING + 0.4, steps=step + 1)
    axes = panel(figure, LEFT, TOP, HOLDING, masks_side(size))
    name_lanes(axes, list(range(size)))
    below: Any = {
        "ticks": [0.5],
        "says": ["holds the K/V of rank"],
        "size": theme.SMALL,
        "line": False,
        "dashes": False,
    }
    scale(axes.xaxis, ends=(-0.1, 1), **below)
    sources = [sources_of(rank, size)[step][1] for rank in range(size)]
    moved = wrapped([rank + place - step for rank in range(size)], size)
    placed = [(Span(0, 1), lane, source) for both, source in zip(moved, sources, strict=True) for lane in both]
    chips(axes, "K/V", placed, (-0.25, 0.25))
    return figure


def _line(step: int, size: int, layout: str, causal: bool) -> str:
    def attends(rank: int) -> str:
        at = sources_of(rank, size)[step]
        return f"rank {rank} attends the K/V of rank {at[1]}: {mask_in_words(*at, layout, causal)}"

    start = "start: every rank has its own K/V" if step == 0 else f"hop {step} of {size - 1}"
    return f"{start}; " + "; ".join(map(attends, range(size)))
