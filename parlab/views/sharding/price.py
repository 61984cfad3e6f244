"""The time of a block on t ranks of tensor parallelism."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from parlab.arguments import checked, one_of, optional, whole
from parlab.nn import LlamaConfig
from parlab.nn.published import LLAMA_8B, LLAMA_70B, LLAMA_405B
from parlab.plan.arguments import fraction
from parlab.tensor import Time, block_time
from parlab.views.arguments import RULES
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import legend_of
from parlab.views.drawing.picture import Picture, plot, scale, write
from parlab.views.widgets.explorer import Explorer, choice, steps
from parlab.world import DGX_A100, DGX_H100, Cluster
from parlab.world.units import format_time

MODELS = {"Llama 3 8B": LLAMA_8B, "Llama 3 70B": LLAMA_70B, "Llama 3 405B": LLAMA_405B}
SIZES = (1, 2, 4, 8, 16, 32)
ALGORITHMS = RING, HIERARCHICAL = "ring", "hierarchical"
ITEMSIZE = 2  # bytes of an element: 16 bits
PRODUCTS = 0.79  # 780 of an H100's 989 TFLOP/s, a large product of bf16. Source: He, "H100 peak matmul FLOPS", a gist
COMPUTE, MESSAGES = theme.KINDS["compute"].color, theme.KINDS["send"].color
LATENCY = theme.paler(MESSAGES, 0.6)
Bar = tuple[int, str]  # t, and one of ALGORITHMS


def whole_nodes(name: str, value: Any) -> None:
    """The rule of a node's ranks: each of `SIZES` that is larger must fill whole nodes."""
    whole(name, value, 1)
    if any(t % value for t in SIZES if t > value):
        sizes = ", ".join(map(str, SIZES))
        raise ValueError(f"{name}={value!r}: groups of {sizes} ranks must fill nodes; use one of these, or more")


@checked(
    RULES
    | {"model": partial(one_of, choices=tuple(MODELS)), "ranks_per_node": optional(whole_nodes), "products": fraction}
)
def tensor(
    model: str = "Llama 3 405B",
    S: int = 8192,
    cluster: Cluster = DGX_H100,
    ranks_per_node: int | None = None,
    products: float = PRODUCTS,
) -> Picture:
    """Draw the time of one block of a Llama on t ranks, forward and backward. `explore_tensor` shows this.

    There is one sequence of 16-bit numbers without sequence parallelism. The times are those of the simulated clock,
    from closed forms that tests compare with runs, computing and sending one after the other. Of the sending the part
    that links without latency would take, the bytes, is dark; the latency of the hops is pale. For more ranks than a
    node has, one bar has all-reduces in one ring and the other hierarchical ones. The efficiency is the time of one
    rank over the time of t ranks together.

    Args:
        model: one of `MODELS`.
        S: tokens.
        cluster: the hardware.
        ranks_per_node: instead of the cluster's. None: the cluster's.
        products: the fraction of the device's peak that large products reach: `PRODUCTS` on an H100.

    Raises:
        ValueError: an unknown model, no tokens, a fraction that is none, nodes that the groups do not fill, or a
            cluster on which a block takes no time.

    >>> tensor("Llama 3 8B", S=1024, products=1)
    Llama 3 8B: t = 8 is fastest, with one ring or hierarchically
    1024 tokens, DGX H100
      t   computing     sending its latency        both  efficiency  hierarchical  efficiency
      1     1.39 ms         0 s         0 s     1.39 ms        100%
      2      693 µs      102 µs     27.2 µs      794 µs         87%
      4      346 µs      193 µs     81.6 µs      540 µs         64%
      8      173 µs      321 µs      190 µs      494 µs         35%
     16     89.8 µs     2.43 ms     1.17 ms     2.52 ms          3%        590 µs         15%
     32     48.2 µs     3.73 ms     2.42 ms     3.78 ms          1%        773 µs          6%
    """
    nodes = "" if ranks_per_node in (None, cluster.ranks_per_node) else f", nodes of {ranks_per_node}"
    if ranks_per_node is not None:
        cluster = replace(cluster, ranks_per_node=ranks_per_node)
    whole_nodes("cluster.ranks_per_node", cluster.ranks_per_node)
    cluster = cluster.reaching(products)
    times = {(t, way): _both_ways(MODELS[model], S, t, cluster, way) for t in SIZES for way in ALGORITHMS}
    intra, inter = (replace(link, latency=0) for link in (cluster.intra, cluster.inter))
    at_once = replace(cluster, intra=intra, inter=inter)
    nbytes = {(t, way): _both_ways(MODELS[model], S, t, at_once, way).messages for t, way in times}
    if not all(sum(time) for time in times.values()):
        raise ValueError(f"cluster={cluster.name}: a block of {S} tokens takes no time on it; give it a finite pace")
    efficiency = {(t, way): f"{sum(times[1, way]) / (t * sum(time)):.0%}" for (t, way), time in times.items()}
    rings = min(SIZES, key=lambda t: sum(times[t, RING]))
    levels = min(SIZES, key=lambda t: sum(times[t, HIERARCHICAL]))
    either, each = "one ring or hierarchically", f"one ring, {levels} with hierarchical all-reduces"
    headline = f"{model}: t = {rings} is fastest" + (f", with {either}" if rings == levels else f" with {each}")
    pace = "" if products == 1 else f" at {products:.0%} of its peak"
    setting = f"{S} tokens, {cluster.name}{pace}{nodes}"
    columns = "computing     sending its latency        both  efficiency  hierarchical  efficiency"
    lines = [headline, setting, f"{'t':>3}   {columns}"]
    for t in SIZES:
        compute, messages = ring = times[t, RING]
        parts = compute, messages, messages - nbytes[t, RING], compute + messages
        shown = "".join(f"{format_time(time):>12}" for time in parts)
        lines.append(f"{t:>3}{shown}{efficiency[t, RING]:>12}")
        if times[t, HIERARCHICAL] != ring:
            lines[-1] += f"{format_time(sum(times[t, HIERARCHICAL])):>14}{efficiency[t, HIERARCHICAL]:>12}"
    figure, axes = plot(lines, 4.4, headline, left=0.5, right=0.3, top=0.85, bottom=0.65)
    _draw(axes, times, nbytes, efficiency, cluster.ranks_per_node)
    legend_of(figure, [(COMPUTE, "computing", ""), (MESSAGES, "sending: bytes", ""), (LATENCY, "sending: latency", "")])
    write(figure, 4.85, 0.475, setting)
    return figure


