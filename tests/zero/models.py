"""A small Llama for the ZeRO room's tests, what serial training makes of it, and the program that ranks run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from parlab import run
from parlab.arrays import to_numpy
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW, clip_gradients
from parlab.world import Timeline
from parlab.zero import Zero, forward_backward
from tests.libraries import EACH_LIBRARY
from tests.models import random_batches, random_llama

SIZES = {
    "vocab_size": 18,
    "hidden_size": 5,
    "intermediate_size": 7,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "head_dim": 2,
    "initializer_range": 0.3,  # large enough for gradients to be felt everywhere
}
NUM_PARAMS = {False: 655, True: 565}  # of the untied and of the tied model: neither is a multiple of 2, 3 or 7
TOKENS = 4  # a row
LR = 1e-2
STAGES = [0, 1, 2, 3]

library = pytest.mark.parametrize("library", EACH_LIBRARY)  # once for each stage
device = pytest.mark.parametrize("library", [one for one in EACH_LIBRARY if one.id != "strict"])


def model(xp: Any = np, dtype: str = "float64", **changes: Any) -> Llama:
    return random_llama(xp, dtype, **{**SIZES, **changes})


def batches(rows: int, steps: int, xp: Any = np) -> list[tuple[Any, Any]]:
    return random_batches(SIZES["vocab_size"], rows, TOKENS, steps, xp)


@cache
def serial(rows: int, steps: int, max_norm: float | None = None, *, tied: bool = False) -> dict[str, np.ndarray]:
    """The weights after `steps` steps of the serial optimizer, each on the whole batch."""
    trained, optimizer = model(tie_word_embeddings=tied), AdamW(lr=LR)
    for tokens, targets in batches(rows, steps):
        _, gradients = trained.loss_and_gradients(tokens, targets)
        if max_norm is not None:
            gradients, _ = clip_gradients(gradients, max_norm)
        optimizer.step(trained.weights, gradients)
    return trained.weights


def replica_of(comm: Any, params: Any, stage: int, **options: Any) -> Zero:
    return Zero(comm, params, stage, **{"optimizer": AdamW(lr=LR), **options})


def train(
    comm: Any,
    start: Llama,
    text: list[tuple[Any, Any]],
    stage: int,
    microbatches: int = 1,
    *,
    after_step: Callable[[Any, Zero], object] = lambda comm, replica: None,
    **options: Any,
) -> Zero:
    """What one rank runs: a step for each batch, of which it has one row a microbatch."""
    mine = Llama(start.config, dict(start.weights))
    replica = replica_of(comm, mine.weights, stage, blocks=mine.weight_blocks, microbatches=microbatches, **options)
    for batch in text:
        for part in range(microbatches):
            row = comm.rank * microbatches + part
            forward_backward(replica, mine, *(x[row : row + 1, ...] for x in batch))
        replica.step()
        after_step(comm, replica)
    return replica


def timed(
    stage: int, size: int, steps: int = 1, microbatches: int = 1, *, start: Llama | None = None, **options: Any
) -> Timeline:
    """What happens in `train`, with nothing else."""
    start = start or model()

    def program(comm: Any) -> None:
        train(comm, start, batches(size * microbatches, steps), stage, microbatches, **options)

    return run(program, size).timeline


def trained(
    stage: int, size: int, steps: int, microbatches: int = 1, *, xp: Any = np, tied: bool = False, **options: Any
) -> dict[str, np.ndarray]:
    """The weights after `train`, the same to the bit on all ranks."""
    start = model(xp, tie_word_embeddings=tied)
    text = batches(size * microbatches, steps, xp)

    def program(comm: Any) -> dict[str, np.ndarray]:
        weights = train(comm, start, text, stage, microbatches, **options).full_weights()
        return {name: to_numpy(x) for name, x in weights.items()}

    first, *others = run(program, size).results
    assert all(np.array_equal(first[name], other[name]) for other in others for name in first)
    return first


def same_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


TOY = {"a": (5,), "b": (2, 3), "c": (1,)}  # 12 weights in three blocks, none of which divides among 4 ranks


def toy(seed: int, dtype: str = "float64") -> dict[str, np.ndarray]:
    """Weights or gradients in the shapes of TOY."""
    draw = np.random.default_rng(seed)
    return {name: draw.normal(size=shape).astype(dtype) for name, shape in TOY.items()}


def add_all(replica: Zero, gradients: dict[str, Any]) -> None:
    """The gradients of a backward pass, block by block."""
    for block in reversed(replica.block_names):
        replica.add_gradients(block, {name: gradients[name] for name in replica.layouts[block].shapes})
