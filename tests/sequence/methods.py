"""Each way to attend across ranks beside dense attention on the whole, for the tests of parity, counts and mutants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import parlab.sequence
from parlab import per_rank, run
from parlab.arrays import asarray, to_numpy
from parlab.nn.dense_attention import dense_attention, dense_attention_backward
from parlab.sequence import shard, unshard
from parlab.world import Run, Timeline
from tests.nn.parity import worst_error
from tests.sequence.rings import both, draw_inputs

METHODS = ("ring", "ulysses", "allgather", "usp", "double_ring", "tree", "window")
LAYOUTS = {"ring", "allgather", "usp", "double_ring"}  # methods that take a layout
Pair = tuple[Callable[..., Any], Callable[..., Any]]


def pair(method: str) -> Pair:
    """The forward and the backward of this name."""
    name = f"{method}_attention"
    return getattr(parlab.sequence, name), getattr(parlab.sequence, f"{name}_backward")


def visible(S: int, causal: bool, documents: Sequence[int] | None = None, window: int | None = None) -> np.ndarray:
    """`[S, S]`: whether query i sees key j."""
    tokens = np.arange(S)
    distance = tokens[:, None] - tokens
    seen = distance >= 0 if causal or window else np.ones((S, S), dtype=bool)
    if window:
        seen &= distance < window
    if documents:
        same = np.zeros((S, S), dtype=bool)
        for start, stop in pairwise(documents):
            same[start:stop, start:stop] = True
        seen &= same
    return seen


def whole(inputs: Sequence[np.ndarray], mask: np.ndarray) -> list[np.ndarray]:
    """out, lse, dq, dk, dv of dense attention."""
    dout, q, k, v = inputs
    out, lse = dense_attention(q, k, v, mask=mask)
    return [out, lse, *dense_attention_backward(dout, q, k, v, out, lse, mask=mask)]


def dealt(how: dict[str, Any]) -> dict[str, Any]:
    """How the tokens are dealt out to a method with these arguments."""
    return {"layout": how.get("layout", "contiguous"), "documents": how.get("documents")}


def run_method(functions: Pair, size: int, inputs: Sequence[np.ndarray], xp: Any = np, **how: Any) -> Run:
    """Forward and backward on the shards of these inputs."""
    shards = [per_rank(shard(asarray(x, xp), size, **dealt(how))) for x in inputs]
    forward, backward = functions
    return run(both, size, *shards, forward=forward, backward=backward, **how)


def method_error(functions: Pair, size: int, shape: tuple[int, int, int, int, int], xp: Any = np, **how: Any) -> float:
    """The relative error of out, lse, dq, dk and dv on random inputs of B, H, G, S, D."""
    inputs = draw_inputs(*shape)
    done = run_method(functions, size, inputs, xp, **how)
    found = [to_numpy(unshard(x, axis=2, **dealt(how))) for x in zip(*done.results, strict=True)]
    mask = visible(shape[3], how.get("causal", False), how.get("documents"), how.get("window"))
    return worst_error(found, whole(inputs, mask), floor=0.1)  # with one key dq and dk are 0 and noise


def runs(method: str, size: int, shape: Any, dtype: Any, replicated: int | None = None, **how: Any) -> list[Run]:
    """The forward alone and the backward alone, on an `AttentionShape`; `replicated`: so many queries, on all ranks."""
    inputs = draw_inputs(shape.B, shape.H, shape.G, shape.S, shape.D)
    dout, q, k, v = (x.astype(dtype) for x in inputs)
    out, lse = np.zeros_like(q), np.zeros(q.shape[:-1], dtype=np.result_type(dtype, np.float32))
    keys = [per_rank(shard(x, size, **dealt(how))) for x in (k, v)]
    queries = [per_rank(shard(x, size, axis=2, **dealt(how))) for x in (q, dout, out, lse)]
    if replicated:
        how["replicated"] = True
        queries = [per_rank([x[:, :, :replicated].copy() for _ in range(size)]) for x in (q, dout, out, lse)]
    forward, backward = pair(method)
    return [
        run(forward, size, queries[0], *keys, **how),
        run(backward, size, queries[1], queries[0], *keys, *queries[2:], **how),
    ]


def timelines(method: str, *arguments: Any, **how: Any) -> list[Timeline]:
    """Of both `runs`."""
    return [done.timeline for done in runs(method, *arguments, **how)]
