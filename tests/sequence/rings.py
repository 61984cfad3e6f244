"""Ring attention on shards beside dense attention on the whole, for the tests of parity and of mutants."""

from __future__ import annotations

from typing import Any

import numpy as np

from parlab import per_rank, run
from parlab.arrays import asarray, to_numpy
from parlab.nn.dense_attention import dense_attention, dense_attention_backward
from parlab.sequence import ring_attention, ring_attention_backward, shard, unshard
from parlab.world import Run
from tests.nn.parity import worst_error

SHAPE = (1, 2, 1, 2, 3)  # B, H, G, S/P, D


def both(comm, dout, q, k, v, forward=ring_attention, backward=ring_attention_backward, **how):
    """A rank program: forward, then backward."""
    out, lse = forward(comm, q, k, v, **how)
    return out, lse, *backward(comm, dout, q, k, v, out, lse, **how)


def draw_inputs(B: int, H: int, G: int, S: int, D: int, seed: int = 0) -> list[np.ndarray]:
    """dout, q, k, v: float64, normal."""
    rng = np.random.default_rng([seed, B, H, G, S, D])
    return [rng.normal(size=(B, heads, S, D)) for heads in (H, H, G, G)]


def run_ring(size: int, inputs: list[np.ndarray], layout: str, xp: Any = np, dealt: str = "", **how: Any) -> Run:
    """`both` on `size` ranks; `dealt`: the layout of the shards, where it is not the one that the ring believes."""
    shards = [per_rank(shard(asarray(x, xp), size, dealt or layout)) for x in inputs]
    return run(both, size, *shards, layout=layout, **how)


def gathered(done: Run, layout: str) -> list[np.ndarray]:
    """out, lse, dq, dk, dv of the whole sequence."""
    names = zip(*done.results, strict=True)
    return [to_numpy(unshard(pieces, layout, axis=2)) for pieces in names]


def dense(inputs: list[np.ndarray], causal: bool, scale: float | None = None) -> list[np.ndarray]:
    """What `gathered` must equal."""
    dout, q, k, v = inputs
    out, lse = dense_attention(q, k, v, causal=causal, scale=scale)
    return [out, lse, *dense_attention_backward(dout, q, k, v, out, lse, causal=causal, scale=scale)]


def ring_error(size: int, layout: str, causal: bool, dealt: str = "", **how: Any) -> float:
    """The relative error of a ring of `size` on `SHAPE`."""
    B, H, G, c, D = SHAPE
    inputs = draw_inputs(B, H, G, c * size, D)
    done = run_ring(size, inputs, layout, dealt=dealt, causal=causal, **how)
    return worst_error(gathered(done, dealt or layout), dense(inputs, causal))
