"""The number of tokens from which the work of ring attention hides its transfers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from parlab.arguments import checked, finite, optional
from parlab.sequence import AttentionShape, hidden_from, overlap_tokens, pair_flops, ring_attention, ring_time, shard
from parlab.views.arguments import RULES, within
from parlab.views.attention.masks import MOST_RANKS
from parlab.views.drawing import theme
from parlab.views.drawing.picture import Picture, curve, line_legend, plot, scale
from parlab.views.widgets.explorer import BANDWIDTHS, Explorer, steps
from parlab.world import Cluster, Run, per_rank, run
from parlab.world.units import format_time

HEADS, HEAD_SIZE = 4, 8
FLOPS = 1e12  # of each rank, a second
TOKENS = (2, 4, 8, 16, 32, 64, 80, 128, 256)  # of each rank: a dot each
ENDS = (1.6, 470)  # of the axis of tokens
FREE = Cluster.uniform(0.0, 1e30, flops=FLOPS)
LINES = {"contiguous": curve("#D55E00", "dotted"), "zigzag": curve("#0072B2", "solid")}


@lru_cache(maxsize=256)
def _ran(layout: str, size: int, tokens: int, kv_heads: int) -> Run:
    shape = (1, HEADS, size * tokens, HEAD_SIZE)
    q = np.zeros(shape, dtype=np.float32)  # the clock does not depend on the values
    k = q[:, :kv_heads]
    pieces = [per_rank(shard(x, size, layout)) for x in (q, k, k)]
    return run(ring_attention, size, *pieces, causal=True, layout=layout)


def _zigzag_part(size: int, tokens: int, kv_heads: int, cluster: Cluster, kernel: float) -> float:
    """The share of the time in which zigzag's ranks compute, by the formula: no rank runs."""
    shape = AttentionShape(size * tokens, HEADS, kv_heads, HEAD_SIZE, 4)
    return ring_time(shape, size, FREE.reaching(kernel)) / ring_time(shape, size, cluster)


def bound_function(name: str, value: Any) -> None:
    """ValueError unless `value`, the argument called `name`, can be called."""
    if not callable(value):
        raise ValueError(f"{name}={value!r:.60}: must be a function (flops, nbytes, F, W) that returns tokens")


@checked(RULES | {"size": partial(within, most=MOST_RANKS, least=2), "bound": optional(bound_function)})
def ring_overlap(
    size: int = 4,
    kv_heads: int = 4,
    bandwidth: float = 50e9,
    kernel: float = 1.0,
    latency: float = 0.0,
    bound: Callable[[int, int, float, float], float] | None = None,
) -> Picture:
    """Draw the share of the time in which the ranks of a causal ring compute, against the tokens of a rank.

    The simulated clock finds it for 4 heads of size 8 in float32, on ranks with a peak of 1 TFLOP/s. The vertical line
    is the bound of zigzag: from there on, half a tile takes as long as the transfer of the next K/V. There, at the next
    even number of tokens, zigzag's line bends: that place is computed by formula, and has no dot.

    Args:
        size: ranks, 2 to 16.
        kv_heads: 1, 2 or 4.
        bandwidth: bytes a second.
        kernel: the fraction of the peak that attention reaches, at most 1.
        latency: seconds of each message before its first byte.
        bound: finds the vertical line in place of the library, as `parlab.sequence.hidden_from` does, from the
            operations of a pair, the bytes of a token's K/V, and both of a second. So it knows no latency.

    Raises:
        ValueError: no such ring, a link that `Cluster` refuses, or a bound that is no function or no number.
    """
    if kv_heads not in (1, 2, 4):
        raise ValueError(f"kv_heads={kv_heads!r}: 4 query heads share 1, 2 or 4")
    cluster = Cluster.uniform(latency, bandwidth, flops=FLOPS).reaching(kernel)
    width = HEADS * HEAD_SIZE
    hidden = overlap_tokens(
        kernel * FLOPS, bandwidth, 4, kv_heads / HEADS, half_masked=True, latency=latency, width=width
    )
    pair, kv = pair_flops(1, 1, HEADS, HEAD_SIZE), 2 * kv_heads * HEAD_SIZE * 4
    line = hidden if bound is None else bound(pair, kv, kernel * FLOPS, bandwidth)
    finite("bound(flops, nbytes, F, W)", line)
    parts = {}
    for layout in LINES:
        timelines = [_ran(layout, size, c, kv_heads).on(cluster) for c in TOKENS]
        parts[layout] = [sum(map(one.busy, range(size))) / (size * one.makespan) for one in timelines]
    points = {layout: dict(zip(TOKENS, computing, strict=True)) for layout, computing in parts.items()}
    bend = 2 * math.ceil(hidden / 2)  # a shard of zigzag has two pieces
    if bend not in TOKENS and TOKENS[0] < bend < ENDS[1]:
        points["zigzag"][bend] = _zigzag_part(size, bend, kv_heads, cluster, kernel)
    headline = f"{size} ranks: zigzag hides every transfer from {bend} tokens a rank on"
    rows = [f"{'tokens a rank':<13}" + "".join(f"{c:>6}" for c in TOKENS)]
    rows += [f"{layout:<13}" + "".join(f"{part:>6.0%}" for part in computing) for layout, computing in parts.items()]
    figure, axes = plot([headline, *rows], 3.9, headline, left=0.95, top=0.8)
    scale(axes.xaxis, "tokens a rank", ends=ENDS, log=2, ticks=TOKENS, says="{:g}".format)
    scale(axes.yaxis, "of the time, ranks compute", ends=(0, 1.05), says="{:.0%}".format, grid=True)
    for layout, part in points.items():
        along = sorted(part)
        dots = {"marker": "o", "markersize": 6, "markevery": list(map(along.index, TOKENS))}
        axes.plot(along, [part[c] for c in along], gid=layout, **dots, **LINES[layout])
    axes.axvline(line, color=theme.INK, linewidth=1.2, gid="bound")
    name = "the bound" if bound in (None, hidden_from) else "your bound"
    line_legend(figure, [*LINES.items(), (name, {"color": theme.INK, "linewidth": 1.2})])
    return figure


@checked({"bound": optional(bound_function)})
def explore_ring_overlap(bound: Callable[[int, int, float, float], float] | None = None) -> Explorer:
    """Sliders for `ring_overlap`. A new bandwidth changes the clock alone, and no rank runs again.

    Args:
        bound: a learner's function that finds the vertical line, as `parlab.sequence.hidden_from` does; None: ours.

    Raises:
        ValueError: it is no function.
    """
    controls = {
        "size": steps("ranks", (2, 3, 4, 8), 4),
        "kv_heads": steps("K/V heads, of 4", (1, 2, 4), 4),
        "bandwidth": steps("bandwidth", BANDWIDTHS[4:], 50e9),
        "kernel": steps("kernel, of the peak", (0.4, 0.5, 0.65, 0.8, 1.0), 1.0),
        "latency": steps(
            "latency", [(format_time(round(late * 1e12)), late) for late in (0.0, 0.5e-6, 1e-6, 2e-6)], 0.0
        ),
    }
    return Explorer("explore_ring_overlap", controls, partial(ring_overlap, bound=bound))
