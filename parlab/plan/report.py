"""What is said of plans: why the best is the best, and the tables and numbers of the command `parlab plan`."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice
from typing import NamedTuple

import numpy as np

from parlab.arguments import one_of, whole
from parlab.plan.estimate import Estimate, estimate
from parlab.plan.hardware import CLUSTERS
from parlab.plan.layout import Layout
from parlab.plan.models import MODELS
from parlab.plan.search import MESH, Plans, search
from parlab.world.units import format_bytes

ORDERED = ("tp", "cp", "pp", "chunks", "microbatch", "zero")


class Neighbour(NamedTuple):
    """A layout that differs in one knob; of the mesh, in another too, which gives or takes its ranks."""

    knob: str
    value: object
    turned: str  # both in words, and what gives or takes the ranks
    found: Estimate
    change: float  # of the time of a step, relative
    binds: str  # memory, where it does not fit; else the kind of seconds that grew most, or "nothing: it is faster"


class Why(list[Neighbour]):
    """The neighbours of a layout, `base`; prints as a table."""

    def __init__(self, base: Estimate, neighbours: list[Neighbour]) -> None:
        super().__init__(neighbours)
        self.base = base

    def __str__(self) -> str:
        first = f"{self.base.layout}: {self.base.total_seconds:.3f} s, {format_bytes(self.base.total_bytes)}"
        rows = [f"  {n.turned:24} {n.change:+8.1%} {format_bytes(n.found.total_bytes):>9}  {n.binds}" for n in self]
        return "\n".join([first, *rows])


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
    columns, at = plans.layouts.columns, vars(base.layout)
    # Besides the knob itself, one of the mesh may differ, and no other
    differs = {knob: (column != at[knob]) * (1 if knob in MESH else 2) for knob, column in columns.items()}
    distance = sum(differs.values())
    close = np.flatnonzero(distance <= 3)
    time = np.where(plans.bytes[close] <= plans.memory, plans.seconds[close], np.inf)
    fastest = close[np.lexsort((plans.bytes[close], time))]
    found = Why(base, [])
    for knob in (*ORDERED, "schedule", "sequence_parallel", "recompute", "offload"):
        near = fastest[(distance - differs[knob])[fastest] <= 1]
        values = columns[knob][near]
        others = np.unique(values[values != at[knob]]).tolist()
        if knob in ORDERED:
            others = [*[x for x in others if x < at[knob]][-1:], *[x for x in others if x > at[knob]][:1]]
        found += [_neighbour(knob, plans.entry(near[np.argmax(values == x)]), base, plans.memory) for x in others]
    return found


def _neighbour(knob: str, found: Estimate, base: Estimate, memory: float) -> Neighbour:
    now, before = vars(found.layout), vars(base.layout)
    turned = [knob, *(name for name in MESH if name != knob and now[name] != before[name])]
    change = found.total_seconds / base.total_seconds - 1
    most, seconds = max(
        ((kind, found.seconds[kind] - x) for kind, x in base.seconds.items()), key=lambda grown: grown[1]
    )
    if found.total_bytes > memory:
        binds = f"memory: {format_bytes(found.total_bytes)} of {format_bytes(memory)}"
    elif change < 0:
        binds = "nothing: it is faster"
    else:
        binds = f"{most}: {seconds:+.3f} s" if seconds > 0 else "nothing: it takes as long"
    return Neighbour(knob, now[knob], ", ".join(f"{name} {now[name]}" for name in turned), found, change, binds)


def plans_of(
    model: str, cluster: str, gpus: int, batch: int, sequence: int, memory: float | None = None, offload: bool = False
) -> Plans:
    """The search, by names: of a model `405b` or `llama-405b`; memory in GiB.

    Raises:
        ValueError: a name that is not known, or what `search` refuses.
    """
    name = next((name for name in (model.lower(), f"llama-{model.lower()}") if name in MODELS), model)
    one_of("model", name, tuple(MODELS))
    one_of("cluster", cluster, tuple(CLUSTERS))
    limit = None if memory is None else memory * 2**30
    return search(MODELS[name], CLUSTERS[cluster], gpus, batch=batch, sequence=sequence, memory=limit, offload=offload)


def as_text(plans: Plans, top: int = 5) -> str:
    """A table of the fastest, the bills of the first, and its neighbours.

    Raises:
        ValueError: nothing fits, or no number of layouts to list.
    """
    best = plans.best
    lines = [f"{len(plans.layouts)} layouts are possible, {len(plans)} fit in {format_bytes(plans.memory)}"]
    for e in islice(plans, whole("top", top, 1)):
        lines.append(f"{e.total_seconds:10.3f} s  MFU {e.mfu:.1%}  {format_bytes(e.total_bytes):>9}  {e.layout}")
    lines.append("Time of the first, by kind")
    lines += [f"{x:10.3f} s  {x / best.total_seconds:6.1%}  {kind}" for kind, x in best.seconds.items() if x]
    lines.append("Memory of its fullest rank, by kind")
    lines += [f"{format_bytes(x):>12}  {x / best.total_bytes:6.1%}  {kind}" for kind, x in best.bytes.items() if x]
    return "\n".join([*lines, "One knob turned", str(why(plans))])


def as_json(plans: Plans, top: int = 5) -> str:
    """The same, for programs: seconds, and bytes."""
    shown = islice(plans, whole("top", top, 1))
    entries = [{"layout": asdict(e.layout), "seconds": e.seconds, "bytes": e.bytes, "mfu": e.mfu} for e in shown]
    losers = [
        {"knob": n.knob, "value": n.value, "layout": asdict(n.found.layout), "change": n.change, "binds": n.binds}
        for n in why(plans)
    ]
    return json.dumps({"possible": len(plans.layouts), "fit": len(plans), "best": entries, "why": losers}, indent=2)