def _both_ways(config: LlamaConfig, S: int, size: int, cluster: Cluster, algorithm: str) -> Time:
    """Picoseconds of computing and of sending, forward and backward, of a block on one of `size` ranks."""
    passes = [
        block_time(config, 1, S, size, ITEMSIZE, cluster, backward=backward, algorithm=algorithm)
        for backward in (False, True)
    ]
    return Time(*map(sum, zip(*passes, strict=True)))


def _draw(axes: Axes, times: dict[Bar, Time], nbytes: dict[Bar, int], efficiency: dict[Bar, str], node: int) -> None:
    """A bar for each t, and two for each t that is more than a node."""
    bars = [(t, algorithm) for t, algorithm in times if algorithm == RING or t > node]
    names = [f"t = {t}\n{algorithm}" if t > node else f"t = {t}" for t, algorithm in bars]
    places = np.arange(len(bars))
    compute, both = [times[bar].compute for bar in bars], [sum(times[bar]) for bar in bars]
    sent = [times[bar].compute + nbytes[bar] for bar in bars]
    scale(axes.xaxis, ends=(-0.6, len(bars) - 0.4), ticks=places, says=names)
    scale(axes.yaxis, "time of a block", ends=(0, 1.15 * max(both)), ticks=())
    marks.rectangles(axes, "computing", places - 0.36, places + 0.36, 0, compute, COMPUTE)
    marks.rectangles(axes, "bytes", places - 0.36, places + 0.36, compute, sent, MESSAGES)
    marks.rectangles(axes, "latency", places - 0.36, places + 0.36, sent, both, LATENCY)
    for place, (bar, time) in enumerate(zip(bars, both, strict=True)):
        words = f"{format_time(time)}\n{efficiency[bar]} efficient"
        marks.word(axes, place, time + 0.02 * max(both), words, va="bottom", ha="center")
    inside = sum(t <= node for t, _ in bars)
    if inside < len(bars):
        axes.axvline(inside - 0.5, color=theme.INK, linewidth=1.4, linestyle="dashed", gid="edge")
        marks.word(axes, inside - 0.44, 1.13 * max(both), f"more than one node of {node}", va="top")


@checked({"model": partial(one_of, choices=tuple(MODELS))})
def explore_tensor(model: str = "Llama 3 405B") -> Explorer:
    """Sliders for `tensor`: the model, the tokens, the cluster, the ranks of a node, and what products reach.

    Args:
        model: the one of `MODELS` that it starts with.

    Raises:
        ValueError: an unknown model.
    """
    controls = {
        "model": choice("model", MODELS, model),
        "S": steps("tokens S", (512, 1024, 2048, 4096, 8192, 16384, 65536), 8192),
        "cluster": choice("cluster", (DGX_A100, DGX_H100), DGX_H100, lambda one: one.name),
        "ranks_per_node": steps("ranks of a node", (4, 8, 16, 32), 8),
        "products": steps("products reach", (0.4, 0.6, 0.7, PRODUCTS, 1.0), PRODUCTS, "{:.0%}".format),
    }
    return Explorer("explore_tensor", controls, tensor)
