"""A decoder block on one rank's shards, before anything is sent; and the step that sends: four all-reduces.

`mlp_step` is its smallest case: two matrices with relu between them, and two all-reduces.

Behind the rows each rank has a partial sum of y, so forward ranks sum y (reduce). Each rank's columns read the same
x, so backward ranks sum dx (copy). `ParallelLlama` does the same with operators around its stages.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3, figure 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from parlab.arrays import Array, namespace
from parlab.nn.layers import GatedMLP, RMSNorm, SelfAttention
from parlab.nn.llama import LlamaConfig
from parlab.nn.rotary import Rotary
from parlab.nn.stage import Gradients, Stage, Weights
from parlab.tensor.arguments import array
from parlab.tensor.layers import kv_sharers, sum_over_sharers
from parlab.world import Comm


@dataclass
class BareBlock:
    """Four stages on one rank's shards: `forward(x) -> (y, cache)`, `backward(dy, cache) -> (dx, gradients)`.

    They send nothing but the gradients of key/value heads that several ranks own: `attention` sums these.
    """

    attention_norm: Stage
    attention: Stage
    mlp_norm: Stage
    mlp: Stage


def bare_block(comm: Comm, config: LlamaConfig, weights: Weights, prefix: str = "model.layers.0") -> BareBlock:
    """The block `prefix` from `weights`, this rank's shards (`shard_weights`). All ranks of `comm` call this."""
    attention = SelfAttention(weights, f"{prefix}.self_attn", config.head_dim, Rotary(config.head_dim))
    return BareBlock(
        RMSNorm(weights, f"{prefix}.input_layernorm.weight", config.rms_norm_eps),
        SharedHeads(attention, kv_sharers(comm, config.num_key_value_heads)),
        RMSNorm(weights, f"{prefix}.post_attention_layernorm.weight", config.rms_norm_eps),
        GatedMLP(weights, f"{prefix}.mlp"),
    )


def block_step(comm: Comm, block: BareBlock, x: Array, dy: Array) -> tuple[Array, Array, Gradients]:
    """`(y, dx, gradients)` of a block. x, dy, y and dx `[B, S, E]` are whole on every rank."""
    normed, norm_1 = block.attention_norm.forward(x)
    a, attention = block.attention.forward(normed)
    h = x + comm.all_reduce(a)
    normed, norm_2 = block.mlp_norm.forward(h)
    m, mlp = block.mlp.forward(normed)
    y = h + comm.all_reduce(m)
    dm, gradients = block.mlp.backward(dy, mlp)
    back, of_norm_2 = block.mlp_norm.backward(comm.all_reduce(dm), norm_2)
    dh = dy + back
    da, of_attention = block.attention.backward(dh, attention)
    back, of_norm_1 = block.attention_norm.backward(comm.all_reduce(da), norm_1)
    return y, dh + back, gradients | of_norm_2 | of_attention | of_norm_1


def mlp_step(comm: Comm, x: Array, A: Array, C: Array, dy: Array) -> tuple[Array, Array, Array, Array]:
    """`(y, dx, dA, dC)` of y = relu(x A) C. x, dy, y and dx `[S, E]` are whole on every rank. The exercise 05.mlp_step.

    A `[E, M/t]` are this rank's columns, C `[M/t, E]` its rows; dA and dC are theirs.

    >>> import numpy as np
    >>> from parlab import run
    >>> y, dx, dA, dC = run(mlp_step, 1, np.ones((1, 2)), np.eye(2), np.eye(2), np.ones((1, 2))).results[0]
    >>> dA.tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    xp = namespace(x)
    z = xp.maximum(x @ A, xp.zeros_like(x @ A))  # [S, M/t]: these columns, finished
    y = comm.all_reduce(z @ C)  # [S, E]: behind the rows a partial sum, then the sum
    dz = xp.where(z > 0, dy @ C.T, xp.zeros_like(z))  # [S, M/t]: dy is whole, no message
    dx = comm.all_reduce(dz @ A.T)  # [S, E]: in front of the columns a partial sum, then the sum
    return y, dx, x.T @ dz, z.T @ dy  # dA and dC: no message


def arrays_of_step(comm: Comm, block: BareBlock, step: Callable[..., Any], x: Array, dy: Array) -> dict[str, Array]:
    """This rank's a, m, y, dm, dh and da `[B, S, E]` in `step(comm, block, x, dy)`, written like `block_step`.

    a, m, dm and da are as the stages return them: before a message. dh is as the attention's backward gets it.

    Raises:
        ValueError: no function, no array, or a step that leaves out a pass through attention or MLP.
    """
    if not callable(step):
        raise ValueError(f"step={step!r:.60}: must be a function")
    array("x", x)
    array("dy", dy)
    seen: dict[str, Array] = {}
    attention = Watched(block.attention, seen, {"y": "a", "dy": "dh", "dx": "da"})
    mlp = Watched(block.mlp, seen, {"y": "m", "dx": "dm"})
    seen["y"] = step(comm, replace(block, attention=attention, mlp=mlp), x, dy)[0]
    names = ("a", "m", "y", "dm", "dh", "da")
    if missing := [name for name in names if name not in seen]:
        raise ValueError(f"step: it makes no {missing[0]}; it needs attention and MLP, forward and backward")
    return {name: seen[name] for name in names}


class Watched(Stage):
    """A stage whose y, dy and dx are copied into `seen`, under the names that `names` has for them."""

    def __init__(self, inside: Stage, seen: dict[str, Array], names: dict[str, str]) -> None:
        self.inside, self.seen, self.names = inside, seen, names
        self.weights, self.weight_names = inside.weights, inside.weight_names

    def _see(self, name: str, array: Array) -> None:
        if name in self.names:
            self.seen[self.names[name]] = array + 0  # a copy, before the step changes it

    def forward(self, x: Array) -> tuple[Array, Any]:
        """As `inside`."""
        y, cache = self.inside.forward(x)
        self._see("y", y)
        return y, cache

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        """As `inside`."""
        self._see("dy", dy)
        dx, pending = self.inside.backward_input(dy, cache)
        self._see("dx", dx)
        return dx, pending

    def backward_weight(self, pending: Any) -> Gradients:
        """As `inside`."""
        return self.inside.backward_weight(pending)


class SharedHeads(Stage):
    """Attention whose key/value heads other ranks own, too: it sums their gradients over `sharers`; None: nobody."""

    def __init__(self, inside: Stage, sharers: Comm | None) -> None:
        self.inside, self.sharers = inside, sharers
        self.weights, self.weight_names = inside.weights, inside.weight_names

    def forward(self, x: Array) -> tuple[Array, Any]:
        """As `inside`."""
        return self.inside.forward(x)

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        """As `inside`."""
        return self.inside.backward_input(dy, cache)

    def backward_weight(self, pending: Any) -> Gradients:
        """Those of k and v are summed over the sharers."""
        return sum_over_sharers(self.inside.backward_weight(pending), self.weight_names, self.sharers)
