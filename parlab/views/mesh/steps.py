"""One step of a small Llama on every mesh of 8 and of 16 ranks: its time, bytes and memory.

The model stands for one whose arrays are 64 times longer on each side: hidden size 4096, 8 blocks, 16 384 tokens. Its
machine is a DGX H100 made slower in proportion: products take 64³ times as many operations there, and messages 64²
times as many elements of half the size. So its times are those of the large model. So are its bytes: 2 for each element
in bf16, and 12 for Adam's state of a weight (a float32 copy of it, and two moments), as in lesson 06.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from parlab import arrays, pipeline
from parlab.nn import AdamW, Llama, LlamaConfig
from parlab.train import Mesh, Trainer, bytes_by_strategy, step_bytes
from parlab.views.zero_redundancy.step_memory import LAYERS, PLACES
from parlab.world import DGX_H100, Cluster, Comm, Device, Link, Timeline, run
from parlab.zero import accounting

B, S = 16, 16  # rows of the batch, tokens of a row
MICROBATCHES = (1, 2, 4, 8, 16)
NAMES = ("dp", "pp", "cp", "tp")
CONFIG = LlamaConfig(vocab_size=32, hidden_size=64, intermediate_size=128, num_hidden_layers=8, num_attention_heads=8)
SCALE = 64
KERNEL = 0.6  # of the peak: what products reach; published 0.79 for large ones, 0.60 fitted to Llama 3's rows
BYTES = SCALE**2 * 2 // 4  # of the large model, in bf16, for each byte of float32 that is sent or held here
ADAM = SCALE**2 * 12 // 8  # the same for Adam's state: here two moments, there a float32 copy of the weight, too
RANKS = 16  # of the stored steps: two nodes
SHARES = (0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8)  # of the peak, that products reach
SCHEDULES = ("one_f_one_b", "zb_h1", "zb_h2")
STORED, DETAILED = "steps.json", "detailed.json"
OVERLAPPED = (1, 2)  # the ZeRO stages that gather new weights beside the next forward
Axes = tuple[int, int, int, int]


def scaled(cluster: Cluster, kernel: float) -> Cluster:
    """The cluster for a model that is `SCALE` times smaller on each side, in float32 instead of bf16."""
    device, fewer = cluster.device_of(0), SCALE**2 / 2
    return Cluster(
        f"{cluster.name}, for arrays {SCALE} times shorter",
        Device(device.name, kernel * device.flops / SCALE**3, device.memory_bandwidth / fewer),
        cluster.ranks_per_node,
        Link(cluster.intra.latency, cluster.intra.bandwidth / fewer),
        Link(cluster.inter.latency, cluster.inter.bandwidth / fewer),
        cluster.ports,
    )


class StepCosts(NamedTuple):
    """The costs of one step on a mesh; the bytes are those of the large model."""

    seconds: float
    sent: dict[str, int]  # bytes of all ranks by strategy
    formula: dict[str, int]  # the same in closed form
    held: dict[str, int]  # bytes of the fullest rank at its peak, by kind


def meshes(ranks: int) -> list[Axes]:
    """All meshes of so many ranks, a power of two, that the small model divides among: dp, pp, cp and tp."""
    few = [size for size in (8, 4, 2, 1) if size <= ranks]
    return [(dp, pp, cp, tp) for dp, pp, cp, tp in product([16, *few], few, few, few) if dp * pp * cp * tp == ranks]


def fitting(axes: Axes) -> list[int]:
    """The numbers of microbatches: each replica has rows for them, and each rank of its pipeline has one."""
    return [m for m in MICROBATCHES if axes[1] <= m <= B // axes[0]]


@cache
def step_on(axes: Axes, microbatches: int, schedule: str, zero: int, rows: int = B) -> StepCosts:
    """Run one step; at ZeRO 1 and 2 a second one, beside whose forward the new weights are gathered, is timed.

    It runs once for each choice.
    """
    return costs_at((KERNEL,), axes, microbatches, schedule, zero, rows)[0]


def costs_at(
    shares: Sequence[float], axes: Axes, microbatches: int, schedule: str, zero: int, rows: int = B
) -> list[StepCosts]:
    """The costs of one step where products reach each of these shares of the peak: the step runs once for all."""
    built, steps = getattr(pipeline, schedule)(axes[1], microbatches), 2 if zero in OVERLAPPED else 1
    tokens = arrays.generator(0).integers(CONFIG.vocab_size, size=(rows, S + 1))
    serial = Llama.random(CONFIG, xp=np, dtype="float32")

    def program(comm: Comm) -> dict[str, int]:
        mesh = Mesh(comm, *axes, ranks_per_node=min(comm.size, DGX_H100.ranks_per_node))
        how: Any = {"overlap_gather": zero in OVERLAPPED, "keep_last_block": zero == 3}
        how["sequence_parallel"] = axes[3] > 1  # its usual partner
        trainer = Trainer(mesh, serial, AdamW(), schedule=built, zero=zero, **how)
        for _ in range(steps):
            trainer.step(tokens[:, :-1], tokens[:, 1:])
        trainer.finish()
        return step_bytes(trainer, rows, S)

    done = run(program, math.prod(axes))
    return [_costs(done.on(scaled(DGX_H100, share)), steps, done.results[0]) for share in shares]


def _costs(timeline: Timeline, steps: int, formula: dict[str, int]) -> StepCosts:
    sent = {name: nbytes // steps for name, nbytes in bytes_by_strategy(timeline).items()}
    held = max((_held(timeline, rank) for rank in range(timeline.size)), key=lambda kinds: sum(kinds.values()))
    seconds = _period(timeline, steps) / 1e12
    return StepCosts(seconds, _of_the_large_model(sent), _of_the_large_model(formula), held)


def _of_the_large_model(sent: dict[str, int]) -> dict[str, int]:
    """Its bytes by strategy; the norm is one number in any model."""
    return {name: nbytes if name == "norm" else BYTES * nbytes for name, nbytes in sent.items()}


def _held(timeline: Timeline, rank: int) -> dict[str, int]:
    """The bytes that a rank holds at its peak, by kind. Adam's state is held always, and does not move the peak."""
    held: Counter[str] = Counter()
    for name, nbytes in timeline.peak_by_name(rank).items():
        kind = LAYERS[PLACES.get(name, PLACES[accounting.ACTIVATIONS])].name
        held[kind] += nbytes * (ADAM if kind == accounting.OPTIMIZER else BYTES)
    return dict(held)


