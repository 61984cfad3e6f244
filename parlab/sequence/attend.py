"""What every method does between its messages: attend blocks of queries to blocks of keys, merged by their lse.

The methods differ in one thing only: which rank holds which q, k and v when. So each is written once, for both passes
(`backward_of`): what travels with a query, and what is summed for it, is one thing forward and another backward, where
each block also gives its share of dK and dV.
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

Scale = float | None
Pair = tuple[Array, Array]  # K/V, or their gradients
Heads = list[tuple[slice, slice]]  # query heads, and the K/V heads that they read: equally many to each

ALL = [(slice(None), slice(None))]
DEALT = {"causal": False, "layout": "contiguous", "documents": None}  # unless told otherwise


def backward_of(method: Callable[..., Any]) -> Callable[..., tuple[Array, Array, Array]]:
    """The backward of a method: the method again, which its q, `(dout, q, out, lse)`, tells what pass it is."""

    def backward(
        comm: Comm, dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, **how: Any
    ) -> tuple[Array, Array, Array]:
        """Gradients `(dq, dk, dv)` of this rank's shards, from `dout`, the gradient of a loss with respect to `out`.

        What travels is said with the forward. Sums are made, and travel, in float32 or wider.

        Args:
            dout: `[B, H, S/P, D]`.
            comm, q, k, v, how: as in the forward, all its other arguments by name.
            out, lse: what the forward returned.

        Returns:
            dq `[B, H, S/P, D]`, dk and dv `[B, G, S/P, D]`, in the dtypes of q, k and v.

        Raises: as the forward.
        """
        gradients: tuple[Array, Array, Array] = method(comm, (dout, q, out, lse), k, v, **how)
        return gradients

    backward.__module__, backward.__name__ = method.__module__, f"{method.__name__}_backward"
    backward.__qualname__ = backward.__name__
    return backward


class Call:
    """One rank's call of a method, checked: shapes, layout and documents; see `backward_of` for its q.

    Attributes:
        rows: what a query is to those who attend it: q; backward dout, q, lse and delta = rowsum(dO ∘ O).
        label: of every message: what all ranks must have been told alike, so that a difference is an error.
        dealt: of it, how the tokens are dealt out (`RingSchedule.blocks`).
    """

    def __init__(self, method: str, comm: Comm, q: Array, k: Array, v: Array, scale: Scale, **told: Any) -> None:
        self.backward, shards = isinstance(q, tuple), not told.get("replicated")  # such queries are no shards
        dout, q, out, lse = q if self.backward else (None, q, None, None)
        self.comm, self.q, self.k, self.v, self.scale = comm, q, k, v, scale
        self.dealt = {name: told.get(name, default) for name, default in DEALT.items()}
        layout, documents = self.dealt["layout"], self.dealt["documents"]
        check_inputs(q, k, v, causal=shards, scale=scale)
        if shards:
            edges = checked_documents(documents, q.shape[2] * comm.size, comm.size, layout)
            self.dealt["documents"] = None if documents is None else edges
        comm.hold("q, k, v", q, k, v)
        self.rows = [q]
        if self.backward:
            check_gradient(dout, q, out, lse)
            delta = row_dot(dout, out)
            comm.hold("dout, out, lse", dout, out, lse, delta)
            self.rows = [dout, q, lse, delta]  # twice [B, H, S, D], twice [B, H, S]
            method += " backward"
        said = DEALT | told | self.dealt | {"scale": scale}
        self.label = ", ".join([method, *(f"{name}={value}" for name, value in said.items() if value is not None)])

    def queries(self, rows: Sequence[Array] | None = None) -> Queries:
        """These rows, or the rank's own, before they have seen any key."""
        kind = QueryGradients if self.backward else Queries
        return kind(self.comm, self.rows if rows is None else rows, self.scale)

    def results(self, sums: Sequence[Array], gradients: Pair | None) -> tuple[Array, ...]:
        """What the method returns, each in its dtype: `(out, lse)`; backward `(dq, dk, dv)`."""
        if gradients is None:
            return narrowed(sums[:1], [self.q]) + tuple(sums[1:])
        return narrowed([*sums, *gradients], [self.q, self.k, self.v])


