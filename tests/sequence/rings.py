"""The program that ranks run in the tests of attention, and its inputs."""

from __future__ import annotations

import numpy as np

from parlab.sequence import ring_attention, ring_attention_backward


def both(comm, dout, q, k, v, forward=ring_attention, backward=ring_attention_backward, **how):
    """A rank program: forward, then backward."""
    out, lse = forward(comm, q, k, v, **how)
    return out, lse, *backward(comm, dout, q, k, v, out, lse, **how)


def draw_inputs(B: int, H: int, G: int, S: int, D: int, seed: int = 0) -> list[np.ndarray]:
    """dout, q, k, v: float64, normal."""
    rng = np.random.default_rng([seed, B, H, G, S, D])
    return [rng.normal(size=(B, heads, S, D)) for heads in (H, H, G, G)]
