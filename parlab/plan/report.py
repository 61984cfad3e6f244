"""What `parlab plan` prints: the best layouts, the two bills of the first, and why the others lose."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice

from parlab.arguments import whole
from parlab.plan.models import MODELS
from parlab.plan.search import Plans, search
from parlab.plan.why import why
from parlab.world import cluster as clusters
from parlab.world.units import format_bytes

CLUSTERS = {"dgx_h100": clusters.DGX_H100, "dgx_a100": clusters.DGX_A100, "classroom": clusters.CLASSROOM}


def plans_of(
    model: str, cluster: str, gpus: int, batch: int, sequence: int, memory: float | None = None, offload: bool = False
) -> Plans:
    """The search, by names: of a model `405b` or `llama-405b`; memory in GiB.

    Raises:
        ValueError: a name that is not known, or what `search` refuses.
    """
    name = model.lower() if model.lower() in MODELS else f"llama-{model.lower()}"
    if name not in MODELS:
        raise ValueError(f"model={model!r}: use one of {', '.join(MODELS)}")
    if cluster not in CLUSTERS:
        raise ValueError(f"cluster={cluster!r}: use one of {', '.join(CLUSTERS)}")
    limit = None if memory is None else memory * 2**30
    known = MODELS[name], CLUSTERS[cluster]
    return search(*known, gpus, batch=batch, sequence=sequence, memory=limit, offload=offload)


def as_text(plans: Plans, top: int = 5) -> str:
    """A table of the fastest, the bills of the first, and its neighbours.

    Raises:
        ValueError: nothing fits, or no number of layouts to list.
    """
    best = plans.best
    lines = [f"{len(plans.layouts)} layouts are possible, {len(plans)} fit in {format_bytes(plans.memory)}"]
    for entry in islice(plans, whole("top", top, 1)):
        mfu = f"MFU {entry.mfu:.1%}"
        lines.append(f"{entry.total_seconds:10.3f} s  {mfu}  {format_bytes(entry.total_bytes):>9}  {entry.layout}")
    lines.append("Time of the first, by kind")
    lines += [f"{x:10.3f} s  {x / best.total_seconds:6.1%}  {kind}" for kind, x in best.seconds.items() if x]
    lines.append("Memory of its fullest rank, by kind")
    lines += [f"{format_bytes(x):>12}  {x / best.total_bytes:6.1%}  {kind}" for kind, x in best.bytes.items() if x]
    return "\n".join([*lines, "One knob turned", str(why(plans))])


def as_json(plans: Plans, top: int = 5) -> str:
    """The same, for programs: seconds, and bytes."""
    entries = [
        {"layout": asdict(entry.layout), "seconds": entry.seconds, "bytes": entry.bytes, "mfu": entry.mfu}
        for entry in islice(plans, whole("top", top, 1))
    ]
    losers = [
        {"knob": n.knob, "value": n.value, "layout": asdict(n.found.layout), "change": n.change, "binds": n.binds}
        for n in why(plans)
    ]
    return json.dumps({"possible": len(plans.layouts), "fit": len(plans), "best": entries, "why": losers}, indent=2)
