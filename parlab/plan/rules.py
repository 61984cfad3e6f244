"""The rules of layouts, in columns: of each field alone, and those that join fields with the model and the batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import numpy as np

from parlab.plan.arguments import MOST_RANKS
from parlab.plan.layout import Layout
from parlab.plan.sizes import Sizes
from parlab.plan.software import MESH

RECOMPUTE = ("none", "selective", "mlp.hidden", "full")
Rules = Iterator[tuple[str, str, np.ndarray]]  # of each rule: its fields, the right values, the layouts that break it


def own_rules(layout: Layout) -> Rules:
    """The rules of each field alone. The first rule that is broken counts, so later rules may rely on earlier ones."""
    of = {name: np.asarray(value) for name, value in vars(layout).items()}
    counts = ("dp", "pp", "cp", "tp", "chunks", "microbatch", "ep")
    some = ("recompute_layers", "group")
    for name in (*counts, "zero", *some):
        yield name, "whole numbers are needed", np.asarray(of[name].dtype.kind not in "iu")
    for name in counts:
        yield name, "must be at least 1", of[name] < 1
        yield name, f"must be at most {MOST_RANKS}", of[name] > MOST_RANKS
    for name in some:
        yield name, "must be at least 0", of[name] < 0
    ranks = reduce(np.multiply, (of[name].astype(float) for name in MESH))
    yield " ".join(MESH), f"their product, the number of ranks, must be at most {MOST_RANKS}", ranks > MOST_RANKS
    yield "zero", "use stage 0, 1, 2 or 3", ~np.isin(of["zero"], (0, 1, 2, 3))
    for name, choices in (("schedule", ("1f1b", "gpipe", "looped_bfs")), ("recompute", RECOMPUTE)):
        yield name, f"use one of {', '.join(choices)}", ~np.isin(of[name], choices)
    for name in ("sequence_parallel", "offload"):
        yield name, "must be True or False", ~np.isin(of[name], (False, True))
        yield name, "must be True or False", np.asarray(of[name].dtype.kind != "b")  # 0 and 1 are in (False, True) too


def joint_rules(sizes: Sizes, layout: Layout, B: int, S: int) -> Rules:
    """The rules that join fields with each other, the model and the batch. Each field keeps its own rules already."""
    of = {name: np.asarray(value) for name, value in vars(layout).items()}
    d, p, c, t, v, b = (of[name].astype(np.int64) for name in ("dp", "pp", "cp", "tp", "chunks", "microbatch"))
    e, alone, group = (of[name].astype(np.int64) for name in ("ep", "recompute_layers", "group"))
    L, H, G, M, V = sizes.num_layers, sizes.heads, sizes.kv_heads, sizes.mlp_columns, sizes.vocab_size
    m, missing, alternates = B // (d * b), -L % (p * v), of["schedule"] == "1f1b"
    if sizes.num_experts:
        yield "ep", f"use a divisor of num_local_experts {sizes.num_experts}", sizes.num_experts % e != 0
        yield "dp cp ep", "ep must divide dp · cp", d * c % e != 0
    else:
        yield "ep", "the model has no experts: use 1", e > 1
    for name, size in (("num_attention_heads", H), *([] if sizes.num_experts else [("intermediate_size", M)])):
        yield "tp", f"{name} {size} does not divide among so many: use a divisor of {size}", size % t != 0
    yield "tp", f"use a divisor or a multiple of num_key_value_heads {G}", (G % t != 0) & (t % G != 0)
    yield "tp", f"at most vocab_size {V}", t > V
    yield "cp", f"sequence {S} must be a multiple of 2·cp, two chunks a rank (zigzag)", (c > 1) & (S % (2 * c) != 0)
    ragged = of["sequence_parallel"] & (S % (c * t) != 0)
    yield "cp tp", f"sequence parallelism cuts sequence {S} by cp·tp: use a divisor", ragged
    yield "dp microbatch", f"batch {B} must be a multiple of their product", B % (d * b) != 0
    yield "pp", f"batch {B} has fewer microbatches a replica, batch / (dp {{dp}} · microbatch {{microbatch}})", m < p
    yield "chunks", "one stage a rank where pp is 1", (v > 1) & (p == 1)
    yield "chunks", "gpipe has one stage a rank", (v > 1) & (of["schedule"] == "gpipe")
    ragged = (v > 1) & alternates & (group == 0) & (m % p != 0)
    yield "pp chunks", f"interleaving needs a batch ({B}) of whole groups of pp microbatches", ragged
    yield "group", "1f1b with several chunks alone has groups: use 0", (group > 0) & ~(alternates & (v > 1))
    uneven = (group > 0) & ((group < p) | (m % np.maximum(group, 1) != 0))
    right = f"batch {B} / (dp {{dp}} · microbatch {{microbatch}}) microbatches go in whole groups of at least pp {{pp}}"
    yield "group", right, uneven
    swiglu = sizes.fused_attention and not sizes.num_experts
    yield "recompute", "no layer of the model has such an array", (of["recompute"] == "mlp.hidden") & (not swiglu)
    yield "recompute_layers", "all are recomputed already: use 0", (alone > 0) & (of["recompute"] == "full")
    yield "pp recompute_layers", f"at most the layers of a rank: {L} of pp {{pp}} ranks", alone > -(-L // p)
    yield "pp", f"{L} layers are fewer than so many stages: at most {L}", p > L
    right = f"pp·chunks must divide {L}, {L + 1} or {L + 2} (the last stage, or the first too, has a layer less)"
    yield "pp chunks", f"{L} layers do not divide into so many stages: {right}", (v > 1) & (missing > 2)


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
