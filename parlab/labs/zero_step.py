"""The small Llama of lesson 06 on a few ranks: steps of ZeRO, to be filmed or counted."""

from __future__ import annotations

from typing import Any

from parlab.nn import AdamW, Llama, LlamaConfig, MarkovSource
from parlab.world import Cluster, Comm, Run, run
from parlab.zero import replica_of, train_replica
from parlab.zero.arguments import check_stage

LETTERS = MarkovSource()  # a little predictable
SIZES: Any = {"hidden_size": 18, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 3}
CONFIG = LlamaConfig(vocab_size=LETTERS.vocab_size, initializer_range=0.3, **SIZES)
RANKS, ROWS, LENGTH, ITEMSIZE = 4, 4, 12, 4  # a rank has 4 rows of 12 tokens, and numbers are float32
LINKS = Cluster.uniform(latency=0, bandwidth=25e9, flops=1e12, memory_bandwidth=1e12)  # 60 tokens hide a gather


def zero_step(stage: int, microbatches: int = 1, cluster: Cluster = LINKS, **options: Any) -> Run:
    """A step of the small Llama, 9522 weights in five blocks, on four ranks with 48 tokens each in a microbatch.

    Args:
        stage: 0 is plain data parallelism.
        microbatches: k, whose gradients add up.
        cluster: the hardware.
        options: of `DataParallel` or `Zero`, such as `keep_after_forward`.

    Raises:
        ValueError: another stage, no microbatch, or an option that is refused.
    """
    check_stage(stage, least=0)
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
