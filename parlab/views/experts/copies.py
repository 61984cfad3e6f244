"""Copies of a token that travel between nodes, against k; and the share that a capacity drops, against its factor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from parlab.arguments import checked, optional, positive, whole
from parlab.experts import copies_to_experts, copies_to_limited_nodes, copies_to_ranks, dropped_share
from parlab.nn.routing import capacity_of
from parlab.views.engine import marks, theme
from parlab.views.engine.arguments import mapping
from parlab.views.engine.explore import Explorer, steps
from parlab.views.engine.picture import BOUND, Picture, curve, line_legend, plot, scale

LINES = {
    "a copy an expert": ("#D55E00", "dashed"),
    "a copy a node": ("#0072B2", "solid"),
    "limited": ("#009E73", "dotted"),
}
DARK = {"a copy an expert": "#A04600", "a copy a node": "#005A8C", "limited": "#00704F"}  # of the numbers at the dots


COUNT = partial(whole, least=1)


@checked({"k": COUNT, "num_experts": COUNT, "nodes": COUNT, "limit": optional(COUNT)})
def copies(k: int = 8, num_experts: int = 256, nodes: int = 8, limit: int | None = 4) -> Picture:
    """Draw the mean copies of a token that leave its node, against k. `explore_copies` shows this.

    Args:
        k: experts a token, marked. num_experts: N. nodes: G, which divides N.
        limit: nodes that a token may go to; None: any.

    Raises:
        ValueError: nodes that do not divide the experts, k above N, or a limit above the nodes.

    >>> copies()
    256 experts on 8 nodes, k = 8: 7.00 copies leave, one an expert; 4.63, one a node; at most 3.50, limited to 4
    """
    if num_experts % nodes:
        raise ValueError(f"nodes={nodes}: must divide the {num_experts} experts")
    if k > num_experts:
        raise ValueError(f"k={k}: there are {num_experts} experts")
    if limit is not None and limit > nodes:
        raise ValueError(f"limit={limit}: there are {nodes} nodes")
    ks = range(1, min(num_experts, 32) + 1)
    ways: dict[str, Callable[[int], float]] = {
        "a copy an expert": lambda n: float(copies_to_experts(num_experts, n, nodes))
    }
    ways["a copy a node"] = lambda n: float(copies_to_ranks(num_experts, n, nodes))
    if limit is not None:  # a token with fewer experts than that uses a node for each at most
        most = limit
        ways["limited"] = lambda n: float(
            min(copies_to_limited_nodes(num_experts, n, nodes, min(most, n)), copies_to_ranks(num_experts, n, nodes))
        )
    here = {name: way(k) for name, way in ways.items()}
    said = f"{here['a copy an expert']:.2f} copies leave, one an expert; {here['a copy a node']:.2f}, one a node"
    said += "" if limit is None else f"; at most {here['limited']:.2f}, limited to {limit}"
    headline = f"{num_experts} experts on {nodes} nodes, k = {k}: {said}"
    figure, axes = plot([headline], 4.2, headline, left=0.9, top=1.0)
    top = 1.15 * max(2.0, nodes, here["a copy an expert"])
    scale(
        axes.xaxis,
        "experts a token, k",
        ends=(0.5, 1.12 * max(ks)),
        ticks=[n for n in (1, 2, 4, 8, 16, 24, 32) if n <= max(ks)],
    )
    scale(axes.yaxis, "copies between nodes", ends=(0, top), grid=True)
    names = {"limited": "at most 1 node" if limit == 1 else f"at most {limit} nodes"}
    styles = {}
    for name, way in ways.items():
        styles[names.get(name, name)] = curve(*LINES[name])
        axes.plot(list(ks), [way(n) for n in ks], gid=name, **styles[names.get(name, name)])
        if k <= max(ks):
            axes.plot([k], [here[name]], "o", color=LINES[name][0], gid=f"here {name}")
    if k <= max(ks):
        _number_the_dots(axes, k + 0.012 * max(ks), here, top)
    line_legend(figure, list(styles.items()))
    return figure


def _number_the_dots(axes: Axes, x: float, here: Mapping[str, float], top: float) -> None:
    """Each value once, right of its dot and below; lower or further right where two would touch or the axis is near."""
    tall, wide, free = 0.085 * top, 0.055 * np.ptp(axes.get_xlim()), math.inf
    for value in sorted(set(here.values()), reverse=True):
        low = min(value - 1.2 * tall, free - tall)
        if low < 0:
            low = value + 0.3 * tall
            x += wide if low + tall > free else 0
        alike = [name for name, other in here.items() if other == value]
        color = DARK[alike[0]] if len(alike) == 1 else theme.INK
        marks.word(axes, x, low, f"{value:.2f}", ha="left", va="bottom", color=color)
        free = low


def explore_copies() -> Explorer:
    """Sliders for `copies`: k, the experts, the nodes and the limit."""
    controls = {
        "k": steps("experts a token, k", (1, 2, 3, 4, 6, 8, 12, 16), 8),
        "num_experts": steps("experts N", (8, 16, 64, 128, 256), 256),
        "nodes": steps("nodes", (2, 4, 8), 8),
        "limit": steps("limit in nodes", [("any", 0), *((str(n), n) for n in (1, 2, 4, 8))], 4),
    }
    return Explorer("explore_copies", controls, _within)


def _within(k: int, num_experts: int, nodes: int, limit: int) -> Picture:
    """As `copies`; a slider beyond another one stands at its end."""
    return copies(min(k, num_experts), num_experts, nodes, min(limit, nodes) or None)


@checked({"counted": mapping, "tokens": COUNT, "k": COUNT, "num_experts": COUNT, "bound": positive})
def dropped(counted: Mapping[float, float], tokens: int, k: int, num_experts: int, *, bound: float = 0.01) -> Picture:
    """Draw the share of pairs that a capacity drops: closed form for uniform routing as a line, counted as dots. The
    headline says the least counted factor that drops less than `bound`, and the least hundredth by the closed form.

    Args:
        counted: by capacity factor the share that was counted.
        tokens, k, num_experts: of the group that shares a capacity.
        bound: a share, drawn dashed.
    """
    lowest, highest, mean = float(min(counted)), float(max(counted)), tokens * k / num_experts
    capacities = range(*(capacity_of(tokens, k, num_experts, cf) for cf in (lowest, highest)))
    edges = [lowest, *(C / mean for C in capacities), highest]  # ⌈cf · mean⌉ is one more beyond each edge between
    form = [dropped_share(tokens, k, num_experts, C) for C in (*capacities, capacities.stop, capacities.stop)]
    enough = next((edge for edge, share in zip(edges, form, strict=True) if share < bound), None)
    least = enough if enough in (None, lowest) else math.floor(100 * enough) / 100 + 0.01  # the next hundredth
    seen = min((cf for cf, share in counted.items() if share < bound), default=None)
    of_form, of_count = ("no factor here" if cf is None else f"{cf:.2f}" for cf in (least, seen))
    sizes = f"{tokens} tokens, k = {k}, {num_experts} experts"
    headline = f"{sizes}: less than {bound:.0%} is dropped from {of_count}, counted; from {of_form}, closed form"
    lines = [headline, *(f"factor {cf:g}: counted {share:.2%}" for cf, share in counted.items())]
    figure, axes = plot(lines, 4.0, headline, left=0.9, top=1.0)
    top = 1.1 * max(*counted.values(), *form, bound)
    left = lowest - 0.03
    scale(axes.xaxis, "capacity factor", ends=(left, highest + 0.03))
    scale(axes.yaxis, "share of pairs dropped", ends=(0, top), grid=True, says="{:.0%}".format)
    style = curve("#0072B2", "solid")
    before = [left] if capacity_of(tokens, k, num_experts, left) == capacity_of(tokens, k, num_experts, lowest) else []
    shape = before + edges, form[: len(before)] + form  # so no step stands at the first factor itself
    axes.plot(*shape, gid="formula", drawstyle="steps-post", **style)
    dot: Any = {"marker": "o", "linestyle": "none", "color": "#D55E00", "clip_on": False}
    axes.plot(list(counted), list(counted.values()), gid="counted", **dot)
    axes.axhline(bound, gid="bound", **BOUND)
    line_legend(figure, [("closed form", style), ("counted", dot), (f"{bound:.0%}", BOUND)])
    return figure
