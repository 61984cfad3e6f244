"""The nonlinearities: SwiGLU, as Llama has it; GELU and dropout, as GPT has them. None of them has weights.

Sources: Shazeer 2020, "GLU variants improve transformer"; Hendrycks and Gimpel 2016 (GELU); Srivastava et al. 2014
(dropout).
"""

from __future__ import annotations

import math

from parlab.arrays import Array, namespace


def swiglu(gate: Array, up: Array) -> tuple[Array, tuple[Array, Array]]:
    """silu(gate) ∘ up, where silu(z) = z · sigmoid(z). All `[..., M]`.

    >>> import numpy as np
    >>> y, cache = swiglu(np.array([0.0, 1.0]), np.array([5.0, 2.0]))
    >>> [round(float(value), 4) for value in y]
    [0.0, 1.4621]
    """
    y = gate * _sigmoid(gate)
    y *= up
    return y, (gate, up)


def swiglu_backward(dy: Array, cache: tuple[Array, Array]) -> tuple[Array, Array]:
    """`(dgate, dup)`, with silu'(z) = σ + z σ (1 − σ) = σ (1 + z − silu(z))."""
    gate, up = cache
    sigmoid = _sigmoid(gate)
    silu = gate * sigmoid
    dgate = gate - silu
    dgate += 1
    dgate *= sigmoid
    dgate *= up
    dgate *= dy
    silu *= dy
    return dgate, silu


def _sigmoid(z: Array) -> Array:
    """1 / (1 + exp(−z)) by way of tanh, which cannot overflow."""
    y = namespace(z).tanh(z * 0.5)
    y += 1
    y *= 0.5
    return y


GELU_SLOPE = math.sqrt(2 / math.pi)
GELU_CUBE = 0.044715


def gelu(x: Array) -> tuple[Array, Array]:
    """½ x (1 + tanh(√(2/π) (x + 0.044715 x³))): the approximation that GPT-2 and Megatron use.

    >>> import numpy as np
    >>> y, cache = gelu(np.array([0.0, 1.0]))
    >>> [round(float(value), 4) for value in y]
    [0.0, 0.8412]
    """
    tanh = namespace(x).tanh(GELU_SLOPE * (x + GELU_CUBE * x * x * x))
    return 0.5 * x * (1 + tanh), x


def gelu_backward(dy: Array, cache: Array) -> Array:
    """dx = dy · gelu'(x)."""
    x = cache
    tanh = namespace(x).tanh(GELU_SLOPE * (x + GELU_CUBE * x * x * x))
    inner = GELU_SLOPE * (1 + 3 * GELU_CUBE * x * x)
    return dy * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * inner)


def dropout(x: Array, keep: Array, rate: float) -> tuple[Array, tuple[Array, float]]:
    """x / (1 − rate) where `keep` (booleans, one byte each) is true, and 0 elsewhere."""
    return x * namespace(x).astype(keep, x.dtype) * (1 / (1 - rate)), (keep, rate)


def dropout_backward(dy: Array, cache: tuple[Array, float]) -> Array:
    """The same mask again."""
    keep, rate = cache
    return dy * namespace(dy).astype(keep, dy.dtype) * (1 / (1 - rate))
