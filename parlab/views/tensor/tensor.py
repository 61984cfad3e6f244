"""The time of a block on t ranks of tensor parallelism."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from parlab.arguments import checked, one_of, whole
from parlab.nn import LlamaConfig
from parlab.nn.published import LLAMA_8B, LLAMA_70B, LLAMA_405B
from parlab.tensor import Time, block_time
from parlab.views.engine import marks, theme
from parlab.views.engine.arguments import RULES
from parlab.views.engine.explore import Explorer, choice, steps
from parlab.views.engine.lanes import legend_of
from parlab.views.engine.picture import Picture, plot, scale, write
from parlab.world import DGX_H100, Cluster
from parlab.world.cluster import REACHED
from parlab.world.units import format_time

MODELS = {"Llama 3 8B": LLAMA_8B, "Llama 3 70B": LLAMA_70B, "Llama 3 405B": LLAMA_405B}
SIZES = (1, 2, 4, 8, 16, 32, 64)
JOINED = (8, 16, 32, 64)  # GPUs of a node
FARTHEST = 32  # ranks, where a node is smaller
ITEMSIZE = 2  # bytes of an element: 16 bits
COMPUTE, MESSAGES = theme.KINDS["compute"].color, theme.KINDS["send"].color
LATENCY = theme.paler(MESSAGES, 0.6)


def whole_nodes(name: str, value: Any) -> None:
    """The rule of a node's ranks: each of `SIZES` that is larger must fill whole nodes."""
    whole(name, value, 1)
    if any(t % value for t in SIZES if t > value):
        sizes = ", ".join(map(str, SIZES))
        raise ValueError(f"{name}={value!r}: groups of {sizes} ranks must fill nodes; use one of these, or more")


@checked(RULES | {"model": partial(one_of, choices=tuple(MODELS)), "ranks_per_node": whole_nodes})
def tensor(model: str = "Llama 3 405B", S: int = 8192, ranks_per_node: int = 8) -> Picture:
    """Draw the GPU time of one block of a Llama on t H100s, forward and backward. `explore_tensor` shows this.

    A bar is t times as high as the block takes: without messages all bars would be equal. Its words say the time.

    There is one sequence of 16-bit numbers without sequence parallelism. The times are those of the simulated clock,
    from closed forms that tests compare with runs, computing and sending one after the other; products reach `REACHED`
    of the peak. Of the sending the part that links without latency would take, the bytes, is dark; the latency of the
    hops is pale. In more than one node a ring runs through each of a node's network cards. The efficiency is the time
    of one rank over the time of t ranks together.

    Args:
        model: one of `MODELS`. t goes as far as its heads, to 32, and to 64 where NVLink joins so many.
        S: tokens.
        ranks_per_node: the GPUs that NVLink joins.

    Raises:
        ValueError: an unknown model, no tokens, or nodes that the groups do not fill.

    >>> tensor("Llama 3 8B", S=1024)
    Llama 3 8B: t = 8 takes the least time, and is 45% efficient
    1024 tokens, H100s in nodes of 8
      t   computing     sending its latency        both  efficiency
      1     2.13 ms         0 s         0 s     2.13 ms        100%
      2     1.07 ms      102 µs     27.2 µs     1.17 ms         91%
      4      533 µs      193 µs     81.6 µs      726 µs         73%
      8      266 µs      321 µs      190 µs      587 µs         45%
     16      138 µs     1.33 ms     1.17 ms     1.47 ms          9%
     32     74.1 µs     2.59 ms     2.42 ms     2.67 ms          2%
    """
    config = MODELS[model]
    cluster = replace(DGX_H100, ranks_per_node=ranks_per_node).reaching(REACHED)
    sizes = [t for t in SIZES if config.num_attention_heads % t == 0 and t <= max(FARTHEST, ranks_per_node)]
    times = [_both_ways(config, S, t, cluster) for t in sizes]
    intra, inter = (replace(link, latency=0) for link in (cluster.intra, cluster.inter))
    at_once = replace(cluster, intra=intra, inter=inter)
    nbytes = [_both_ways(config, S, t, at_once).messages for t in sizes]
    shares = [sum(times[0]) / (t * sum(time)) for t, time in zip(sizes, times, strict=True)]
    best = min(range(len(sizes)), key=lambda number: sum(times[number]))
    headline = f"{model}: t = {sizes[best]} takes the least time, and is {shares[best]:.0%} efficient"
    setting = f"{S} tokens, H100s in nodes of {ranks_per_node}"
    lines = [headline, setting, f"{'t':>3}   computing     sending its latency        both  efficiency"]
    for t, (compute, messages), bytes_alone, share in zip(sizes, times, nbytes, shares, strict=True):
        shown = "".join(
            f"{format_time(time):>12}" for time in (compute, messages, messages - bytes_alone, compute + messages)
        )
        lines.append(f"{t:>3}{shown}{share:>12.0%}")
    figure, axes = plot(lines, 4.4, headline, left=0.5, right=0.3, top=0.85, bottom=0.65)
    _draw(axes, sizes, times, nbytes, shares, ranks_per_node)
    legend_of(figure, [(COMPUTE, "computing", ""), (MESSAGES, "sending: bytes", ""), (LATENCY, "sending: latency", "")])
    write(figure, 4.85, 0.475, setting)
    return figure


