"""Why a layout: what each knob, turned by one notch, would change, and what binds there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from parlab.plan.estimate import Estimate, estimate
from parlab.plan.layout import Layout
from parlab.plan.search import Plans
from parlab.world.units import format_bytes

MESH = ("tp", "cp", "pp", "dp")
ORDERED = (*MESH[:3], "chunks", "microbatch", "zero")


class Neighbour(NamedTuple):
    """A layout that differs in one knob; of the mesh, in another too, which gives or takes its ranks.

    Attributes:
        knob, value: what was turned, and to what.
        found: its estimate.
        change: of the time of a step, relative.
        binds: memory, where it does not fit; else the kind of seconds that grew most, or "nothing: it is faster".
    """

    knob: str
    value: object
    found: Estimate
    change: float
    binds: str


@dataclass(frozen=True)
class Why:
    """The neighbours of a layout; iterates over them, and prints as a table."""

    base: Estimate
    neighbours: list[Neighbour]

    def __iter__(self) -> Iterator[Neighbour]:
        return iter(self.neighbours)

    def __str__(self) -> str:
        base = self.base
        lines = [f"{base.layout}: {base.total_seconds:.3f} s, {format_bytes(base.total_bytes)}"]
        for knob, value, found, change, binds in self.neighbours:
            mesh = [f"{name} {getattr(found.layout, name)}" for name in MESH if name != knob]
            moved = [
                text
                for text, name in zip(mesh, [n for n in MESH if n != knob], strict=True)
                if getattr(found.layout, name) != getattr(base.layout, name)
            ]
            turned = ", ".join([f"{knob} {value}", *moved])
            lines.append(f"  {turned:24} {change:+8.1%} {format_bytes(found.total_bytes):>9}  {binds}")
        return "\n".join(lines)


def why(plans: Plans, layout: Layout | None = None) -> Why:
    """Each knob's neighbours among the layouts that are possible: the next lower and the next higher value, or each
    other choice. Ranks that one strategy gives up another takes: of these, the fastest that fits, else the leanest.

    Args:
        plans: of a search.
        layout: None: the best.

    Raises:
        ValueError: nothing fits, or the layout is not possible.
    """
    base = plans.best if layout is None else estimate(layout=layout, **plans.asked)
    columns = plans.layouts.columns
    same = {name: column == getattr(base.layout, name) for name, column in columns.items()}
    rank = np.where(plans.bytes <= plans.memory, plans.seconds, np.inf)
    neighbours = []
    for knob in (*ORDERED, "schedule", "sequence_parallel", "recompute", "offload"):
        equal = np.logical_and.reduce(
            [same[f.name] for f in fields(Layout) if f.name not in {knob, *(MESH if knob in MESH else ())}]
        )
        if knob in MESH:
            equal &= sum(same[name].astype(int) for name in MESH if name != knob) >= 2
        for value in _next(getattr(base.layout, knob), np.unique(columns[knob][equal]), knob in ORDERED):
            rows = np.flatnonzero(equal & (columns[knob] == value))
            row = rows[np.lexsort((plans.bytes[rows], rank[rows]))[0]]
            neighbours.append(_neighbour(knob, value, plans.entry(row), base, plans.memory))
    return Why(base, neighbours)


def _next(value: object, others: np.ndarray, ordered: bool) -> list:
    """The notches beside a value."""
    if not ordered:
        return [other for other in others.tolist() if other != value]
    return [*others[others < value][-1:].tolist(), *others[others > value][:1].tolist()]


def _neighbour(knob: str, value: object, found: Estimate, base: Estimate, memory: float) -> Neighbour:
    change = found.total_seconds / base.total_seconds - 1
    grown = {kind: found.seconds[kind] - base.seconds[kind] for kind in base.seconds}
    most = max(grown, key=lambda kind: grown[kind])
    if found.total_bytes > memory:
        binds = f"memory: {format_bytes(found.total_bytes)} of {format_bytes(memory)}"
    elif change < 0:
        binds = "nothing: it is faster"
    else:
        binds = f"{most}: {grown[most]:+.3f} s" if grown[most] > 0 else "nothing: it takes as long"
    return Neighbour(knob, value, found, change, binds)
