"""How many ranks should share the heads: the time of attention by the size of the groups, a curve for each machine."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from parlab.arguments import Rule, amount, checked
from parlab.sequence import FLASH_ATTENTION_3, AttentionShape, least_step_cost, usp_time
from parlab.sequence.times import WAYS
from parlab.views.engine import marks, theme
from parlab.views.engine.arguments import among
from parlab.views.engine.explore import Explorer, steps
from parlab.views.engine.picture import Picture, curve, line_legend, plot, scale
from parlab.world import DGX_H100

# Forwards a second of 131 072 tokens, batch 2, 32 heads of size 32, zigzag, q, k and v not packed, by the ranks that
# share the heads: github.com/feifeibear/long-context-attention, README, section 6 (two pictures of tables).
PUBLISHED_RATES = {
    "8 A100s, NVLink": {1: 12.445, 2: 15.244, 4: 15.699, 8: 15.829},
    "8 L20s, PCIe": {1: 7.408, 2: 8.471, 4: 6.667, 8: 3.947},
}
GROUPS = (1, 2, 4, 8)  # that were published
TWO_NODES, GPUS = 16, (32, 64, 128, 256)
TOKENS = {TWO_NODES: 131072} | dict.fromkeys(GPUS, 2**20)
H, D, ITEMSIZE = 32, 128, 2
KV_HEADS, STEPS = (32, 8), (0, 1, 3, 10, 25)
COLORS = (theme.RANKS[0], theme.RANKS[5], theme.RANKS[2], theme.RANKS[3])
DOTS = (16, 13, 10, 7)  # of the fastest: where they meet, all are seen
PUBLISHED, COMPUTED = "solid", "dashed"
LEVELS = (1, 1.2, 1.5, 2, 3, 4, 6, 10, 20)  # marks of the axis


class GroupTimes(NamedTuple):
    """A machine and its milliseconds, by the GPUs that share the heads."""

    name: str
    gpus: int
    ms: dict[int, float]
    dashes: str

    @property
    def first(self) -> int:
        """The size of the groups that is fastest."""
        return min(self.ms, key=lambda group: self.ms[group])


def published_groups(groups: tuple[int, ...] = GROUPS, headline: str | None = None) -> Picture:
    """Draw the published times of one program on two machines, over the number of ranks that share the heads: 1 is the
    ring, 8 is Ulysses. A time stands as a multiple of the machine's shortest; that one has a larger dot.

    Raises:
        ValueError: a group that was not published.

    >>> published_groups((1, 8))
    Fastest on 8 A100s, NVLink: Ulysses; on 8 L20s, PCIe: ring
    8 A100s, NVLink: ring 80.4, Ulysses 63.2 ms
    8 L20s, PCIe: ring 135, Ulysses 253 ms
    """
    for group in groups:
        among("groups", group, choices=GROUPS)
    machines = _published(groups)
    found = [f"{machine.name}: {named(machine.first)}" for machine in machines]
    return _drawn(machines, headline or f"Fastest on {'; on '.join(found)}")


RULES: dict[str, Rule] = {
    "gpus": partial(among, choices=GPUS),
    "kv_heads": partial(among, choices=KV_HEADS),
    "step": amount,
}


@checked(RULES)
def group_times(gpus: int = 256, kv_heads: int = 32, step: float = 3.0) -> Picture:
    """Draw `published_groups`, and beside them computed times of H100s in nodes of eight, in the same way.

    These are `usp_time`, with the fastest of its exchanges: causal, forward, one layer with 32 query heads of size 128
    in bf16, 131 072 tokens in two nodes and 2²⁰ in more. H100s compute at 65 % of their peak. Each step of attention
    after the first costs `step` times the least that it can cost beside its work and its hop (`least_step_cost`).

    Args:
        gpus: 32, 64, 128 or 256; two nodes, 16 GPUs, are always drawn.
        kv_heads: 32 or 8, on the computed machines.
        step: the cost of a step, times the least; published are 3 to 25.

    Raises:
        ValueError: GPUs or K/V heads that are not among these, or a negative cost.

    >>> group_times(256)
    Fastest on 256 H100s, 32 K/V heads: groups of 32, 58.3 ms
    8 A100s, NVLink: ring 80.4, USP 2 65.6, USP 4 63.7, Ulysses 63.2 ms
    8 L20s, PCIe: ring 135, USP 2 118, USP 4 150, Ulysses 253 ms
    16 H100s, two nodes: ring 41.6, USP 2 21.2, USP 4 15.1, USP 8 14.6, Ulysses 16.8 ms
    256 H100s, 32 nodes: ring 345, USP 2 172, USP 4 86.4, USP 8 60.4, USP 16 59, USP 32 58.3 ms
    """
    computed = [_computed(size, kv_heads, step) for size in (TWO_NODES, gpus)]
    first = computed[-1].first
    headline = f"Fastest on {gpus} H100s, {kv_heads} K/V heads: "
    headline += f"{'the ring' if first == 1 else f'groups of {first}'}, {computed[-1].ms[first]:.3g} ms"
    return _drawn(_published(GROUPS) + computed, headline)


def explore_group_times() -> Explorer:
    """Sliders for `group_times`: the GPUs, the K/V heads, and the cost of a step."""
    controls = {
        "gpus": steps("H100s", GPUS, 256),
        "kv_heads": steps("K/V heads, of 32", KV_HEADS, 32),
        "step": steps("a step's cost, × its least", STEPS, 3),
    }
    return Explorer("explore_group_times", controls, group_times)


def named(group: int, gpus: int = 8) -> str:
    """A ring, Ulysses, or USP with the size of its groups."""
    return "ring" if group == 1 else "Ulysses" if group == gpus else f"USP {group}"


def _published(groups: tuple[int, ...]) -> list[GroupTimes]:
    return [
        GroupTimes(name, 8, {group: 1000 / rates[group] for group in groups}, PUBLISHED)
        for name, rates in PUBLISHED_RATES.items()
    ]


def _computed(gpus: int, kv_heads: int, step: float) -> GroupTimes:
    shape = AttentionShape(TOKENS[gpus], H, kv_heads, D, ITEMSIZE)
    cluster = DGX_H100.reaching(FLASH_ATTENTION_3)
    step_cost = round(step * least_step_cost(shape, gpus, cluster))
    groups = (1, 2, 4, 8, 16, 32)[: 5 if gpus == TWO_NODES else 6]
    ms = {
        group: min(
            usp_time(shape, gpus, cluster, ulysses=group, way=way, step_cost=step_cost)
            for way in (WAYS if group > cluster.ranks_per_node else WAYS[:1])
        )
        / 1e9
        for group in groups
    }
    nodes = "two" if gpus == TWO_NODES else str(gpus // cluster.ranks_per_node)
    return GroupTimes(f"{gpus} H100s, {nodes} nodes", gpus, ms, COMPUTED)


def _drawn(machines: list[GroupTimes], headline: str) -> Picture:
    """A curve for each machine, over the size of the groups, both axes logarithmic."""
    rows = [
        f"{machine.name}: {', '.join(f'{named(u, machine.gpus)} {ms:.3g}' for u, ms in machine.ms.items())} ms"
        for machine in machines
    ]
    groups = sorted({group for machine in machines for group in machine.ms})
    looks = [curve(color, one.dashes) for color, one in zip(COLORS, machines, strict=False)]
    figure, axes = plot([headline, *rows], 4.9, headline, left=1.0, right=0.9, top=1.05, bottom=0.85)
    times = {machine.name: [ms / machine.ms[machine.first] for ms in machine.ms.values()] for machine in machines}
    most = max(map(max, times.values()))
    says = {1: "1\nring"} | ({8: "8\nUlysses"} if groups[-1] == 8 else {})
    across: Any = {"ends": (0.75, 1.3 * groups[-1]), "ticks": groups, "says": [says.get(u, str(u)) for u in groups]}
    scale(axes.xaxis, "GPUs that share the heads", log=2, **across)
    up: Any = {"ends": (0.93, 1.12 * most), "ticks": [level for level in LEVELS if level < 1.1 * most]}
    scale(axes.yaxis, "time, × the machine's fastest", log=10, says="{:g}".format, grid=True, **up)
    for machine, look, dot in zip(machines, looks, DOTS, strict=False):
        axes.plot(list(machine.ms), times[machine.name], gid=machine.name, marker="o", markersize=5, **look)
        axes.plot([machine.first], [1], gid="fastest", marker="o", markersize=dot, color=look["color"])
        if len(groups) == 2:
            (left, right), (first, last) = machine.ms, times[machine.name]
            marks.word(axes, left, first, f"{machine.ms[left]:.3g} ms     ", ha="right")
            marks.word(axes, right, last, f"     {machine.ms[right]:.3g} ms", ha="left")
    how = {PUBLISHED: "published", COMPUTED: "computed"}
    said = [f"{one.name}, {how[one.dashes]}" for one in machines]
    if len(groups) > 2:
        said = [f"{text}: at best {one.ms[one.first]:.3g} ms" for text, one in zip(said, machines, strict=True)]
    line_legend(figure, list(zip(said, looks, strict=True)))
    return figure