class Queries:
    """The forward of some rows: `sums` are `out` and `lse` over the keys that they have seen so far."""

    HELD = "out, lse"

    def __init__(self, comm: Comm, rows: Sequence[Array], scale: Scale) -> None:
        self.comm, self.rows, self.q, self.scale = comm, rows, rows[0], scale
        xp, q, out = namespace(self.q), self.q, wide_zeros(self.q)  # [B, H, S, D]
        self.sums = [out, xp.full(q.shape[:-1], -xp.inf, dtype=out.dtype, device=q.device)]
        comm.hold(self.HELD, *self.sums)

    def attend(self, blocks: Sequence[Block], k: Array, v: Array, heads: Heads = ALL) -> Pair | None:
        """Merge the attention of these blocks into the rows of `sums` that they belong to."""
        if not blocks:
            return None
        xp, q, (out, lse) = namespace(k), self.q, self.sums
        with self.comm.compute("attend", flops=_flops(blocks, q, heads)):
            for block, (h, g) in product(blocks, heads):
                rows, columns, how = block.queries, block.keys, self._how(block)
                given = q[:, h, rows, :], k[:, g, columns, :], v[:, g, columns, :]
                so_far = out[:, h, rows, :], lse[:, h, rows]
                if on_host(lse) and not xp.any(so_far[1] > -xp.inf):  # there is nothing to merge with
                    attend_block(*given, into=so_far, **how)
                else:
                    out[:, h, rows, :], lse[:, h, rows] = merge(*so_far, *attend_block(*given, **how))
        return None

    def done(self, gradients: Pair | None) -> list[Array]:
        """`sums`, out or dq in q's dtype; backward dk and dv count as held too."""
        self.comm.hold(self.HELD, *(gradients or ()))
        self.sums[:1] = narrowed(self.sums[:1], [self.q])
        self.comm.hold(self.HELD, *self.sums)
        return self.sums

    def _how(self, block: Block) -> dict[str, Any]:
        return {"diagonal": block.diagonal, "window": block.window, "scale": self.scale}


class QueryGradients(Queries):
    """The backward of some rows: `sums` is `dq` of the keys that they have seen so far."""

    HELD = "dq, dk, dv"

    def __init__(self, comm: Comm, rows: Sequence[Array], scale: Scale) -> None:
        self.comm, self.rows, self.q, self.scale = comm, rows, rows[1], scale
        self.sums = [wide_zeros(self.q)]  # [B, H, S, D]
        comm.hold(self.HELD, *self.sums)

    def attend(self, blocks: Sequence[Block], k: Array, v: Array, heads: Heads = ALL) -> Pair:
        """Add what these blocks give to `dq`; return what they give to dk and dv, in float32 or wider."""
        (dout, q, lse, delta), (dq,) = self.rows, self.sums
        dk, dv = wide_zeros(k), wide_zeros(v)
        if blocks:
            self.comm.compute("attend backward", flops=_flops(blocks, q, heads, backward=True))
        for block, (h, g) in product(blocks, heads):
            rows, columns, how = block.queries, block.keys, self._how(block)
            given = dout[:, h, rows, :], q[:, h, rows, :], k[:, g, columns, :], v[:, g, columns, :]
            totals = dq[:, h, rows, :], dk[:, g, columns, :], dv[:, g, columns, :]
            attend_block_backward(*given, lse[:, h, rows], delta[:, h, rows], totals=totals, **how)
        return dk, dv


def grid(comm: Comm, name: str, inside: int) -> tuple[Comm, Comm]:
    """Two groups of this rank: `inside` consecutive ranks, and those that have its place in each such group.

    `inside`, the argument called `name`, must divide the ranks, and be the same on all: ValueError, MismatchError.
    """
    if whole(name, inside) < 1 or comm.size % inside:
        divisors = [number for number in range(1, comm.size + 1) if comm.size % number == 0]
        raise ValueError(f"{name}={inside}: must divide the {comm.size} ranks: use one of {divisors}")
    groups: tuple[Any, Any] = comm.split(comm.rank // inside), comm.split(comm.rank % inside)
    if (groups[0].size, groups[1].size) != (inside, comm.size // inside):
        raise MismatchError(f"rank {comm.rank} was told {name}={inside}, and another rank something else")
    return groups


def exchange(
    comm: Comm, give: Callable[[int], Any], like: Callable[[int], Any], take: Callable[[int, Any], None], label: str
) -> None:
    """Everyone gives something to everyone: in step s a rank sends to rank + s, and takes what rank − s sends it.

    P − 1 steps, in each at most one message each way: `give(dst)`, in the form of `like(src)`, for `take(src, x)`; None
    is not sent, and will not come. What a rank has for itself comes first.
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


def add_to(totals: Sequence[Array], parts: Sequence[Array]) -> None:
    """Add each part to its total, in place."""
    for total, part in zip(totals, parts, strict=True):
        total += part


def narrowed(gradients: Sequence[Array], inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Each gradient in the dtype of what it is the gradient of."""
    return tuple(namespace(x).astype(d, x.dtype, copy=False) for d, x in zip(gradients, inputs, strict=True))


def wide_zeros(x: Array) -> Array:
    """In the form of x, to sum in: float32 or wider."""
    return namespace(x).zeros(x.shape, dtype=accumulator_dtype(x), device=x.device)


def _flops(blocks: Sequence[Block], q: Array, heads: Heads, *, backward: bool = False) -> int:
    B, H = q.shape[0], sum(q[:, h, ...].shape[1] for h, _ in heads)
    return attention_flops(sum(block.pairs for block in blocks), B, H, q.shape[3], backward=backward)
