"""A digest of a hundred programs from all rooms: one line each for the clock, the held bytes, and the results' bits.

    python -m tests.digest before.json      # on one commit
    python -m tests.digest after.json       # on another, then compare the files

`tests/test_digest.py` holds the clock to the stored `tests/data/digest.json`: messages, bytes, and when each of them
and each compute begins and ends are the same on every machine. Results depend in their last bits on the BLAS, so they
are compared only between two commits on one machine. The programs call public names only.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from parlab import Cluster, per_rank, pipeline, run, sequence
from parlab.nn.optimizer import AdamW
from parlab.pipeline import Costs, simulate
from parlab.tensor import ParallelLlama
from parlab.train import Mesh, Trainer
from parlab.world import DGX_A100, Timeline
from parlab.zero import replica_of, train_replica
from tests.models import random_batches, random_llama

NODES = Cluster.uniform(latency=1e-6, bandwidth=2e9)
SIZES = {"vocab_size": 17, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 4}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
STORED = Path(__file__).parent / "data" / "digest.json"


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def collectives() -> Iterator[tuple[str, Any]]:
    """Each collective, by each of its algorithms, on powers of two and others."""
    algorithms = {
        "all_reduce": (None, "recursive_doubling", "rabenseifner"),
        "all_gather": (None, "bruck"),
        "reduce_scatter": (None,),
        "all_to_all": (None, "bruck"),
    }
    for size in (2, 4, 5, 7):
        for name, choices in algorithms.items():
            for algorithm in choices:

                def program(comm, x, name=name, algorithm=algorithm):
                    axes = {"split_axis": 0, "concat_axis": 0} if name == "all_to_all" else {}
                    return getattr(comm, name)(x, algorithm=algorithm, **axes)

                x = per_rank([numbers(2 * size, 3, seed=rank) for rank in range(size)])
                yield f"{name} {algorithm or 'default'} {size}", run(program, size, x, cluster=NODES)
        yield f"broadcast {size}", run(lambda comm, x: comm.broadcast(x, 1), size, numbers(5), cluster=NODES)
        yield f"reduce {size}", run(lambda comm, x: comm.reduce(x, 1), size, numbers(5), cluster=NODES)


def attend(comm, dout, q, k, v, method, how):
    forward, backward = (getattr(sequence, f"{method}_attention{end}") for end in ("", "_backward"))
    out, lse = forward(comm, q, k, v, **how)
    return out, lse, *backward(comm, dout, q, k, v, out, lse, **how)


def attention() -> Iterator[tuple[str, Any]]:
    """Each method, forward and backward, with each layout and option."""
    cases = [("ring", P, {"layout": layout, "causal": c})
             for P in (1, 2, 3, 4) for layout in sequence.LAYOUTS for c in (False, True)]  # fmt: skip
    documents = {"documents": [0, 5, 12, 24], "causal": True}
    cases += [("ring", 4, documents), ("ring", 3, {**documents, "layout": "zigzag", "documents": [0, 12, 24]})]
    cases += [("ring", 4, {**documents, "layout": "striped"}), ("allgather", 3, documents), ("ulysses", 2, documents)]
    for P in (2, 4):
        cases += [(method, P, {"causal": True}) for method in ("ulysses", "allgather", "double_ring")]
        cases += [("double_ring", P, {"ranks_per_node": 2}), ("usp", P, {"ulysses": 2, "causal": True})]
        cases += [("window", P, {"window": W}) for W in (2, 5)]
    for method, P, how in cases:
        shards = []
        for heads, seed in ((4, 1), (4, 2), (2, 3), (2, 4)):
            x = numbers(2, heads, 24, 6, seed=seed)
            shards.append(per_rank(sequence.shard(x, P, how.get("layout", "contiguous"), axis=2)))
        yield f"{method} {P} {how}", run(attend, P, *shards, method, how)
    for P in (3, 4):
        q = numbers(1, 4, 2, 6, seed=5)
        shards = [per_rank(sequence.shard(numbers(1, 2, 12, 6, seed=seed), P, axis=2)) for seed in (6, 7)]
        yield f"tree {P}", run(sequence.tree_attention, P, q, *shards, replicated=True)


def schedules() -> dict[str, pipeline.Schedule]:
    p, m = 4, 8
    made = {name: getattr(pipeline, name)(p, m) for name in ("gpipe", "one_f_one_b", "zb_h1", "zb_h2", "zb_v", "v_half",
            "v_min", "dualpipe", "dualpipe_v", "one_f_one_b_v")}  # fmt: skip
    made["looped_bfs"] = pipeline.looped_bfs(p, m, 2)
    made["interleaved_one_f_one_b"] = pipeline.interleaved_one_f_one_b(p, m, 2)
    return made


def pipelines() -> Iterator[tuple[str, Any]]:
    """Each schedule, simulated with transfers and uneven parts of a chunk, and three searches."""
    costs = Costs(forward=3, backward_input=4, backward_weight=2, transfer=1)
    for name, schedule in schedules().items():
        yield f"simulate {name}", simulate(schedule, costs)
    yield "simulate zb_auto", simulate(pipeline.zb_auto(3, 6, costs, 4), costs)
    yield "simulate v_controlled", simulate(pipeline.v_controlled(3, 6, costs, 5, tries=250), costs)
    yield "simulate best_schedule", simulate(pipeline.best_schedule(2, 3, costs, 2), costs)


def zero_steps(comm, stage, text):
    model = random_llama(np, "float64", **SIZES, **HEADS)
    replica = replica_of(comm, model, stage, AdamW(lr=0.01))
    losses = train_replica(replica, model, text)
    return np.array(losses), replica.full_weights()


def tensor_step(comm, tokens, targets, sequence_parallel):
    model = random_llama(np, "float64", **SIZES, **HEADS)
    parallel = ParallelLlama.from_full(comm, model, sequence_parallel=sequence_parallel)
    return parallel.loss_and_gradients(tokens, targets)


def mesh_steps(comm, axes, options, text):
    model = random_llama(np, "float64", **SIZES, **HEADS)
    schedule = options.pop("schedule", None)
    options["schedule"] = schedule and schedules()[schedule] if not isinstance(schedule, tuple) else None
    if isinstance(schedule, tuple):
        name, *sizes = schedule
        options["schedule"] = getattr(pipeline, name)(*sizes)
    trainer = Trainer(Mesh(comm, **axes), model, AdamW(lr=0.01), max_norm=1.0, **options)
    done = [trainer.step(tokens, targets)[:2] for tokens, targets in text]
    return np.array(done), trainer.full_weights()


def training() -> Iterator[tuple[str, Any]]:
    """ZeRO, tensor parallelism and meshes on a small Llama."""
    text = random_batches(17, 8, 8, 2, np)
    for stage in (0, 1, 2, 3):
        for size in (2, 4):
            yield f"zero {stage} {size}", run(zero_steps, size, stage, text)
    for size in (2, 4):
        for cut in (False, True):
            yield f"tensor {size} {cut}", run(tensor_step, size, *text[0], cut)
    meshes: list[tuple[dict[str, int], dict[str, Any]]] = [
        ({"dp": 2}, {"zero": 3}),
        ({"cp": 2}, {"attention": "ulysses", "layout": "contiguous"}),
        ({"cp": 2}, {"attention": "allgather"}),
        ({"pp": 2}, {"schedule": ("one_f_one_b", 2, 4)}),
        ({"pp": 2, "tp": 2}, {"schedule": ("zb_h1", 2, 4), "sequence_parallel": True}),
        ({"dp": 2, "pp": 2, "cp": 2, "tp": 2}, {"schedule": ("interleaved_one_f_one_b", 2, 2, 2), "zero": 2}),
        ({"dp": 2, "cp": 2}, {"zero": 3, "layout": "striped", "recompute": "full"}),
    ]
    for axes, options in meshes:
        size = int(np.prod(list(axes.values())))
        yield f"mesh {axes} {options}", run(mesh_steps, size, axes, options, text, cluster=DGX_A100)


ROOMS: tuple[Callable[[], Iterator[tuple[str, Any]]], ...] = (collectives, attention, pipelines, training)


def hashed(*values: Any) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def bits(value: Any) -> Any:
    """All numbers of a nested result, to the bit."""
    if isinstance(value, dict):
        return {str(name): bits(item) for name, item in sorted(value.items(), key=lambda item: str(item[0]))}
    if isinstance(value, tuple | list):
        return [bits(item) for item in value]
    return np.asarray(value).tobytes().hex() if value is not None else None


def clock(timeline: Timeline) -> str:
    """Every message, compute and wait with its times; names are left out, since words may change."""
    messages = [(t.src, t.dst, t.nbytes, t.ready, t.start, t.end) for t in timeline.transfers]
    computes = sorted((span.rank, span.start, span.end) for span in timeline.computes)
    waits = sorted((wait.rank, wait.start, wait.end, wait.peer) for wait in timeline.waits)
    return hashed(timeline.makespan, messages, computes, waits)


def digest() -> dict[str, dict[str, str]]:
    """By program: its clock, the most bytes that each rank held, its results."""
    found = {}
    for room in ROOMS:
        for name, done in room():
            timeline = done if isinstance(done, Timeline) else done.timeline
            held = hashed([timeline.peak_bytes(rank) for rank in range(timeline.size)])
            results = "" if timeline is done else hashed(bits(done.results))
            found[name] = {"clock": clock(timeline), "held": held, "results": results}
    return found


if __name__ == "__main__":
    digests = digest()
    Path(sys.argv[1]).write_text(json.dumps(digests, indent=1) + "\n")
    print(f"{len(digests)} programs")
