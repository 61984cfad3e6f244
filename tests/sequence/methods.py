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
from parlab.sequence import AttentionShape, shard, unshard
from parlab.sequence.costs import RankCost
from parlab.sequence.tree import levels
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


def whole(inputs: Sequence[np.ndarray], mask: np.ndarray, scale: float | None = None) -> list[np.ndarray]:
    """out, lse, dq, dk, dv of dense attention."""
    dout, q, k, v = inputs
    out, lse = dense_attention(q, k, v, mask=mask, scale=scale)
    return [out, lse, *dense_attention_backward(dout, q, k, v, out, lse, mask=mask, scale=scale)]


def window_cost(shape: AttentionShape, size: int, rank: int, *, window: int, backward: bool) -> RankCost:
    """A rank sends the last tokens of its K/V to those on the right that see them, and backward dK/dV to the left. It
    holds all that comes; backward, later, the dK/dV on their way back and the first that come for its own.
    """
    c, token = shape.shard_length(size, rank), shape.token(backward=backward)
    tails = [min(c, window - 1 - first) for first in range(0, min(window - 1, shape.S - c), c)]
    right, left = tails[: size - 1 - rank], tails[:rank]
    most = max(sum(left) * token.kv, (sum(left) + sum(right[:1])) * token.dkv)
    back = left if backward else []
    nbytes = sum(right) * token.kv + sum(back) * token.dkv
    return RankCost(len(right + back), nbytes, c * (token.own + token.sums + token.dkv) + most)


def tree_cost(
    shape: AttentionShape, size: int, rank: int, *, queries: int | None = None, backward: bool = False
) -> RankCost:
    """At every level the rows of half the group travel, up and down; replicated queries up only, all of them."""
    c, token, tree = shape.shard_length(size, rank), shape.token(backward=backward), levels(rank, size)
    clients = [len(level.clients) for level in tree]
    if queries is not None:
        sums = min(len(tree) + 1, 3) * token.sums  # its own, the merged ones so far, and those that arrive
        held = c * (token.kv + token.dkv) + queries * (token.own - token.kv + sums)
        return RankCost(sum(clients), sum(clients) * queries * token.sums, held)
    up = sum(number * len(level.mine) for number, level in zip(clients, tree, strict=True)) * token.queries
    down = sum(len(level.other) for level in tree) * token.sums
    coming = max((len(level.other) for level in tree), default=0) * token.queries
    merged = max((len(level.mine) for level in tree if level.clients), default=0) * token.sums
    sums = size * token.sums + token.dkv
    held = token.own + max(size * token.queries + max(coming, sums), sums + merged)
    return RankCost(sum(clients) + len(tree), c * (up + down), c * held)


def cost_of(method: str) -> Callable[..., RankCost]:
    """The closed form of a method's messages, bytes and held bytes; those of the window and the tree stand here."""
    here = {"window": window_cost, "tree": tree_cost}
    return here[method] if method in here else getattr(parlab.sequence, f"{method}_cost")


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
    return worst_error(
        found, whole(inputs, mask, how.get("scale")), floor=0.1
    )  # with one key dq and dk are 0 and noise


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
