"""Ring attention under the learner's hands: its masks, and where its transfers are hidden."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from parlab.sequence import LAYOUTS, overlap_tokens, ring_attention, shard
from parlab.views.attention.masks import MOST_TOKENS, ring_masks
from parlab.views.attention.steps import MOST_RANKS, checked_number
from parlab.views.drawing.picture import Picture
from parlab.views.timelines.timeline import timeline
from parlab.views.widgets.explorer import Explorer, choice, steps
from parlab.world import Cluster, Run, per_rank, run

HEADS, HEAD_SIZE = 4, 8
FLOPS = 1e12  # of each rank, a second


@lru_cache(maxsize=128)
def _ran(layout: str, size: int, tokens: int, kv_heads: int) -> Run:
    shape = (1, HEADS, size * tokens, HEAD_SIZE)
    q = np.zeros(shape, dtype=np.float32)  # the clock does not depend on the values
    k = q[:, :kv_heads]
    pieces = [per_rank(shard(x, size, layout)) for x in (q, k, k)]
    return run(ring_attention, size, *pieces, causal=True, layout=layout)


def ring_overlap(
    layout: str = "zigzag", size: int = 4, tokens: int = 64, kv_heads: int = 4, bandwidth: float = 50e9
) -> Picture:
    """Draw a causal ring attention, 4 heads of size 8 in float32, on ranks of 1 TFLOP/s: `explore_ring_overlap`.

    Args:
        layout: contiguous, zigzag or striped.
        size: ranks, at most 16.
        tokens: of each rank, S/P; at most 1024.
        kv_heads: 1, 2 or 4.
        bandwidth: bytes a second; messages have no latency here.

    Raises:
        ValueError: no such ring, or what `shard` or `Cluster` refuses.
    """
    checked_number("size", size, MOST_RANKS)
    checked_number("tokens", tokens, MOST_TOKENS)
    if kv_heads not in (1, 2, 4):
        raise ValueError(f"kv_heads={kv_heads!r}: 4 query heads share 1, 2 or 4")
    measured = _ran(layout, size, tokens, kv_heads).on(Cluster.uniform(0, bandwidth, flops=FLOPS))
    full = overlap_tokens(FLOPS, bandwidth, 4, kv_heads / HEADS)
    headline = f"{tokens} tokens a rank: {_verdict(layout, tokens, full)}"
    figure = timeline(measured, headline=headline)
    figure.text_shown = f"{headline}\n{figure.text_shown}"
    return figure


def _verdict(layout: str, tokens: int, full: float) -> str:
    """What hides the transfers: full blocks do from `full` tokens on, half-masked ones from twice that on."""
    if tokens >= 2 * full:
        return f"every block hides the next K/V, half-masked ones from {2 * full:g} on"
    if layout != "contiguous":
        return f"too short, half-masked blocks hide the next K/V from {2 * full:g} on"
    if tokens >= full:
        return f"full blocks hide the next K/V, the half-masked first one only from {2 * full:g} on"
    return f"too short, full blocks hide the next K/V from {full:g} on"


def explore_ring_overlap() -> Explorer:
    """Sliders for `ring_overlap`; the bandwidth only changes the clock, no rank runs again."""
    controls = {
        "layout": choice("layout", [(name, name) for name in LAYOUTS], "zigzag"),
        "size": steps("ranks", [(str(n), n) for n in (2, 3, 4, 6, 8)], 4),
        "tokens": steps("tokens a rank", [(str(c), c) for c in (8, 16, 32, 64, 128, 256)], 64),
        "kv_heads": steps("K/V heads, of 4", [(str(g), g) for g in (1, 2, 4)], 4),
        "bandwidth": steps("bandwidth", [(f"{gb} GB/s", gb * 1e9) for gb in (5, 10, 20, 50, 100, 200)], 50e9),
    }
    return Explorer("explore_ring_overlap", controls, ring_overlap)


def explore_ring_masks() -> Explorer:
    """Sliders for `ring_masks`: the layout, the ranks, the tokens of each."""

    def draw(layout: str, size: int, tokens: int, causal: bool) -> Picture:
        return ring_masks(size * tokens, size, layout, causal=causal)

    controls = {
        "layout": choice("layout", [(name, name) for name in LAYOUTS], "contiguous"),
        "size": steps("ranks", [(str(n), n) for n in range(2, 9)], 4),
        "tokens": steps("tokens a rank", [(str(c), c) for c in (2, 4, 8, 16, 32)], 8),
        "causal": choice("mask", [("causal", True), ("none", False)], True),
    }
    return Explorer("explore_ring_masks", controls, draw)
