"""Small models for the tensor room's tests, and what the serial ones give."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import array_api_strict
import numpy as np

from parlab import run
from parlab.arrays import asarray
from parlab.nn.llama import Llama, LlamaConfig
from parlab.nn.stage import Stage
from parlab.tensor import ParallelLlama, unshard_weights
from tests.models import random_llama

LIBRARIES = {"numpy": np, "strict": array_api_strict}
SIZES = {
    "vocab_size": 19,  # does not divide: the first ranks own one token more
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "initializer_range": 0.3,  # large enough for attention to be peaked and gradients to be felt everywhere
}
B, S = 2, 8


def config(**changes: Any) -> LlamaConfig:
    return LlamaConfig(**{**SIZES, **changes})


def model(xp: Any = np, dtype: str = "float64", **changes: Any) -> Llama:
    return random_llama(xp, dtype, **{**SIZES, **changes})


def text(xp: Any = np, seed: int = 0, vocab_size: int = SIZES["vocab_size"]) -> tuple[Any, Any]:
    """Tokens and targets, `[B, S]`."""
    drawn = np.random.default_rng(seed).integers(vocab_size, size=(B, S + 1))
    return asarray(drawn[:, :-1].copy(), xp), asarray(drawn[:, 1:].copy(), xp)


def in_turn(parallel: ParallelLlama) -> None:
    """Let every layer wait for each message before it computes on, as its backward in two parts does."""
    blocks, head = parallel.blocks, parallel.chain.stages[-1]
    for stage in (*(part for block in blocks for part in (block.attention, block.mlp)), head.projection):
        stage.backward = partial(Stage.backward, stage)


def parallel_results(
    serial: Llama,
    size: int,
    tokens: Any,
    targets: Any,
    *,
    change: Callable[[ParallelLlama], object] = lambda parallel: None,
    **options: Any,
) -> dict[str, Any]:
    """Every gradient by name, and `loss` and `logits`, as the ranks together have them; `change` may break them."""

    def program(comm):
        parallel = ParallelLlama.from_full(comm, serial, **options)
        change(parallel)
        loss, gradients = parallel.loss_and_gradients(tokens, targets)
        return loss, parallel.logits(tokens), gradients

    results = run(program, size).results
    whole = unshard_weights(serial.config, [gradients for _, _, gradients in results])
    return {"loss": np.asarray(results[0][0]), "logits": results[0][1], **whole}


def serial_results(serial: Llama, tokens: Any, targets: Any) -> dict[str, Any]:
    loss, gradients = serial.loss_and_gradients(tokens, targets)
    return {"loss": np.asarray(loss), "logits": serial.logits(tokens), **gradients}
