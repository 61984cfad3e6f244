"""The seconds that a ring of H100s takes for a million tokens, beside its work alone and its messages alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from parlab.arguments import Rule, checked, flag, optional, positive
from parlab.sequence import FLASH_ATTENTION_3, AttentionShape, hidden_from, overlap_tokens, pair_flops, ring_time
from parlab.views.arguments import RULES, among
from parlab.views.attention.overlap import bound_function
from parlab.views.drawing import marks, theme
from parlab.views.drawing.picture import BOUND, Picture, curve, line_legend, plot, scale
from parlab.views.widgets.explorer import Explorer, choice, steps
from parlab.world import DGX_H100, Cluster, Link

S, H, D, LAYERS, ITEMSIZE = 2**20, 32, 128, 32, 2  # the model of lesson 02's first screen, in bf16
SECONDS = f"seconds, {LAYERS} layers"
RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
ENDS, LOW = (5.5, 1500), 0.2  # of the axes: ranks, and the fewest seconds
KV_HEADS = (32, 8, 4, 1)
LINKS = {"NVLink": DGX_H100.intra, "InfiniBand": DGX_H100.inter}
DOMAIN = 72  # GPUs that NVLink joins in a rack: GB200 NVL72
REACH = {"NVLink": DOMAIN, "InfiniBand": RANKS[-1]}  # where a link's lines end
LINES = {  # the wider one below: where both take the same time, both are seen
    "InfiniBand": curve("#D55E00", "solid") | {"linewidth": 6, "markersize": 10},
    "NVLink": curve("#0072B2", "solid") | {"markersize": 5},
}
FLOORS = {  # darker than the links' lines, on which they are seen
    "InfiniBand": curve("#6B2A00", "dotted") | {"linewidth": 2, "zorder": 4},
    "NVLink": curve("#003F66", "dotted") | {"linewidth": 2, "zorder": 4},
}
EDGE = {"color": theme.INK, "linewidth": 1.2}  # the bound
FREE = Link(0.0, 1e30)


RING_RULES: dict[str, Rule] = {
    "ranks": partial(among, choices=RANKS),
    "kv_heads": partial(among, choices=KV_HEADS),
    "backward": flag,
    "bound": optional(bound_function),
}


@checked(RULES | RING_RULES)
def ring_seconds(
    ranks: int = 64,
    kv_heads: int = 32,
    kernel: float = FLASH_ATTENTION_3,
    backward: bool = False,
    bound: Callable[[int, int, float, float], float] | None = None,
) -> Picture:
    """Draw the time of all 32 layers of a causal zigzag ring over 2²⁰ tokens, against the ranks, on two links.

    All hops go over the one link or the other, as a DGX H100 has them. The dashed line is the work alone, the dotted
    ones are the messages alone: all K/V (and backward their gradients) through one port. An upright line for each link
    stands where the ranks have as many tokens as hide the messages: on its left they wait for nothing (backward for the
    last hop home). There a ring's line bends: it has a point there too, which has no dot. NVLink's lines end at the
    72 ranks of a rack, and so before its upright line.

    Args:
        ranks: marked; a power of two from 8 to 1024.
        kv_heads: 32, 8, 4 or 1, for 32 query heads of size 128.
        kernel: the fraction of the peak that attention reaches, at most 1.
        backward: the backward pass, whose gradients travel in float32.
        bound: finds the upright lines in place of the library, without latency, from what `parlab.sequence.hidden_from`
            gets. That function itself is the library's: the lines count latency too, and stand where the rings bend.

    Raises:
        ValueError: ranks or heads that are not among these, a kernel above the peak, or a bound that is no function or
            finds no number greater than 0.
    """
    work = {P: _seconds(P, kv_heads, FREE, kernel, backward) for P in RANKS}
    reached = {name: [P for P in RANKS if REACH[name] >= P] for name in LINKS}
    takes = {
        name: {P: _seconds(P, kv_heads, link, kernel, backward) for P in reached[name]} for name, link in LINKS.items()
    }
    waits = {name: f"{100 * (1 - work[ranks] / of[ranks]):.0f} %" for name, of in takes.items() if ranks in of}
    headline = f"{ranks} ranks wait {waits['InfiniBand']} of the time over InfiniBand"
    headline += f", {waits['NVLink']} over NVLink" if "NVLink" in waits else f"; NVLink joins {DOMAIN} in a rack"
    figure, axes = plot([headline, *_table(work, takes), _bounds(kv_heads, kernel, backward)], 4.4, headline, top=0.85)
    scale(axes.xaxis, "ranks", ends=ENDS, log=2, ticks=RANKS, says="{:g}".format)
    scale(axes.yaxis, SECONDS, ends=(LOW, 300), log=10, ticks=(1, 10, 100), says="{:g}".format, grid=True)
    axes.axvline(ranks, color=theme.GRID, linewidth=6, zorder=0, gid="marked")
    paper = {"facecolor": theme.PAPER, "edgecolor": "none", "pad": 1}  # no line crosses the words
    for name, look in LINES.items():
        link, stops = LINKS[name], reached[name]
        ends = sorted({*stops, REACH[name]})
        axes.plot(ends, [_messages(P, kv_heads, link, backward) for P in ends], gid=f"messages {name}", **FLOORS[name])
        points = takes[name] | _bend(name, work[RANKS[0]], kv_heads, kernel, backward)
        points[ends[-1]] = _seconds(ends[-1], kv_heads, link, kernel, backward)
        along = sorted(points)
        dots = {"marker": "o", "markevery": list(map(along.index, stops))}
        axes.plot(along, [points[P] for P in along], gid=name, **dots, **look)
        if ends[-1] == DOMAIN:
            axes.plot([DOMAIN], [points[DOMAIN]], "|", markersize=14, color=look["color"], zorder=5, gid="domain")
        if ranks not in takes[name]:
            continue
        here = 1.7 * look["markersize"]
        axes.plot([ranks], [takes[name][ranks]], "o", markersize=here, color=look["color"], gid=f"here {name}")
        # NVLink's word ends at its dot: a mark at 72 follows
        way, va, ha = (1.5, "bottom", "center") if name == "InfiniBand" else (1 / 1.4, "top", "right")
        said = f"{takes[name][ranks]:.2f} s"
        if name == "InfiniBand" or said != f"{takes['InfiniBand'][ranks]:.2f} s":  # both as long: said once
            marks.word(axes, ranks, takes[name][ranks] * way, said, ha=ha, va=va, bbox=paper, zorder=5)
    for name, link in LINKS.items():
        edge = _edge(link, kv_heads, kernel, backward, bound)
        if ENDS[0] < edge < REACH[name]:
            axes.plot([edge, edge], [LOW, work[8] * 8 / edge], gid=f"bound {name}", **EDGE)
            marks.word(axes, edge / 1.06, LOW * 1.2, f"{edge:.0f} ranks", ha="right", va="bottom", bbox=paper, zorder=5)
    axes.plot(RANKS, list(work.values()), gid="work", **BOUND)
    names = {"NVLink": f"NVLink, to {DOMAIN}", "InfiniBand": "InfiniBand"}
    rings = [(names[name], look | {"markersize": 0}) for name, look in LINES.items()]
    floors = [(f"messages, {name}", FLOORS[name]) for name in LINES]
    beside = [entry for both in zip(rings, floors, strict=True) for entry in both]
    name = "the bound" if bound in (None, hidden_from) else "your bound, without latency"
    line_legend(figure, [*beside, ("work alone", BOUND), (name, EDGE)])
    return figure


@checked({"bound": optional(bound_function)})
def explore_ring_seconds(bound: Callable[[int, int, float, float], float] | None = None) -> Explorer:
    """Sliders for `ring_seconds`: the ranks, the K/V heads, the kernel's speed; and forward or backward.

    Args:
        bound: a learner's function that finds the upright lines, as `parlab.sequence.hidden_from` does; None: ours.

    Raises:
        ValueError: it is no function.
    """
    controls = {
        "ranks": steps("ranks", RANKS, 64),
        "kv_heads": steps("K/V heads, of 32", KV_HEADS, 32),
        "kernel": steps("kernel, of the peak", (0.4, 0.5, FLASH_ATTENTION_3, 0.8, 1.0), FLASH_ATTENTION_3),
        "backward": choice("pass", [("forward", False), ("backward", True)], False),
    }
    return Explorer("explore_ring_seconds", controls, partial(ring_seconds, bound=bound))


def _seconds(P: int, G: int, link: Link, kernel: float, backward: bool) -> float:
    """The time of all layers; of the next text that P ranks divide."""
    tokens = -(-S // (2 * P)) * 2 * P
    cluster = Cluster.uniform(link.latency, link.bandwidth, flops=DGX_H100.device_of(0).flops).reaching(kernel)
    return LAYERS * ring_time(AttentionShape(tokens, H, G, D, ITEMSIZE), P, cluster, backward=backward) / 1e12


def _messages(P: int, G: int, link: Link, backward: bool) -> float:
    """The time of all messages of all layers through one port."""
    token, c = AttentionShape(S, H, G, D, ITEMSIZE).token(backward=backward), -(-S // P)
    hop, home = link.picoseconds(c * token.kv), link.picoseconds(c * token.dkv)
    return LAYERS * ((P - 1) * hop + (P * home if backward else 0)) / 1e12


def _table(work: dict[int, float], takes: dict[str, dict[int, float]]) -> list[str]:
    """A line for each number of ranks: tokens and inputs of a rank, and its times."""
    rows = [f"ranks  tokens each  GB each{'work':>10}" + "".join(f"{f'{name}, × work':>20}" for name in takes)]
    for P, alone in work.items():
        cells = "".join(f"{f'{of[P]:.2f} s, {of[P] / alone:.2f} ×' if P in of else '–':>20}" for of in takes.values())
        kept = LAYERS * S * H * D * ITEMSIZE / P / 1e9  # the inputs of its layers
        rows.append(f"{P:5}{S // P:13}{kept:9.1f}{f'{alone:.2f} s':>10}{cells}")
    return rows


def _bounds(G: int, kernel: float, backward: bool) -> str:
    found = {name: _hidden(link, G, kernel, backward) for name, link in LINKS.items()}
    return "hidden from, tokens each: " + ", ".join(f"{bound:.0f} ({name})" for name, bound in found.items())


def _hidden(link: Link, G: int, kernel: float, backward: bool) -> float:
    """The tokens of a rank from which its messages over `link` are hidden."""
    flops = kernel * DGX_H100.device_of(0).flops
    hidden = partial(overlap_tokens, flops, link.bandwidth, ITEMSIZE, G / H, half_masked=True)
    return hidden(backward=backward, latency=link.latency, width=H * D)


def _bend(name: str, first: float, G: int, kernel: float, backward: bool) -> dict[float, float]:
    """The ranks, not a whole number, that just hide their messages, and their time; empty outside of a link's line.

    They work all the time: `first` seconds on the first of `RANKS`, and less in proportion. Backward half a tile hides
    a hop of K/V and one of gradients, but behind the last hop home no work is left.
    """
    link = LINKS[name]
    tokens = _hidden(link, G, kernel, backward)
    ranks = S / tokens
    if not RANKS[0] < ranks < REACH[name] or ranks in RANKS:
        return {}
    dkv = AttentionShape(S, H, G, D, ITEMSIZE).token(backward=True).dkv
    home = LAYERS * (link.latency + tokens * dkv / link.bandwidth) if backward else 0.0
    return {ranks: first * RANKS[0] / ranks + home}


def _edge(link: Link, G: int, kernel: float, backward: bool, bound: Callable[..., float] | None) -> float:
    """The ranks, not a whole number, that have as many tokens each as the bound says; the library's counts latency."""
    if bound in (None, hidden_from):
        return S / _hidden(link, G, kernel, backward)
    token = AttentionShape(S, H, G, D, ITEMSIZE).token(backward=backward)
    pair = pair_flops(1, 1, H, D, backward=backward)
    tokens = bound(pair, token.kv + token.dkv, kernel * DGX_H100.device_of(0).flops, link.bandwidth)
    positive("bound(flops, nbytes, F, W)", tokens, finite=True)
    return S / tokens
