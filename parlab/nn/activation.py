"""The nonlinearities, which have no weights: SwiGLU, as in Llama, and softmax.

Source: Shazeer 2020, "GLU variants improve transformer".
"""

from __future__ import annotations

from parlab.arrays import Array, namespace


def swiglu(gate: Array, up: Array) -> tuple[Array, tuple[Array, Array]]:
    """y = silu(gate) ∘ up, where silu(z) = z · sigmoid(z). All arrays are `[..., M]`.

    >>> import numpy as np
    >>> y, cache = swiglu(np.array([0.0, 1.0]), np.array([5.0, 2.0]))
    >>> [round(float(value), 4) for value in y]
    [0.0, 1.4621]
    """
    silu = gate * sigmoid(gate)
    return silu * up, (gate, up)


def swiglu_backward(dy: Array, cache: tuple[Array, Array]) -> tuple[Array, Array]:
    """`(dgate, dup)`: dgate = silu'(gate) ∘ up ∘ dy and dup = silu(gate) ∘ dy.

    With σ = sigmoid(z): silu'(z) = σ + z σ (1 − σ) = (z − silu(z) + 1) σ.
    """
    gate, up = cache
    sigma = sigmoid(gate)
    silu = gate * sigma
    slope = (gate - silu + 1) * sigma
    return slope * up * dy, silu * dy


def sigmoid(z: Array) -> Array:
    """1 / (1 + exp(−z)) = (1 + tanh(z/2)) / 2. The second form cannot overflow."""
    return (namespace(z).tanh(z * 0.5) + 1) * 0.5


def softmax(scores: Array) -> Array:
    """exp(scores), divided by its sum along the last axis, in the dtype of the scores."""
    xp = namespace(scores)
    weights = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    return weights / xp.sum(weights, axis=-1, keepdims=True)
