"""What every method does between its messages: attend blocks of queries to blocks of keys, merged by their lse.

The methods differ in one thing only: which rank holds which q, k and v when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from parlab.arguments import whole
from parlab.arrays import Array, namespace, on_host
from parlab.nn.attention import (
    accumulator_dtype,
    attend_block,
    attend_block_backward,
    check_gradient,
    check_inputs,
    merge,
    row_dot,
)
from parlab.sequence.costs import attention_flops
from parlab.sequence.layouts import checked_documents
from parlab.sequence.schedule import Block
from parlab.world import Comm, MismatchError
from parlab.world.values import Value

Pair = tuple[Array, Array]  # K/V, or their gradients
Heads = list[tuple[slice, slice]]  # query heads, and the K/V heads that they read: equally many to each

ALL = [(slice(None), slice(None))]


def agreed(
    comm: Comm,
    method: str,
    q: Array,
    k: Array,
    v: Array,
    scale: float | None,
    causal: bool = False,
    layout: str = "contiguous",
    documents: Sequence[int] | None = None,
    **how: Any,
) -> tuple[str, dict[str, Any]]:
    """What all ranks must have been told alike, and of it how the tokens are dealt out (`RingSchedule.blocks`).

    The first is the label of every message, so that a difference is an error.

    Raises:
        ValueError: shapes, a layout or documents that do not fit.
    """
    check_inputs(q, k, v, causal=True, scale=scale)  # causal or not, shards have as many keys as queries
    edges = checked_documents(documents, q.shape[2] * comm.size, comm.size, layout)
    comm.hold("q, k, v", q, k, v)
    dealt = {"causal": causal, "layout": layout, "documents": None if documents is None else edges}
    return label(method, **dealt, **how, scale=scale), dealt


def label(method: str, **how: Any) -> str:
    """A method and its arguments, but for those that are None."""
    return ", ".join([method, *(f"{name}={value}" for name, value in how.items() if value is not None)])


def backward_rows(comm: Comm, dout: Array, q: Array, out: Array, lse: Array) -> list[Array]:
    """dout, q, lse and delta = rowsum(dO ∘ O): what a query is to the backward, which needs no more of out.

    Raises:
        ValueError: these cannot be the gradient of an attention's output, or that output.
    """
    check_gradient(dout, q, out, lse)
    delta = row_dot(dout, out)
    comm.hold("dout, out, lse", dout, out, lse, delta)
    return [dout, q, lse, delta]  # twice [B, H, S, D], twice [B, H, S]


def grid(comm: Comm, name: str, inside: int) -> tuple[Comm, Comm]:
    """Two groups of this rank: `inside` consecutive ranks, and those that have its place in each such group.

    Raises:
        ValueError: `inside`, the argument called `name`, does not divide the ranks.
        MismatchError: another rank was told another number.
    """
    if whole(name, inside) < 1 or comm.size % inside:
        divisors = [number for number in range(1, comm.size + 1) if comm.size % number == 0]
        raise ValueError(f"{name}={inside}: must divide the {comm.size} ranks: use one of {divisors}")
    groups: tuple[Any, Any] = comm.split(comm.rank // inside), comm.split(comm.rank % inside)
    if (groups[0].size, groups[1].size) != (inside, comm.size // inside):
        raise MismatchError(f"rank {comm.rank} was told {name}={inside}, and another rank something else")
    return groups


def exchange(
    comm: Comm,
    give: Callable[[int], Value | None],
    like: Callable[[int], Value | None],
    take: Callable[[int, Value], None],
    label: str,
) -> None:
    """Everyone gives something to everyone: in step s a rank sends to rank + s, and takes what rank − s sends it.

    P − 1 steps, in each at most one message each way; None is not sent. What a rank has for itself comes first.

    Args:
        comm: the group.
        give: what goes to a rank.
        like: what comes from a rank, by its shapes and dtypes.
        take: called with a rank and what came from it.
        label: checked against the other ranks'.
    """
    for step in range(comm.size):
        dst, src = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        outgoing, form = give(dst), like(src)
        if form is None:
            if outgoing is not None:
                comm.send(outgoing, dst, label=label)
        elif step == 0:
            take(src, outgoing)
        elif outgoing is None:
            take(src, comm.recv(src, form, label=label))
        else:
            take(src, comm.sendrecv(outgoing, dst, src, form, label=label))


class Queries:
    """The forward on one rank: its queries, and `out` and `lse` of the keys that they have seen so far."""

    def __init__(self, comm: Comm, q: Array, scale: float | None) -> None:
        xp = namespace(q)
        self.comm, self.q, self.scale = comm, q, scale
        self.out = xp.zeros(q.shape, dtype=accumulator_dtype(q), device=q.device)  # [B, H, S, D]
        self.lse = xp.full(q.shape[:-1], -xp.inf, dtype=self.out.dtype, device=q.device)  # [B, H, S]
        comm.hold("out, lse", self.out, self.lse)

    def attend(self, blocks: Sequence[Block], k: Array, v: Array, heads: Heads = ALL) -> None:
        """Merge the attention of these blocks into the rows of `out` and `lse` that they belong to."""
        if not blocks:
            return
        xp, out, lse = namespace(self.q), self.out, self.lse
        with self.comm.compute("attend", flops=_flops(blocks, self.q, heads)):
            for block, (h, g) in product(blocks, heads):
                rows, columns, how = block.queries, block.keys, {"diagonal": block.diagonal, "window": block.window}
                given = self.q[:, h, rows, :], k[:, g, columns, :], v[:, g, columns, :]
                part = attend_block(*given, scale=self.scale, **how)
                if not on_host(lse) or xp.any(lse[:, h, rows] > -xp.inf):  # else there is nothing to merge with
                    part = merge(out[:, h, rows, :], lse[:, h, rows], *part)
                out[:, h, rows, :], lse[:, h, rows] = part

    def done(self) -> tuple[Array, Array]:
        """`(out, lse)`, out in q's dtype."""
        (self.out,) = narrowed([self.out], [self.q])
        self.comm.hold("out, lse", self.out)
        return self.out, self.lse