def _period(timeline: Timeline, steps: int) -> int:
    """From the end of one step's optimizer to the end of the next one's; of a single step its makespan."""
    if steps == 1:
        return timeline.makespan
    ends = []
    for rank in range(timeline.size):
        of_rank = [span.end for span in timeline.spans if span.rank == rank and span.name == "AdamW"]
        ends.append((of_rank[len(of_rank) // 2 - 1], of_rank[-1]))
    first, second = map(max, zip(*ends, strict=True))
    return second - first


class StoredStep(NamedTuple):
    """The totals of `StepCosts`, computed before: `python -m parlab.views.mesh.steps` writes both files."""

    axes: Axes
    microbatches: int
    schedule: str
    zero: int
    sent: int
    by_share: tuple[tuple[int, int], ...]  # picoseconds, and held bytes, where products reach each of `SHARES`


class Dot(NamedTuple):
    """A stored step where products reach a share of the peak."""

    axes: Axes
    microbatches: int
    zero: int
    seconds: float
    sent: int
    held: int


@cache
def stored() -> list[StoredStep]:
    """Steps on all meshes of 16 ranks: see `choices`."""
    text = (files("parlab.views.mesh") / STORED).read_text(encoding="utf-8")
    return [
        StoredStep(tuple(axes), microbatches, schedule, zero, sent, tuple(map(tuple, by_share)))
        for axes, microbatches, schedule, zero, sent, by_share in json.loads(text)
    ]


def computed(axes: Axes, microbatches: int, schedule: str, zero: int) -> StoredStep:
    """The same, computed now. The speed of products moves no byte; it moves the order of messages, and so the peak."""
    every = costs_at(SHARES, axes, microbatches, schedule, zero)
    (sent,) = {sum(costs.sent.values()) for costs in every}
    by_share = tuple((round(1e12 * costs.seconds), sum(costs.held.values())) for costs in every)
    return StoredStep(axes, microbatches, schedule, zero, sent, by_share)


def choices() -> list[tuple[Axes, int, str, int]]:
    """Every mesh of 16 ranks, number of microbatches, schedule and ZeRO stage that is stored.

    A pipeline has ZeRO 1, which gathers once a step. Other meshes have 1 or 3, and 1 or 2 microbatches, as more take
    longer still. They have no bubble to fill, so their backward stays whole: cut in two halves, it would have the
    gradients of weights later, and send them later.
    """
    found: list[tuple[Axes, int, str, int]] = []
    for axes in meshes(RANKS):
        if axes[1] == 1:
            found += [(axes, m, SCHEDULES[0], zero) for m in fitting(axes)[:2] for zero in (1, 3)]
        else:
            found += [(axes, m, schedule, 1) for schedule in SCHEDULES for m in fitting(axes)]
    return found


@cache
def detailed() -> dict[tuple[Axes, int], StepCosts]:
    """By mesh of 8 ranks and number of microbatches the costs of a step under 1F1B at ZeRO 1, computed before."""
    text = (files("parlab.views.mesh") / DETAILED).read_text(encoding="utf-8")
    return {(tuple(axes), microbatches): StepCosts(*costs) for axes, microbatches, *costs in json.loads(text)}


def _store(name: str, rows: list[Any]) -> None:
    with open(str(files("parlab.views.mesh") / name), "w", encoding="utf-8") as file:
        file.write("[" + ",\n".join(map(json.dumps, rows)) + "]\n")


if __name__ == "__main__":
    _store(STORED, [computed(*choice) for choice in choices()])
    eight = [(axes, m) for axes in meshes(8) for m in fitting(axes)]
    _store(DETAILED, [[*choice, *step_on(*choice, "one_f_one_b", 1)] for choice in eight])
