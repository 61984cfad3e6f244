"""The neighbours of a layout, and what speaks against each: memory, or the kind of seconds that grew most.

Invariant: a neighbour makes one choice otherwise: one field, or two sizes of the mesh, whose product is the ranks.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from parlab.arguments import instance
from parlab.plan.estimate import Estimate, estimate
from parlab.plan.layout import Layout
from parlab.plan.plans import Plans
from parlab.plan.software import MESH
from parlab.world.units import format_bytes

# Fields that are numbers. dp is not among them: it changes with another size of the mesh
ORDERED = ("tp", "cp", "pp", "ep", "chunks", "microbatch", "zero", "recompute_layers")


class Neighbour(NamedTuple):
    """A layout that differs in one field. Where that is a size of the mesh, another size gives or takes the ranks."""

    field: str
    value: object
    in_words: str  # field and value, and the other size of the mesh
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
        rows = [f"  {n.in_words:24} {n.change:+8.1%} {format_bytes(n.found.total_bytes):>9}  {n.binds}" for n in self]
        return "\n".join([first, *rows, *self.verdict()])

    def verdict(self) -> list[str]:
        """Lines that say from which usable memory on another layout is the best; none if it stays the same."""
        if len(self.flips) < 2:
            return []
        first, *later = self.flips
        lines = [f"usable memory decides: up to {format_bytes(later[0].total_bytes)} the best is {first.layout}"]
        return lines + [f"  from {format_bytes(e.total_bytes)} on {e.layout}: {e.total_seconds:.3f} s" for e in later]


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
    base = plans.best if layout is None else estimate(layout=layout, **plans.asked)
    columns, at = vars(plans.layouts), vars(base.layout)
    # One field differs, or two sizes of the mesh
    distance = sum((column != at[field]) * (1 if field in MESH else 2) for field, column in columns.items())
    close = np.flatnonzero(distance <= 2)
    fastest = close[np.lexsort((plans.bytes[close], plans.seconds[close]))]
    neighbours, listed = Why(), set()
    neighbours.base, neighbours.memory, neighbours.flips = base, plans.memory, plans.flips()
    for field in (*ORDERED, "schedule", "sequence_parallel", "recompute", "offload"):
        values = columns[field][fastest]
        for value in _next_values(field, values, at[field]):
            alike = fastest[values == value]
            chosen = [number for number in _shown_of(plans, alike, base) if number not in listed]
            neighbours += [_neighbour(field, plans.grid[number], base, plans.memory) for number in chosen]
            listed.update(chosen)
    return neighbours


def _shown_of(plans: Plans, alike: np.ndarray, base: Estimate) -> list[int]:
    """The neighbours that are listed of those with the same value, which are `alike`, the fastest first.

    They are the fastest one that fits, and the fastest one that does not, if it is faster than the base. If there is
    neither, it is the one with the fewest bytes.
    """
    fits = plans.bytes[alike] <= plans.memory
    inside, outside = alike[fits], alike[~fits]
    faster = outside[plans.seconds[outside] < base.total_seconds]
    shown = [*inside[:1], *faster[:1]]
    if not shown:
        shown = [outside[np.argmin(plans.bytes[outside])]]
    return [int(number) for number in shown]


def _next_values(field: str, values: np.ndarray, now: Any) -> list[Any]:
    """Of a number the next lower and the next higher one of `values`; of any other field all but the present one."""
    others: list[Any] = np.unique(values[values != now]).tolist()
    if field not in ORDERED:
        return others
    return [*[x for x in others if x < now][-1:], *[x for x in others if x > now][:1]]


def _change(now: float, before: float) -> float:
    """The relative change of a time. After a step that took no time it is 0 or infinite."""
    if before:
        return now / before - 1
    return math.inf if now else 0.0


def _neighbour(field: str, found: Estimate, base: Estimate, memory: float) -> Neighbour:
    now, before = vars(found.layout), vars(base.layout)
    changed = [field, *(name for name in MESH if name != field and now[name] != before[name])]
    in_words = ", ".join(f"{name} {now[name]}" for name in changed)
    change = _change(found.total_seconds, base.total_seconds)
    return Neighbour(field, now[field], in_words, found, change, _against(found, base, memory))


def _against(found: Estimate, base: Estimate, memory: float) -> str:
    """The reason against a neighbour of `base`: memory, which may be just full, or the kind that grew most."""
    if found.total_bytes > memory:
        return f"memory: {format_bytes(found.total_bytes)} of {format_bytes(memory)}"
    if found.total_seconds < base.total_seconds:
        return "nothing: it is faster"
    grown = {kind: seconds - base.seconds[kind] for kind, seconds in found.seconds.items()}
    kind = max(grown, key=lambda kind: grown[kind])
    return f"{kind}: {grown[kind]:+.3f} s" if grown[kind] > 0 else "nothing: it takes as long"
