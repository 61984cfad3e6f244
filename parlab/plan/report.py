"""The command `parlab plan`: its search by names, and what it prints of the plans."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice

from parlab.arguments import one_of, whole
from parlab.plan.models import CLUSTERS, MODELS
from parlab.plan.search import Plans, search, why
from parlab.world.units import format_bytes


def plans_of(
    model: str, cluster: str, gpus: int, batch: int, sequence: int, memory: float | None = None, offload: bool = False
) -> Plans:
    """The search, by names: of a model `405b` or `llama-405b`; memory in GiB."""
    name = next((name for name in (model.lower(), f"llama-{model.lower()}") if name in MODELS), model)
    one_of("model", name, tuple(MODELS))
    one_of("cluster", cluster, tuple(CLUSTERS))
    limit = None if memory is None else memory * 2**30
    return search(MODELS[name], CLUSTERS[cluster], gpus, batch=batch, sequence=sequence, memory=limit, offload=offload)


def as_text(plans: Plans, top: int = 5) -> str:
    """A table of the fastest, the bills of the first, and its neighbours."""
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