def _both_ways(config: LlamaConfig, S: int, size: int, cluster: Cluster) -> Time:
    """Picoseconds of computing and of sending, forward and backward, of a block on one of `size` ranks."""
    passes = [
        block_time(config, 1, S, size, ITEMSIZE, cluster, backward=backward, algorithm="rings")
        for backward in (False, True)
    ]
    return Time(*map(sum, zip(*passes, strict=True)))


def _draw(
    axes: Axes, sizes: list[int], times: list[Time], nbytes: list[int], shares: list[float], ranks_per_node: int
) -> None:
    """A bar for each t: the time of t GPUs."""
    places = np.arange(len(sizes))
    compute = [t * time.compute for t, time in zip(sizes, times, strict=True)]
    sent = [t * (time.compute + bytes_alone) for t, time, bytes_alone in zip(sizes, times, nbytes, strict=True)]
    both = [t * sum(time) for t, time in zip(sizes, times, strict=True)]
    scale(axes.xaxis, ends=(-0.6, len(sizes) - 0.4), ticks=places, says=[f"t = {t}" for t in sizes])
    scale(axes.yaxis, "GPU time: t × the time", ends=(0, 1.15 * max(both)), ticks=())
    marks.rectangles(axes, "computing", places - 0.36, places + 0.36, 0, compute, COMPUTE)
    marks.rectangles(axes, "bytes", places - 0.36, places + 0.36, compute, sent, MESSAGES)
    marks.rectangles(axes, "latency", places - 0.36, places + 0.36, sent, both, LATENCY)
    for place, (top, time, share) in enumerate(zip(both, times, shares, strict=True)):
        words = f"{format_time(sum(time))}\n{share:.0%} efficient"
        marks.word(axes, place, top + 0.02 * max(both), words, va="bottom", ha="center")
    inside = sum(t <= ranks_per_node for t in sizes)
    if inside < len(sizes):
        axes.axvline(inside - 0.5, color=theme.INK, linewidth=1.4, linestyle="dashed", gid="edge")
        marks.word(axes, inside - 0.56, 1.13 * max(both), "one node", va="top", ha="right")


@checked({"model": partial(one_of, choices=tuple(MODELS))})
def explore_tensor(model: str = "Llama 3 405B", ranks_per_node: int = 8) -> Explorer:
    """Sliders for `tensor`: the model, the tokens, and the GPUs that NVLink joins.

    Args:
        model: the one of `MODELS` that it starts with.
        ranks_per_node: the GPUs that NVLink joins when it starts: 8, 16, 32 or 64.

    Raises:
        ValueError: an unknown model, or another number of GPUs.
    """
    if ranks_per_node not in JOINED:
        raise ValueError(f"ranks_per_node={ranks_per_node!r}: use one of {', '.join(map(str, JOINED))}")
    controls = {
        "model": choice("model", MODELS, model),
        "S": steps("tokens S", (512, 1024, 2048, 4096, 8192, 16384, 65536), 8192),
        "ranks_per_node": steps("NVLink joins", JOINED, ranks_per_node, "{} GPUs".format),
    }
    return Explorer("explore_tensor", controls, tensor)
