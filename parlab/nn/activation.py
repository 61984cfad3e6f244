"""The nonlinearities, which have no weights: SwiGLU, as in Llama; GELU and dropout, as in GPT.

Sources: Shazeer 2020, "GLU variants improve transformer"; Hendrycks and Gimpel 2016 (GELU); Srivastava et al. 2014
(dropout).
"""

from __future__ import annotations

import math

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


GELU_SLOPE = math.sqrt(2 / math.pi)
GELU_CUBE = 0.044715


def gelu(x: Array) -> tuple[Array, Array]:
    """y = ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))), the approximation that GPT-2 and Megatron use.

    >>> import numpy as np
    >>> y, cache = gelu(np.array([0.0, 1.0]))
    >>> [round(float(value), 4) for value in y]
    [0.0, 0.8412]
    """
    tanh = namespace(x).tanh(GELU_SLOPE * (x + GELU_CUBE * x * x * x))
    return 0.5 * x * (1 + tanh), x


def gelu_backward(dy: Array, cache: Array) -> Array:
    """dx = dy · gelu'(x), with gelu'(x) = ½ (1 + tanh u) + ½ x (1 − tanh² u) u', where u is what tanh was taken of."""
    x = cache
    tanh = namespace(x).tanh(GELU_SLOPE * (x + GELU_CUBE * x * x * x))
    inner = GELU_SLOPE * (1 + 3 * GELU_CUBE * x * x)  # u'
    return dy * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * inner)


def dropout(x: Array, keep: Array, rate: float) -> tuple[Array, tuple[Array, float]]:
    """y = x / (1 − rate) where `keep` is true, and 0 elsewhere. `keep` holds booleans, one byte each."""
    return x * namespace(x).astype(keep, x.dtype) * (1 / (1 - rate)), (keep, rate)


def dropout_backward(dy: Array, cache: tuple[Array, float]) -> Array:
    """dx = dy / (1 − rate) where `keep` is true, and 0 elsewhere."""
    keep, rate = cache
    return dy * namespace(dy).astype(keep, dy.dtype) * (1 / (1 - rate))