class QueryGradients:
    """The backward on one rank: its `backward_rows`, and `dq` of the keys that they have seen so far."""

    def __init__(self, comm: Comm, rows: Sequence[Array], scale: float | None) -> None:
        self.comm, self.scale = comm, scale
        self.dout, self.q, self.lse, self.delta = rows
        xp, q = namespace(self.q), self.q
        self.dq = xp.zeros(q.shape, dtype=accumulator_dtype(q), device=q.device)  # [B, H, S, D]
        comm.hold("dq, dk, dv", self.dq)

    def attend(self, blocks: Sequence[Block], k: Array, v: Array, heads: Heads = ALL) -> Pair:
        """Add what these blocks give to `dq`; return what they give to dk and dv, in float32 or wider."""
        dk, dv = (namespace(k).zeros(k.shape, dtype=self.dq.dtype, device=k.device) for _ in range(2))
        if blocks:
            self.comm.compute("attend backward", flops=_flops(blocks, self.q, heads, backward=True))
        for block, (h, g) in product(blocks, heads):
            rows, columns, how = block.queries, block.keys, {"diagonal": block.diagonal, "window": block.window}
            given = self.dout[:, h, rows, :], self.q[:, h, rows, :], k[:, g, columns, :], v[:, g, columns, :]
            sums = self.lse[:, h, rows], self.delta[:, h, rows]
            totals = self.dq[:, h, rows, :], dk[:, g, columns, :], dv[:, g, columns, :]
            attend_block_backward(*given, *sums, scale=self.scale, totals=totals, **how)
        return dk, dv

    def done(self, dk: Array, dv: Array) -> tuple[Array, Array, Array]:
        """`(dq, dk, dv)`, dq in q's dtype."""
        self.comm.hold("dq, dk, dv", dk, dv)
        (self.dq,) = narrowed([self.dq], [self.q])
        self.comm.hold("dq, dk, dv", self.dq)
        return self.dq, dk, dv


def add_to(totals: Sequence[Array], parts: Sequence[Array]) -> None:
    """Add each part to its total, in place."""
    for total, part in zip(totals, parts, strict=True):
        total += part


def narrowed(gradients: Sequence[Array], inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Each gradient in the dtype of what it is the gradient of."""
    return tuple(namespace(x).astype(d, x.dtype, copy=False) for d, x in zip(gradients, inputs, strict=True))


def _flops(blocks: Sequence[Block], q: Array, heads: Heads, *, backward: bool = False) -> int:
    B, H = q.shape[0], sum(q[:, h, ...].shape[1] for h, _ in heads)
    return attention_flops(sum(block.pairs for block in blocks), B, H, q.shape[3], backward=backward)
