"""Ring attention, hop by hop: whose K/V a rank has, which part of its block is work, and how much it has done."""

from __future__ import annotations

from parlab.views.attention.masks import (
    MOST_RANKS,
    MOST_TOKENS,
    TOP,
    checked_number,
    draw_masks,
    mask_in_words,
    masks_headline,
    masks_sheet,
    masks_side,
    sources_of,
)
from parlab.views.drawing import theme
from parlab.views.drawing.film import Film, chips, steps_of, wrapped
from parlab.views.drawing.lanes import name_lanes
from parlab.views.drawing.marks import Span
from parlab.views.drawing.picture import Picture, panel, png, scale

HOLDING = 1.7  # inches for the K/V on the left


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
    draw_masks(figure, S, size, layout, causal, left=0.9 + HOLDING + 0.4, steps=step + 1)
    figure.axes[0].set_yticks([])
    axes = panel(figure, 0.9, TOP, HOLDING, masks_side(size))
    name_lanes(axes, list(range(size)))
    scale(axes.xaxis, ends=(-0.1, 1), ticks=[0.5], says=["holds the K/V of rank"], line=False, dashes=False)
    axes.tick_params(axis="x", labelsize=theme.SMALL)
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
