"""Closed forms of a piece's costs: FLOPs, and the bytes that it keeps for its backward.

FLOPs are the multiplications and additions of matrix products, 2 n m k for an n × k by a k × m matrix, as papers on
training count them. Element-wise work is left out. Letters: `B` batch, `S` sequence, and Megatron's s, b, h, a.
"""

from __future__ import annotations

from typing import NamedTuple

from parlab.nn.config import LlamaConfig


class Flops(NamedTuple):
    """FLOPs of the forward and of the two parts of the backward."""

    forward: int
    backward_input: int
    backward_weight: int


def linear_flops(rows: int, inputs: int, outputs: int) -> Flops:
    """FLOPs of y = x W, dx = dy Wᵀ and dW = xᵀ dy: three products of the same size.

    >>> linear_flops(rows=3, inputs=4, outputs=5).forward
    120
    """
    product = 2 * rows * inputs * outputs
    return Flops(product, product, product)


def attention_flops(B: int, H: int, S: int, D: int) -> Flops:
    """FLOPs of attention over whole score matrices: two products forward, and five backward.

    The forward computes scores and weights times v. The backward computes the scores again, then the gradients of the
    weights, v, q and k. Causal attention needs about half of it. The part that it really skips depends on its tiles.
    """
    product = 2 * B * H * S * S * D
    return Flops(2 * product, 5 * product, 0)


def causal_attention_flops(B: int, H: int, S: int, D: int) -> Flops:
    """FLOPs of attention without the masked half: query i attends to i + 1 keys."""
    product = 2 * B * H * (S * (S + 1) // 2) * D
    return Flops(2 * product, 5 * product, 0)


def block_flops(config: LlamaConfig, B: int, S: int) -> dict[str, Flops]:
    """FLOPs of one decoder layer, piece by piece."""
    rows, E, M = B * S, config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    return {
        "q_proj": linear_flops(rows, E, queries),
        "k_proj": linear_flops(rows, E, keys),
        "v_proj": linear_flops(rows, E, keys),
        "attention": attention_flops(B, config.num_attention_heads, S, config.head_dim),
        "o_proj": linear_flops(rows, queries, E),
        "gate_proj": linear_flops(rows, E, M),
        "up_proj": linear_flops(rows, E, M),
        "down_proj": linear_flops(rows, M, E),
    }


def block_kept_bytes(config: LlamaConfig, B: int, S: int, itemsize: int = 4) -> dict[str, int]:
    """Bytes that one decoder layer keeps for its backward, by place in its cache, without the shared rotary tables.

    Nothing grows with S², because attention is computed tile by tile and keeps only the log of each softmax's
    denominator.
    """
    rows, E, M = B * S, config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    statistic = max(itemsize, 4)  # float32 at least
    bytes_a_row = {
        "attention_norm.x": itemsize * E,
        "attention_norm.inverse": statistic,
        "attention.x": itemsize * E,
        "attention.q": itemsize * queries,
        "attention.k": itemsize * keys,
        "attention.v": itemsize * keys,
        "attention.merged": itemsize * queries,
        "attention.lse": statistic * config.num_attention_heads,
        "mlp_norm.x": itemsize * E,
        "mlp_norm.inverse": statistic,
        "mlp.x": itemsize * E,
        "mlp.gate": itemsize * M,
        "mlp.up": itemsize * M,
        "mlp.hidden": itemsize * M,
    }
    return {place: rows * size for place, size in bytes_a_row.items()}


def block_waiting_bytes(config: LlamaConfig, B: int, S: int, itemsize: int = 4) -> dict[str, int]:
    """Bytes that one decoder layer keeps from its backward for the input to the one for its weights: of each matrix the
    input and the gradient of the output. The gradients of its norms are made before.

    >>> from parlab.nn.published import LLAMA_405B
    >>> both = block_kept_bytes, block_waiting_bytes
    >>> [sum(nbytes(LLAMA_405B, B=1, S=8192, itemsize=2).values()) // 10**6 for nbytes in both]
    [4265, 4261]
    """
    E, M = config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    inputs = {"attention.x": E, "attention.merged": queries, "mlp.x": E, "mlp.hidden": M}
    gradients = {"attention.dq": queries, "attention.dk": keys, "attention.dv": keys, "attention.dy": E}
    gradients |= {"mlp.dgate": M, "mlp.dup": M, "mlp.dy": E}
    return {place: B * S * size * itemsize for place, size in (inputs | gradients).items()}


def flops_by_block(config: LlamaConfig, B: int, S: int) -> dict[str, Flops]:
    """FLOPs of each of a decoder's `weight_blocks`. The embedding is a look-up and costs none.

    >>> config = LlamaConfig(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
    ...                      num_attention_heads=32, num_key_value_heads=8)
    >>> forward = add_flops(*flops_by_block(config, B=1, S=8192).values()).forward
    >>> f"{forward / 8192:.3g} a token"  # Llama 3 8B
    '1.93e+10 a token'
    """
    layer = add_flops(*block_flops(config, B, S).values())
    layers = {f"layers.{i}": layer for i in range(config.num_hidden_layers)}
    return {"embedding": Flops(0, 0, 0), **layers, "head": linear_flops(B * S, config.hidden_size, config.vocab_size)}


def add_flops(*parts: Flops) -> Flops:
    """The sum of several, part by part."""
    return Flops(*(sum(column) for column in zip(*parts, strict=True)))


def gpt_kept_bytes(s: int, b: int, h: int, a: int, itemsize: int = 2) -> dict[str, int]:
    """Bytes that a GPT layer keeps for its backward, item by item, without the statistics of the norms.

    In 16 bits the sum is 34 s b h + 5 a s² b; the masks of dropout have one byte an entry.

    Source: Korthikanti et al. 2022, section 4.1.

    >>> sum(gpt_kept_bytes(s=2048, b=1, h=12288, a=96).values()) == 34 * 2048 * 12288 + 5 * 96 * 2048**2
    True
    """
    vector, scores = s * b * h, a * s * s * b
    return {
        "attention_norm.x": itemsize * vector,
        "attention.x": itemsize * vector,
        "attention.q": itemsize * vector,
        "attention.k": itemsize * vector,
        "attention.v": itemsize * vector,
        "attention.softmax": itemsize * scores,
        "attention.dropped": itemsize * scores,
        "attention.keep": scores,
        "attention.merged": itemsize * vector,
        "attention.output_keep": vector,
        "mlp_norm.x": itemsize * vector,
        "mlp.x": itemsize * vector,
        "mlp.before_gelu": 4 * itemsize * vector,
        "mlp.after_gelu": 4 * itemsize * vector,
        "mlp.output_keep": vector,
    }
