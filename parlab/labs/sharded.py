"""A small Llama for lesson 05, six arrays of its block's step, and the first pipeline stage of Llama 3 405B in GB."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from parlab.arrays import Array, default_namespace
from parlab.labs.bare import arrays_of_step, bare_block
from parlab.nn.llama import Llama, LlamaConfig
from parlab.nn.published import LLAMA_405B
from parlab.tensor import block_time, llama_kept_by_place, shard_weights
from parlab.world import DGX_H100, Comm, run
from parlab.world.cluster import REACHED
from parlab.zero import StateBytes, model_state_bytes

TENSOR_GUESSES = {  # the usual wrong guesses of lesson 05, and the reasoning that leads there
    "place": (4, "attention's part of the block ends there"),
    "wrong": (4, "those of k and v, in both blocks"),
    "t": (8, "tensor parallelism stays inside a node"),
}
STAGES, REPLICAS, TOKENS = 16, 64, 8192


def small_llama() -> tuple[Llama, Array, Array]:
    """A Llama of two blocks with one key/value head, tokens `[2, 8]`, and targets `[2, 8]`: the token before each."""
    xp = default_namespace()
    sizes: Any = {"vocab_size": 8, "hidden_size": 16, "intermediate_size": 32, "initializer_range": 0.3}
    config = LlamaConfig(**sizes, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=1)
    tokens = xp.asarray(np.random.default_rng(2).integers(config.vocab_size, size=(2, 8)))
    return Llama.random(config, seed=1, dtype="float64"), tokens, xp.roll(tokens, 1, axis=1)


def six_arrays(step: Callable[..., Any], model: Llama, size: int) -> list[dict[str, Array]]:
    """Of each of `size` ranks a, m, y, dm, dh and da `[2, 8, E]` in `step` on the first block, before they are added.

    Args:
        step: as `block_step`.
        model: of which each rank has its shards.
        size: t, the ranks; on one rank every array is whole.
    """
    x, dy = default_namespace().asarray(np.random.default_rng(2).normal(size=(2, 2, 8, model.config.hidden_size)))

    def program(comm: Comm) -> dict[str, Array]:
        own = shard_weights(model.config, model.weights, comm.rank, comm.size)
        return arrays_of_step(comm, bare_block(comm, model.config, own), step, x, dy)

    return run(program, size).results


def fastest_t() -> int:
    """The t of 1 to 32 with which a block of the 405B takes the least time, on nodes of 8 H100s with 8 192 tokens."""
    machine = DGX_H100.reaching(REACHED)

    def takes(t: int) -> int:
        sizes = LLAMA_405B, 1, TOKENS, t, 2
        passes = (block_time(*sizes, machine, backward=back, algorithm="rings") for back in (False, True))
        return sum(map(sum, passes))

    return min((1, 2, 4, 8, 16, 32), key=takes)


def first_stage(t: int, *, sequence_parallel: bool = False, zero: int = 0) -> tuple[float, float]:
    """GB that a GPU keeps of the 405B in the first of 16 pipeline stages: activations, and model state.

    Stage 0 of 1F1B keeps 16 microbatches of a sequence, so the activations of as many blocks as the model has.

    Args:
        t: tensor-parallel ranks.
        sequence_parallel: norms and the columns' inputs are cut by tokens.
        zero: the ZeRO stage, among 64 replicas; 18 bytes a weight, gradients in float32.

    >>> [round(gigabytes) for gigabytes in first_stage(8)]
    [186, 56]
    """
    of_a_block = llama_kept_by_place(LLAMA_405B, 1, TOKENS, t, 2, sequence_parallel=sequence_parallel).values()
    blocks = LLAMA_405B.num_hidden_layers
    weights = sum(math.prod(shape) for name, shape in LLAMA_405B.weight_shapes.items() if ".layers.0." in name)
    state = model_state_bytes(blocks / STAGES * weights / t, REPLICAS, zero, state=StateBytes(2, 4, 12))
    return blocks * sum(of_a_block) / 1e9, state / 1e9
