"""`parlab plan`: choose a layout for a model on a cluster."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from parlab.arguments import one_of, positive
from parlab.cli.options import Words, check_between, say

if TYPE_CHECKING:
    from parlab.plan import Estimate, Plans


def add(words: Words) -> None:
    """Add the word and its options."""
    word = words.add_parser("plan", help="choose a layout for a model on a cluster", description=plan.__doc__)
    word.add_argument("--model", required=True, help="llama-405b or 405b, gpt-175b or 175b, mixtral-8x7b or 8x7b, ...")
    word.add_argument("--cluster", default="dgx_h100", help="dgx_h100, dgx_a100 or classroom")
    word.add_argument("--gpus", type=int, required=True, help="all of them are used")
    word.add_argument("--batch", type=int, required=True, help="sequences of a step, of all replicas together")
    word.add_argument("--sequence", type=int, required=True, help="tokens of each")
    word.add_argument("--memory", type=float, help="GiB a device; else the device's")
    word.add_argument("--offload", action="store_true", help="also layouts whose optimizer is on the host")
    word.add_argument("--top", type=int, default=5, help="how many are listed")
    word.add_argument("--json", action="store_true", help="print the same as JSON")
    word.set_defaults(command=plan, names={"batch": "--batch", "sequence": "--sequence", "ranks": "--gpus"})


def plan(chosen: argparse.Namespace) -> int:
    """Estimate every layout that is possible; print the best, what their time and memory go to, why the others lose."""
    from parlab.nn.published_mixtures import MIXTRALS
    from parlab.plan import MODELS, search
    from parlab.world.cluster import CLUSTERS

    check_between("--top", chosen.top, 1, 10**6)
    if chosen.memory is not None:
        positive("--memory", chosen.memory)  # in GiB; the library's is in bytes
    models = {**MODELS, **MIXTRALS}
    spellings = [kind + chosen.model.lower() for kind in ("", "llama-", "gpt-", "mixtral-")]
    model = next((name for name in spellings if name in models), chosen.model)
    one_of("--model", model, tuple(models))
    one_of("--cluster", chosen.cluster, tuple(CLUSTERS))
    asked = {"batch": chosen.batch, "sequence": chosen.sequence, "offload": chosen.offload}
    memory = None if chosen.memory is None else chosen.memory * 2**30
    plans = search(models[model], CLUSTERS[chosen.cluster], chosen.gpus, memory=memory, **asked)
    try:
        best = plans.best
    except ValueError as error:  # nothing fits; the planner's text has the memory in bytes, the option in GiB
        _, _, said = str(error).partition(": ")
        raise ValueError(f"--memory={plans.memory / 2**30:.4g}: {said}") from error
    shown = list(islice(plans, chosen.top))
    say(_as_json(plans, shown) if chosen.json else _as_text(plans, best, shown))
    return 0


def _as_text(plans: Plans, best: Estimate, shown: Sequence[Estimate]) -> str:
    """A table of the fastest, the bills of the first, and its neighbours."""
    from parlab.plan import why
    from parlab.world.units import format_bytes

    lines = [f"{len(plans.layouts)} layouts are possible, {len(plans)} fit in {format_bytes(plans.memory)}"]
    for e in shown:
        lines.append(f"{e.total_seconds:10.3f} s  MFU {e.mfu:.1%}  {format_bytes(e.total_bytes):>9}  {e.layout}")
    lines.append("Time of the first, by kind")
    lines += [f"{x:10.3f} s  {x / best.total_seconds:6.1%}  {kind}" for kind, x in best.seconds.items() if x]
    lines.append("Memory of its fullest rank, by kind")
    lines += [f"{format_bytes(x):>12}  {x / best.total_bytes:6.1%}  {kind}" for kind, x in best.bytes.items() if x]
    return "\n".join([*lines, "One field turned", str(why(plans))])


def _as_json(plans: Plans, shown: Sequence[Estimate]) -> str:
    """The same for programs, in seconds and bytes."""
    from parlab.plan import why

    entries = [{"layout": vars(e.layout), "seconds": e.seconds, "bytes": e.bytes, "mfu": e.mfu} for e in shown]
    losers = [
        {"knob": n.field, "value": n.value, "layout": vars(n.found.layout), "change": n.change, "binds": n.binds}
        | {"bytes": n.found.total_bytes}
        for n in why(plans)
    ]
    limit = plans.memory if math.isfinite(plans.memory) else None  # JSON has no number without end
    found = {"possible": len(plans.layouts), "fit": len(plans), "memory": limit, "best": entries, "why": losers}
    return json.dumps(found, indent=2)
