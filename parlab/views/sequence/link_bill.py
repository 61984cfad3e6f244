"""Which way to cut attention for which links: published rates of two machines, and bills by the size of the groups."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from parlab.arguments import Rule, amount, checked, one_of
from parlab.sequence import FLASH_ATTENTION_3, AttentionShape, method_times, pair_flops, unmasked_pairs, usp_time
from parlab.sequence.times import WAYS
from parlab.views.engine import marks, theme
from parlab.views.engine.arguments import among
from parlab.views.engine.explore import Explorer, choice, steps
from parlab.views.engine.lanes import legend_of, name_rows
from parlab.views.engine.picture import Picture, line_legend, panel, scale, sheet, write
from parlab.world import DGX_H100, Cluster, Device, Link
from parlab.world.cluster import picoseconds

# Forwards a second of 131 072 tokens, batch 2, 32 heads of size 32, zigzag, q, k and v not packed, by the ranks that
# share the heads: github.com/feifeibear/long-context-attention, README, section 6.
PUBLISHED_RATES = {
    "8 A100s, joined by NVLink": {1: 12.445, 2: 15.244, 4: 15.699, 8: 15.829},
    "8 L20s, joined by PCIe": {1: 7.408, 2: 8.471, 4: 6.667, 8: 3.947},
}
# The same table, 8 L20s: batch 1, 32 query heads of size 128, 8 K/V heads, by the tokens.
PUBLISHED_ON_L20S = {
    8192: {1: 361.969, 2: 454.93, 4: 152.189, 8: 57.098},
    32768: {1: 58.377, 2: 62.754, 4: 32.818, 8: 14.262},
    131072: {1: 5.186, 2: 5.476, 4: 4.235, 8: 2.586},
}
# Estimated from its four rows of 131 072 tokens: operations a second of the kernel, and bytes a second that a GPU sends
# in a hop to its neighbour, and in an all-to-all among 2 (PCIe 4.0 with 16 lanes), 4 and 8. Memory as published.
L20 = Device("L20, as its kernel computes", flops=104e12, memory_bandwidth=864e9, memory=48e9)
HOP, ALL_TO_ALL = 10e9, {2: 25e9, 4: 4e9, 8: 1.4e9}
PCIE_LATENCY = 10e-6  # seconds
NVLINK, PCIE, NODES = LINKS = ("NVLink: 8 H100s", "PCIe: 8 L20s", "two nodes: 16 H100s")
TOKENS, STEPS = (8192, 32768, 131072, 524288), (1, 3, 10, 25)
H, G, D, ITEMSIZE = 32, 8, 128, 2
GROUPS = (1, 2, 4, 8)
PARTS = {
    "work": (theme.KINDS["compute"].color, "work"),
    "messages": (theme.KINDS["receive"].color, "waits for messages"),
    "calls": (theme.KINDS["backward"].color, "calls and merges"),
}
DOT = {"color": theme.INK, "marker": "D", "markersize": 6, "linestyle": "none"}


def named(ulysses: int, size: int = 8) -> str:
    """A ring, Ulysses, or USP with the size of its groups."""
    return "ring" if ulysses == 1 else "Ulysses" if ulysses == size else f"USP {ulysses}"


def published_groups(groups: tuple[int, ...] = GROUPS, headline: str | None = None) -> Picture:
    """Draw the published forwards a second of one program on two machines, for groups of so many ranks that share the
    heads: 1 is the ring, 8 is Ulysses. The fastest bar of a machine is darker.

    Raises:
        ValueError: a group that was not published.
    """
    for group in groups:
        among("groups", group, choices=GROUPS)
    rows = [
        f"{name:26}" + ", ".join(f"{named(u)} {rates[u]:.1f}" for u in groups)
        for name, rates in PUBLISHED_RATES.items()
    ]
    if headline is None:
        first = [f"{name}: {named(max(groups, key=lambda u: rates[u]))}" for name, rates in PUBLISHED_RATES.items()]
        headline = f"Fastest on {'; on '.join(first)}"
    half = (theme.WIDTH - 0.3) / 2
    figure = sheet([headline, *rows], 1.75 + 0.45 * len(groups), headline)
    for place, (machine, rates) in enumerate(PUBLISHED_RATES.items()):
        axes = panel(figure, 0.95 + place * half, 0.95, half - 1.35, 0.45 * len(groups))
        write(figure, 0.15 + place * half, 0.58, machine)
        scale(axes.xaxis, "forwards a second", ends=(0, 18), ticks=range(0, 18, 5), says="{:g}".format)
        name_rows(axes, len(groups), [named(group) for group in groups], line=False)
        found = [rates[group] for group in groups]
        colors = [theme.RANKS[0] if rate == max(found) else theme.paler(theme.RANKS[0], 0.6) for rate in found]
        marks.bars(axes, f"rates {place}", 0, found, colors, half=0.33)
        for row, rate in enumerate(found):
            marks.word(axes, rate, row, f"  {rate:.1f}", ha="left")
    return figure


RULES: dict[str, Rule] = {
    "link": partial(one_of, choices=LINKS),
    "tokens": partial(among, choices=TOKENS),
    "step": amount,
}


@checked(RULES)
def link_bill(link: str = NODES, tokens: int = 131072, step: float = 3.0) -> Picture:
    """Draw what the milliseconds of one layer's causal attention go to, a row for each way to cut it, forward.

    32 query heads and 8 K/V heads of size 128 in bf16, batch 1. Every way has the fastest of its exchanges
    (`method_times`). What it takes beyond the work is waiting for messages; each step of attention after the first has
    a call and a merge, which cost `step` times the least that they can cost (`step_time`). H100s compute at 65 % of
    their peak. On PCIe a GPU's bandwidth depends on how many GPUs send at once. These rates are estimates, from the
    published rows of 131 072 tokens; an all-gather goes around in hops. What was published is a diamond.

    Args:
        link: "NVLink: 8 H100s", "PCIe: 8 L20s" or "two nodes: 16 H100s", which InfiniBand joins.
        tokens: 8192, 32768, 131072 or 524288.
        step: what a call and a merge cost, times the least; published are 3 to 25.

    Raises:
        ValueError: a link or tokens that are not among these, or a negative cost.

    >>> link_bill("PCIe: 8 L20s")
    PCIe: 8 L20s, 131072 tokens: USP 2 is fastest, 183 ms
    ring          work 169.16 ms, messages   0.00 ms, calls  16.48 ms; published 192.8 ms
    USP 2         work 169.16 ms, messages   6.77 ms, calls   7.06 ms; published 182.6 ms
    USP 4         work 169.16 ms, messages  63.37 ms, calls   2.35 ms; published 236.1 ms
    Ulysses       work 169.16 ms, messages 211.17 ms, calls   0.00 ms; published 386.7 ms
    all-gather    work 169.16 ms, messages  47.26 ms, calls   0.00 ms
    """
    shape = AttentionShape(tokens, H, G, D, ITEMSIZE)
    size = 16 if link == NODES else 8
    bare, charged = _times(shape, size, link, 0), _times(shape, size, link, step)
    device = L20 if link == PCIE else DGX_H100.reaching(FLASH_ATTENTION_3).device_of(0)
    work = picoseconds(device.seconds(pair_flops(unmasked_pairs(tokens, size, "zigzag")[0], 1, H, D), 0))
    parts = {
        "work": [work / 1e9 for _ in bare],
        "messages": [(time - work) / 1e9 for time in bare.values()],
        "calls": [(charged[name] - time) / 1e9 for name, time in bare.items()],
    }
    takes = [charged[name] / 1e9 for name in bare]
    rates = PUBLISHED_ON_L20S.get(tokens, {}) if link == PCIE else {}
    published = {named(group): 1000 / rate for group, rate in rates.items()}
    fastest = min(charged, key=lambda name: charged[name])
    headline = f"{link}, {tokens} tokens: {fastest} is fastest, {min(takes):.3g} ms"
    rows = [
        f"{name:14}"
        + ", ".join(f"{part} {abs(parts[part][row]):6.2f} ms" for part in PARTS)
        + (f"; published {published[name]:.1f} ms" if name in published else "")
        for row, name in enumerate(bare)
    ]
    high, end = 0.42 * len(bare), 1.15 * max([*takes, *published.values()])
    figure = sheet([headline, *rows], 0.95 + high + 0.65, headline)
    axes = panel(figure, 1.4, 0.95, theme.WIDTH - 1.9, high)
    scale(axes.xaxis, "ms, attention of one layer, forward", ends=(0, end))
    name_rows(axes, len(bare), list(bare), line=False)
    marks.stacked(axes, parts, {part: color for part, (color, _) in PARTS.items()}, half=0.33)
    for row, (name, time) in enumerate(zip(bare, takes, strict=True)):
        if name in published:
            axes.plot([published[name]], [row], gid="published", zorder=4, **DOT)
        marks.word(axes, max(time, published.get(name, 0)), row, f"   {time:.3g} ms", ha="left")
    said = [(color, text, "") for color, text in PARTS.values()]
    legend_of(figure, said)
    if published:
        line_legend(figure, [("published", DOT)], 0.8)
    return figure


def _times(shape: AttentionShape, size: int, link: str, step: float) -> dict[str, int]:
    """The picoseconds of each way to cut the attention, the fastest of its exchanges."""
    cluster = DGX_H100.reaching(FLASH_ATTENTION_3)
    groups = [group for group in (*GROUPS, 16) if group <= size]
    of_group = {group: _on_pcie(group) if link == PCIE else cluster for group in groups}
    found = {
        named(group, size): min(
            usp_time(shape, size, on, ulysses=group, way=way, step=step)
            for way in (WAYS if group > on.ranks_per_node else WAYS[:1])
        )
        for group, on in of_group.items()
    }
    others = method_times(shape, size, of_group[1], step=step)
    return found | {name: others[name].picoseconds for name in ("double ring", "all-gather") if name in others}


def _on_pcie(group: int) -> Cluster:
    """L20s on whose clock all-to-alls in groups of so many ranks have the estimated rate, and hops between groups the
    rate of hops.
    """
    inside, hop = (Link(PCIE_LATENCY, rate) for rate in (ALL_TO_ALL.get(group, HOP), HOP))
    return replace(DGX_H100, name="8 L20s", device=L20, ranks_per_node=group, intra=inside, inter=hop)


def explore_links() -> Explorer:
    """Sliders for `link_bill`: the link, the tokens, and what a step costs."""
    controls = {
        "link": choice("link", LINKS, NODES),
        "tokens": steps("tokens", TOKENS, 131072),
        "step": steps("a step, × its best case", STEPS, 3),
    }
    return Explorer("explore_links", controls, link_bill)
