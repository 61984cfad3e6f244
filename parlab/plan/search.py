"""The search: all possible layouts, the best one that fits, and why the others are slower or do not fit.

Invariant: of the values that each field may take, every possible layout is estimated, in columns. A layout is dropped
as soon as one rule cannot be kept, in three stages: meshes, ways to run each mesh, and the fields that change no
layer's work. So columns stay short, because a stage multiplies only what the stage before has left.

Source: Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters", section 3, weighs the
same choices one by one; here all are tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from parlab.arguments import flag, instance, positive
from parlab.nn.config import Config
from parlab.plan.arguments import MOST_RANKS, count
from parlab.plan.case import Case, Sizes
from parlab.plan.estimate import Estimate, check_job, estimate, evaluate
from parlab.plan.layout import Layout, check_layouts
from parlab.plan.machine import Hardware, Machine, hardware_of
from parlab.plan.rules import check_rules, own_rules, possible
from parlab.plan.software import MESH, Software, software_of
from parlab.world import Cluster
from parlab.world.units import format_bytes

ORDERED = ("tp", "cp", "pp", "ep", "chunks", "microbatch", "zero")


@dataclass(repr=False)
class Plans(Sequence[Estimate]):
    """The result of a search: the layouts that fit in `memory` bytes a device, the fastest first.

    Of two equally fast ones the one with fewer bytes comes first.

    Attributes:
        asked: the arguments of `estimate` besides the layout.
        grid: the estimate of all possible layouts, in columns, whether they fit or not.
        layouts, seconds, bytes: of the grid: its layouts, their seconds a step, and the bytes of their fullest ranks.
        order: the numbers, in the grid, of the layouts that fit.
    """

    memory: float
    asked: dict[str, Any]
    grid: Estimate

    def __post_init__(self) -> None:
        self.layouts, self.seconds, self.bytes = self.grid.layout, self.grid.total_seconds, self.grid.total_bytes
        self.order = _in_order(self.seconds, self.bytes, self.memory)

    def __repr__(self) -> str:
        best = f"; the best: {self[0].layout}" if len(self) else ""
        later = " and ".join(format_bytes(e.total_bytes) for e in self.flips()[1:])
        flips = f"; another one from {later} of usable memory on" if later else ""
        return f"Plans: of {len(self.bytes)} layouts {len(self)} fit in {format_bytes(self.memory)}{best}{flips}"

    @property
    def band(self) -> tuple[float, float]:
        """The least and the most bytes that are usable of the device; `memory` twice if it is not one of these."""
        usable = (self.asked["hardware"] or hardware_of(self.asked["cluster"])).usable
        low, high = (end * 2**30 for end in usable or (math.inf, 0))
        return (low, high) if low <= self.memory <= high else (self.memory, self.memory)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: Any) -> Any:
        return self.grid[self.order[place]]

    @property
    def best(self) -> Estimate:
        """The fastest layout that fits.

        Raises:
            ValueError: no layout fits; the text says how much memory the smallest one needs.
        """
        if len(self):
            return self[0]
        leanest, limit = self.grid[np.argmin(self.bytes)], format_bytes(self.memory)
        needed = f"the leanest needs {format_bytes(leanest.total_bytes)} ({leanest.layout})"
        raise ValueError(f"memory={self.memory:g}: none of {len(self.bytes)} layouts fits in {limit}; {needed}")

    def flips(self, low: float | None = None, high: float | None = None) -> list[Estimate]:
        """The best layout of `low` usable bytes, then each that takes over as they grow to `high`, at its own bytes.

        None: the ends of `band`. The list begins later where nothing fits in `low`.

        >>> from parlab.plan import LLAMA_405B
        >>> from parlab.world import DGX_H100
        >>> found = search(LLAMA_405B, DGX_H100, 16384, batch=2048, sequence=8192, cp=1).flips()
        >>> [f"{e.total_bytes / 2**30:.1f} GiB, pp {e.layout.pp}: {e.total_seconds:.2f} s" for e in found]
        ['71.0 GiB, pp 16: 6.61 s', '76.2 GiB, pp 16: 6.58 s', '77.0 GiB, pp 8: 6.25 s']
        """
        low, high = (end if asked is None else asked for end, asked in zip(self.band, (low, high), strict=True))
        numbers = np.lexsort((self.seconds, np.maximum(self.bytes, low)))
        numbers = numbers[self.bytes[numbers] <= high]
        before = np.minimum.accumulate([np.inf, *self.seconds[numbers]])[:-1]
        return [self.grid[number] for number in numbers[self.seconds[numbers] < before]]

    def front(self) -> list[Estimate]:
        """The layouts that fit and that no other one beats in both time and memory, the fastest first."""
        return [self.grid[number] for number in worth_having(self.seconds, self.bytes, self.memory)]


def worth_having(seconds: np.ndarray, nbytes: np.ndarray, memory: float) -> list[int]:
    """The numbers of the layouts that fit and that no other one beats in both, the fastest first.

    Args:
        seconds, nbytes: of each layout.
        memory: bytes of a device; exactly full fits.

    >>> worth_having(np.array([3.0, 1.0, 2.0, 2.5]), np.array([10, 90, 40, 50]), memory=80)
    [2, 0]
    """
    order = _in_order(seconds, nbytes, memory)
    held = nbytes[order]
    return order[held < np.minimum.accumulate([np.inf, *held])[:-1]].tolist()


def binding(before: Mapping[str, float], after: Mapping[str, float], nbytes: float, memory: float) -> str:
    """The reason against a neighbour: "memory", "nothing" if its step is shorter, or the kind that grew most.

    Args:
        before, after: seconds by kind of a layout, and of its neighbour.
        nbytes: bytes that the neighbour holds; exactly `memory` fits.
        memory: bytes of a device.

    >>> binding({"tp": 1.0, "bubble": 3.0}, {"tp": 2.5, "bubble": 2.0}, nbytes=70, memory=80)
    'tp'
    """
    if nbytes > memory:
        return "memory"
    if sum(after.values()) < sum(before.values()):
        return "nothing"
    return max(after, key=lambda kind: after[kind] - before[kind])


def _in_order(seconds: np.ndarray, nbytes: np.ndarray, memory: float) -> np.ndarray:
    """The numbers of the layouts that fit, the fastest first, of equally fast ones the leanest."""
    fits = np.flatnonzero(nbytes <= memory)
    return fits[np.lexsort((nbytes[fits], seconds[fits]))]


class Neighbour(NamedTuple):
    """A layout that differs in one field. Where that is a size of the mesh, another size gives or takes the ranks."""

    knob: str
    value: object
    turned: str  # both in words, and the other size of the mesh
    found: Estimate
    change: float  # of the time of a step, relative
    binds: str  # memory, if it does not fit; else the kind of seconds that grew most, or "nothing: it is faster"


class Why(list[Neighbour]):
    """The neighbours of the layout `base`. It prints as a table."""

    base: Estimate
    memory: float  # bytes of a device
    flips: list[Estimate]  # the best of the least usable memory, then each that takes over

    def __str__(self) -> str:
        first = f"{self.base.layout}: {self.base.total_seconds:.3f} s, {format_bytes(self.base.total_bytes)}"
        rows = [f"  {n.turned:24} {n.change:+8.1%} {format_bytes(n.found.total_bytes):>9}  {n.binds}" for n in self]
        return "\n".join([first, *rows, *self.verdict()])

    def verdict(self) -> list[str]:
        """Lines that say from which usable memory on another layout is the best; none if it stays the same."""
        if len(self.flips) < 2:
            return []
        first, *later = self.flips
        lines = [f"usable memory decides: up to {format_bytes(later[0].total_bytes)} the best is {first.layout}"]
        return lines + [f"  from {format_bytes(e.total_bytes)} on {e.layout}: {e.total_seconds:.3f} s" for e in later]


def search(
    config: Config,
    cluster: Cluster,
    ranks: int,
    *,
    batch: int,
    sequence: int,
    memory: float | None = None,
    offload: bool = False,
    hardware: Hardware | None = None,
    software: Software | None = None,
    **fixed: Any,
) -> Plans:
    """Estimate every possible layout of `ranks` ranks.

    Args:
        config, cluster, batch, sequence: as for `estimate`.
        ranks: their number; all of them are used.
        memory: bytes of a device. None: those of the cluster's device.
        offload: try layouts with the optimizer on the host, too.
        hardware, software: as for `estimate`.
        fixed: fields of a layout with one value, `cp=1`, or a list of values.

    Raises:
        ValueError: a bad number, an unknown field, or no possible layout.

    >>> from parlab.plan import LLAMA_405B
    >>> from parlab.world import DGX_H100
    >>> print(search(LLAMA_405B, DGX_H100, 16384, batch=2048, sequence=8192, cp=1).best.layout)
    dp 128, pp 16, cp 1, tp 8, chunks 8, ZeRO-2, looped_bfs, sequence parallel
    """
    check_job(config, cluster, batch, sequence, hardware, software)
    count("ranks", ranks, MOST_RANKS)
    if memory is not None:
        positive("memory", memory)
    flag("offload", offload)
    machine = Machine(cluster, hardware)
    memory = machine.device.memory if memory is None else memory
    sizes, divisors = Sizes(config), _divisors(ranks)
    knobs: dict[str, list] = {
        **dict.fromkeys(MESH, divisors),
        "chunks": sorted({v for layers in range(sizes.num_layers, sizes.num_layers + 3) for v in _divisors(layers)}),
        "microbatch": [b for b in range(1, 17) if batch % b == 0],  # as in papers: a pipeline needs many
        "sequence_parallel": [False, True],
        "recompute": ["none", "full"] if sizes.fused_attention else ["none", "selective", "full"],
        "zero": [1, 2, 3],  # 0 is never faster nor smaller
        "schedule": ["1f1b", "looped_bfs"],
        "offload": [False, True] if offload else [False],
        "ep": _divisors(sizes.num_experts) if sizes.num_experts else [1],
    }
    if unknown := set(fixed) - set(knobs):
        raise ValueError(f"{min(unknown)}={fixed[min(unknown)]!r}: the knobs are {', '.join(knobs)}")
    for name, value in fixed.items():  # one value or several
        values = value.tolist() if hasattr(value, "tolist") else value
        knobs[name] = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else [values]
        for one in knobs[name]:  # each alone: in one column 1 and "1" would be the same
            layout = Layout(**{name: one})
            check_rules(layout, own_rules(layout))
    knobs |= {name: [n for n in divisors if n in knobs[name]] for name in MESH}
    # A layout is dropped as soon as one rule cannot be kept. First the meshes
    mesh = Layout(**_axes(knobs, "tp", "cp", "pp"))
    mesh = mesh.but(dp=ranks // mesh.ranks)
    mesh = mesh[np.flatnonzero((mesh.ranks == ranks) & np.isin(mesh.dp, knobs["dp"]))]
    mesh = mesh[np.flatnonzero(possible(sizes, mesh, batch, sequence))]
    # Then, with each mesh, the fields on which a layer's work depends, under the schedule with the fewest rules
    ways = mesh.but(
        schedule="looped_bfs", **_axes(knobs, "chunks", "microbatch", "sequence_parallel", "recompute", "ep")
    )
    ways = ways[np.flatnonzero(possible(sizes, ways, batch, sequence))]
    # Last, with each of these, all other fields
    grid = ways.but(**_axes(knobs, "offload", "schedule", "zero"))
    # ZeRO or sequence parallelism among one rank is the same as none: one layout of these is enough
    same = (grid.dp * grid.cp == 1) & (grid.zero > 1) & ("zero" not in fixed)
    same = same | ((grid.tp == 1) & grid.sequence_parallel & ("sequence_parallel" not in fixed))
    chosen = np.flatnonzero(possible(sizes, grid, batch, sequence) & ~same)
    if not len(chosen):
        asked = {"ranks": ranks, "batch": batch, "sequence": sequence, **fixed}
        said = ", ".join(f"{name}={value!r}" for name, value in asked.items())
        raise ValueError(f"{said}: no layout is possible for these")
    case = Case(config, grid, batch, sequence, software=software or software_of(cluster))
    asked = {"config": config, "cluster": cluster, "batch": batch, "sequence": sequence}
    asked |= {"hardware": hardware, "software": software}
    return Plans(memory, asked, evaluate(case, machine, grid)[chosen])


def _divisors(number: int) -> list[int]:
    return sorted({d for n in range(1, int(number**0.5) + 1) if number % n == 0 for d in (n, number // n)})


def _axes(knobs: dict[str, list], *names: str) -> dict[str, np.ndarray]:
    """The values of each field along an axis of its own, before the axis of the columns."""
    *axes, _ = np.meshgrid(*(knobs[name] for name in names), 0, indexing="ij", sparse=True)
    return dict(zip(names, axes, strict=True))


def why(plans: Plans, layout: Layout | None = None) -> Why:
    """The neighbours of `layout` among the possible layouts. None: of the best one.

    A neighbour differs in one field. A number takes the next lower and the next higher value, any other field each
    other value. If a size of the mesh changes, another size of the mesh takes or gives the ranks. Of several such
    neighbours the fastest one that fits is listed; and of those that do not fit the fastest one, if it is faster than
    the base. If there is neither, the one with the fewest bytes is listed. No layout is listed twice.

    Raises:
        ValueError: nothing fits, or the layout is not possible.
    """
    instance("plans", plans, Plans)
    if layout is not None:
        check_layouts(layout)
    base = plans.best if layout is None else estimate(layout=layout, **plans.asked)
    columns, at = vars(plans.layouts), vars(base.layout)
    # One field differs, or two sizes of the mesh
    distance = sum((column != at[knob]) * (1 if knob in MESH else 2) for knob, column in columns.items())
    close = np.flatnonzero(distance <= 2)
    fastest = close[np.lexsort((plans.bytes[close], plans.seconds[close]))]
    fits = plans.bytes[fastest] <= plans.memory
    found, listed = Why(), set()
    found.base, found.memory, found.flips = base, plans.memory, plans.flips()
    for knob in (*ORDERED, "schedule", "sequence_parallel", "recompute", "offload"):
        values = columns[knob][fastest]
        others = np.unique(values[values != at[knob]]).tolist()
        if knob in ORDERED:
            others = [*[x for x in others if x < at[knob]][-1:], *[x for x in others if x > at[knob]][:1]]
        for x in others:
            inside, outside = (fastest[(values == x) & part] for part in (fits, ~fits))
            faster = outside[plans.seconds[outside] < base.total_seconds]
            leanest = outside[np.argsort(plans.bytes[outside], kind="stable")]
            forbidden = faster if len(inside) or len(faster) else leanest
            chosen = [int(number) for number in (*inside[:1], *forbidden[:1]) if number not in listed]
            found += [_neighbour(knob, plans.grid[number], base, plans.memory) for number in chosen]
            listed.update(chosen)
    return found


def _change(now: float, before: float) -> float:
    """The relative change of a time. After a step that took no time it is 0 or infinite."""
    if before:
        return now / before - 1
    return math.inf if now else 0.0


def _neighbour(knob: str, found: Estimate, base: Estimate, memory: float) -> Neighbour:
    now, before = vars(found.layout), vars(base.layout)
    turned = [knob, *(name for name in MESH if name != knob and now[name] != before[name])]
    change = _change(found.total_seconds, base.total_seconds)
    kind = binding(base.seconds, found.seconds, found.total_bytes, memory)
    if kind == "memory":
        binds = f"memory: {format_bytes(found.total_bytes)} of {format_bytes(memory)}"
    elif kind == "nothing":
        binds = "nothing: it is faster"
    else:
        grown = found.seconds[kind] - base.seconds[kind]
        binds = f"{kind}: {grown:+.3f} s" if grown > 0 else "nothing: it takes as long"
    return Neighbour(knob, now[knob], ", ".join(f"{name} {now[name]}" for name in turned), found, change, binds)
