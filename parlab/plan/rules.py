"""The rules of layouts, in columns: of each field alone, and those that join fields with the model and the batch.

Invariant: `estimate` and `search` have the same rules. `estimate` refuses a layout by the first one that it breaks;
`search` drops layouts that break a joint one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import numpy as np

from parlab.plan.arguments import MOST_RANKS
from parlab.plan.layout import Layout
from parlab.plan.sizes import Sizes
from parlab.plan.software import MESH

# `memory.kept_of_layer` says what each keeps, `layer` what it computes again, `search` for which models it is tried
RECOMPUTE = ("none", "selective", "mlp.hidden", "full")
# Of each rule: its fields, the right values, the layouts that break it. {pp} in the text is the pp of one that does
Rules = Iterator[tuple[str, str, np.ndarray]]


def own_rules(layout: Layout) -> Rules:
    """The rules of each field alone. The first rule that is broken counts, so later rules may rely on earlier ones."""
    of = {name: np.asarray(value) for name, value in vars(layout).items()}
    counts = ("dp", "pp", "cp", "tp", "chunks", "microbatch", "ep")
    for name in (*counts, "zero", "recompute_layers"):
        yield name, "whole numbers are needed", np.asarray(of[name].dtype.kind not in "iu")
    for name in counts:
        yield name, "must be at least 1", of[name] < 1
        yield name, f"must be at most {MOST_RANKS}", of[name] > MOST_RANKS
    yield "recompute_layers", "must be at least 0", of["recompute_layers"] < 0
    ranks = reduce(np.multiply, (of[name].astype(float) for name in MESH))
    yield " ".join(MESH), f"their product, the number of ranks, must be at most {MOST_RANKS}", ranks > MOST_RANKS
    yield "zero", "use stage 0, 1, 2 or 3", ~np.isin(of["zero"], (0, 1, 2, 3))
    for name, choices in (("schedule", ("1f1b", "gpipe", "looped_bfs")), ("recompute", RECOMPUTE)):
        yield name, f"use one of {', '.join(choices)}", ~np.isin(of[name], choices)
    for name in ("sequence_parallel", "offload"):
        yield name, "must be True or False", ~np.isin(of[name], (False, True))
        yield name, "must be True or False", np.asarray(of[name].dtype.kind != "b")  # 0 and 1 are in (False, True) too


def joint_rules(sizes: Sizes, layout: Layout, batch: int, sequence: int) -> Rules:
    """The rules that join fields with each other, the model and the batch. Each field keeps its own rules already."""
    layout = layout.columns(np.int64)
    dp, pp, cp, tp, ep, chunks = layout.dp, layout.pp, layout.cp, layout.tp, layout.ep, layout.chunks
    in_microbatches = dp * layout.microbatch
    microbatches = batch // in_microbatches

    # Experts
    if sizes.num_experts:
        yield "ep", f"use a divisor of num_local_experts {sizes.num_experts}", sizes.num_experts % ep != 0
        yield "dp cp ep", "ep must divide dp · cp", dp * cp % ep != 0
    else:
        yield "ep", "the model has no experts: use 1", ep > 1

    # Sizes that tp divides
    divided = {"num_attention_heads": sizes.heads, "intermediate_size": sizes.mlp_columns}  # 0, if experts replace it
    for name, size in divided.items():
        yield "tp", f"{name} {size} does not divide among so many: use a divisor of {size}", size % tp != 0
    right = f"use a divisor or a multiple of num_key_value_heads {sizes.kv_heads}"
    yield "tp", right, (sizes.kv_heads % tp != 0) & (tp % sizes.kv_heads != 0)
    yield "tp", f"at most vocab_size {sizes.vocab_size}", tp > sizes.vocab_size

    # The sequence
    right = f"sequence {sequence} must be a multiple of 2·cp, two chunks a rank (zigzag)"
    yield "cp", right, (cp > 1) & (sequence % (2 * cp) != 0)
    right = f"sequence parallelism cuts sequence {sequence} by cp·tp: use a divisor"
    yield "cp tp", right, layout.sequence_parallel & (sequence % (cp * tp) != 0)

    # The batch, and the schedule
    yield "dp microbatch", f"batch {batch} must be a multiple of their product", batch % in_microbatches != 0
    right = f"batch {batch} has fewer microbatches a replica, batch / (dp {{dp}} · microbatch {{microbatch}})"
    yield "pp", right, microbatches < pp
    yield "chunks", "one stage a rank where pp is 1", (chunks > 1) & (pp == 1)
    yield "chunks", "gpipe has one stage a rank", (chunks > 1) & (layout.schedule == "gpipe")
    interleaved = (layout.schedule == "1f1b") & (chunks > 1)
    right = f"interleaving needs a batch ({batch}) of whole groups of pp microbatches"
    yield "pp chunks", right, interleaved & (microbatches % pp != 0)

    # The layers
    layers, alone = sizes.num_layers, layout.recompute_layers
    swiglu = sizes.fused_attention and not sizes.num_experts
    yield "recompute", "no layer of the model has such an array", (layout.recompute == "mlp.hidden") & (not swiglu)
    yield "recompute_layers", "all are recomputed already: use 0", (alone > 0) & (layout.recompute == "full")
    right = f"at most the layers of a rank: {layers} of pp {{pp}} ranks"
    yield "pp recompute_layers", right, alone > -(-layers // pp)
    yield "pp", f"{layers} layers are fewer than so many stages: at most {layers}", pp > layers
    less = "the last stage, or the first too, has a layer less"
    divisors = f"pp·chunks must divide {layers}, {layers + 1} or {layers + 2} ({less})"
    right = f"{layers} layers do not divide into so many stages: {divisors}"
    yield "pp chunks", right, (chunks > 1) & (-layers % (pp * chunks) > 2)


def possible(sizes: Sizes, layout: Layout, batch: int, sequence: int) -> np.ndarray:
    """For each layout whether it keeps the joint rules. Each field keeps its own rules already."""
    broken = reduce(np.logical_or, (broken for _, _, broken in joint_rules(sizes, layout, batch, sequence)))
    return np.broadcast_to(~broken, layout.shape)


def check_rules(layout: Layout, rules: Rules) -> None:
    """Refuse the first layout that breaks one of these rules: the text names the fields and the right values."""
    for fields, right, broken in rules:
        if broken.any():
            first = vars(layout[np.argmax(np.broadcast_to(broken, layout.shape))])
            said = ", ".join(f"{field}={first[field]!r}" for field in fields.split())
            raise ValueError(f"{said}: {right.format(**first)}")
