"""The small Llama of lesson 06 on a few ranks: steps of ZeRO, to be filmed or counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from parlab.nn import AdamW, Llama, LlamaConfig, MarkovSource
from parlab.world import Cluster, Comm, Run, Timeline, run
from parlab.world.timeline import columns_of
from parlab.zero import replica_of, train_replica
from parlab.zero.arguments import check_stage

LETTERS = MarkovSource()  # a little predictable
SIZES: Any = {"hidden_size": 18, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 3}
CONFIG = LlamaConfig(vocab_size=LETTERS.vocab_size, initializer_range=0.3, **SIZES)
RANKS, ROWS, LENGTH, ITEMSIZE = 4, 4, 12, 4  # a rank has 4 rows of 12 tokens, and numbers are float32
ZERO_GUESSES = {  # the usual wrong guesses of lesson 06, and the reasoning that leads there
    "stage 1": (19.7, "1.26 TB, shared by 64"),
    "stage 2": (2, "the same messages as in stage 1, only sooner"),
    "stage 3": (8, "weights and gradients, once in each microbatch"),
}
LINKS = Cluster.uniform(latency=0, bandwidth=25e9, flops=1e12, memory_bandwidth=1e12)  # 60 tokens hide a gather
SLOW = Cluster.uniform(latency=0, bandwidth=12.5e9, flops=2e10)  # Adam takes about as long as the all-reduce


def zero_step(stage: int, microbatches: int = 1, cluster: Cluster = LINKS, **options: Any) -> Run:
    """A step of the small Llama, 9522 weights in five blocks, on four ranks with 48 tokens each in a microbatch.

    Args:
        stage: 0 is plain data parallelism.
        microbatches: k, whose gradients add up.
        cluster: the hardware.
        options: see `parlab.zero.Options`, such as `keep_after_forward`.

    Raises:
        ValueError: another stage, no microbatch, or an option that is refused.
    """
    check_stage(stage)
    weights = Llama.random(CONFIG, seed=1, dtype="float32").weights
    text = [LETTERS.batch(number, batch_size=ROWS * RANKS, length=LENGTH) for number in range(microbatches)]

    def training(comm: Comm) -> None:
        model = Llama(CONFIG, dict(weights))
        replica = replica_of(comm, model, stage, AdamW(lr=1e-2), microbatches=microbatches, **options)
        train_replica(replica, model, text)

    return run(training, RANKS, cluster=cluster)


def passes(stage: int, microbatches: int = 1) -> float:
    """How often all numbers of the model pass through all ranks in a step, counted in a run of `zero_step`.

    >>> [passes(stage) for stage in range(4)]
    [2.0, 2.0, 2.0, 3.0]
    """
    timeline = zero_step(stage, microbatches).timeline
    numbers = sum(timeline.bytes_sent(rank) for rank in range(RANKS)) / ITEMSIZE
    return numbers / (RANKS - 1) / sum(weight.size for weight in Llama.random(CONFIG, seed=1).weights.values())


def one_update(zero_1: Callable[..., Any]) -> dict[str, Run]:
    """A step of data parallelism with 1024 weights on four ranks, and the same step with `zero_1`, by name."""

    def step(comm: Comm, sharded: bool) -> Any:
        weights, gradient, moments = np.zeros(1024), np.ones(1024), np.zeros((2, 1024))

        def update(*arrays: Any) -> None:
            with comm.compute("Adam", flops=20 * arrays[0].size):
                AdamW().update(*arrays, step=1)

        if sharded:
            return zero_1(comm, weights, gradient, {}, update)
        return update(weights, comm.all_reduce(gradient) / comm.size, *moments)

    return {name: run(step, RANKS, name != "replicated", cluster=SLOW) for name in ("replicated", "with owners")}


def three_blocks(waiting: Callable[..., Any], prefetch: Callable[..., Any]) -> dict[str, Timeline]:
    """Three equal blocks forward and back on four ranks, gathered by two ways of 06.prefetch, by name.

    The messages of a gather have its block in their name.
    """

    def step(comm: Comm, way: Callable[..., Any]) -> list[int]:
        gathered: list[int] = []

        def gather(block: int) -> Any:
            gathered.append(block)
            return comm.iall_gather(np.ones(400))

        def work(block: int, weights: Any, x: Any) -> Any:
            with comm.compute(f"{block}", seconds=8e-7):
                return x

        way(comm, [0, 1, 2, 2, 1, 0], gather, work, 0)
        return gathered

    both = {"waiting": waiting, "prefetch": prefetch}
    return {name: _with_blocks(run(step, RANKS, way, cluster=SLOW)) for name, way in both.items()}


def _with_blocks(done: Run) -> Timeline:
    """The timeline of a run whose ranks return the blocks that they gathered, in order.

    A rank sends each piece once in a gather: the second message with a label is of the second gather.
    """
    shown, seen, named = done.timeline, Counter[tuple[int, str]](), []
    for t in shown.transfers:
        piece = (t.src, str(t.label))
        named.append(t._replace(name=f"gather {done.results[t.src][seen[piece]]}"))
        seen[piece] += 1
    computes = columns_of([(span.rank, span.start, span.end, span.name) for span in shown.computes], 4)
    transfers, waits = columns_of(named, 8), columns_of(shown.waits, 6)
    return Timeline(shown.size, shown.makespan, computes=computes, transfers=transfers, waits=waits)
