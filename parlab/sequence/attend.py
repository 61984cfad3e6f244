"""What every method does between its messages: attend blocks of queries to blocks of keys, merged by their lse.

The methods differ in one thing only: which rank holds which q, k and v when. So each is written once, for both passes
(`backward_of`), in which other things travel with a query and are summed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

from parlab.arrays import Array, namespace
from parlab.nn.attention import attend_block, attend_block_backward, check_gradient, check_inputs, row_dot, wide_zeros
from parlab.sequence.costs import attention_flops, checked_group
from parlab.sequence.layouts import Block, RingSchedule, checked_documents
from parlab.world import Comm, MismatchError

Scale = float | None
Pair = tuple[Array, Array]  # K/V, or their gradients
Heads = list[tuple[slice, slice]]  # query heads, and the K/V heads that they read: equally many to each

ALL = [(slice(None), slice(None))]
DEALT: dict[str, Any] = {"causal": False, "layout": "contiguous", "documents": None}  # unless told otherwise


class Returning(NamedTuple):
    """What a backward gives its method for q, which is how the method knows its pass."""

    dout: Array
    q: Array
    out: Array
    lse: Array


def backward_of(method: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[Array, Array, Array]]:
    """The backward of a method: the method again, with `Returning` for its q."""

    def backward(
        comm: Comm, dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, **how: Any
    ) -> tuple[Array, Array, Array]:
        """Gradients of this rank's shards, from `dout [B, H, S/P, D]`, the gradient of a loss with respect to `out`:
        dq `[B, H, S/P, D]`, dk and dv `[B, G, S/P, D]`, in the dtypes of q, k and v.

        out and lse are what the forward returned; the other arguments are its own, by name, and so are what travels and
        what is refused. Sums are made, and travel, in float32 or wider.
        """
        return method(comm, Returning(dout, q, out, lse), k, v, **how)

    backward.__module__ = method.__module__
    backward.__name__ = backward.__qualname__ = f"{method.__name__}_backward"
    return backward


class Call:
    """One rank's call of a method, checked: shapes, layout and documents; its q may be `Returning`.

    `rows`: what a query is to those who attend it: q; backward also dout, lse and delta = rowsum(dO ∘ O). `label`, of
    every message: what all ranks must have been told alike; `dealt`: of it, how the tokens are dealt out.
    """

    def __init__(self, method: str, comm: Comm, q: Any, k: Array, v: Array, scale: Scale, **told: Any) -> None:
        self.backward, shards = hasattr(q, "dout"), not told.get("replicated")  # such queries are no shards
        dout, q, out, lse = q if self.backward else (None, q, None, None)
        self.comm, self.q, self.k, self.v, self.scale = comm, q, k, v, scale
        told = DEALT | told | {"scale": scale}
        check_inputs(q, k, v, causal=shards, scale=scale)
        if shards:
            edges = checked_documents(told["documents"], q.shape[2] * comm.size, comm.size, told["layout"])
            told["documents"] = None if told["documents"] is None else edges
        self.dealt = {name: told[name] for name in DEALT}
        comm.hold("q, k, v", q, k, v)
        self.rows = [q]
        if self.backward:
            check_gradient(dout, q, out, lse)
            delta = row_dot(dout, out)
            comm.hold("dout, out, lse", dout, out, lse, delta)
            self.rows += [dout, lse, delta]  # [B, H, S, D], twice [B, H, S]
            method += " backward"
        self.made = "dq, dk, dv" if self.backward else "out, lse"  # as what results are held
        self.label = ", ".join([method, *(f"{name}={value}" for name, value in told.items() if value is not None)])

    def results(self, sums: Sequence[Array], gradients: Sequence[Array] | None) -> tuple[Array, ...]:
        """What the method returns, each in its dtype: `(out, lse)`; backward `(dq, dk, dv)`."""
        made = [*sums, *(gradients or ())]
        like = [self.q, self.k, self.v] if self.backward else [self.q, sums[1]]
        return tuple(narrowed(x, to) for x, to in zip(made, like, strict=True))


class Queries:
    """Rows of one rank of a `ring`, and their `sums` over the keys seen so far: out and lse, backward dq."""

    def __init__(self, call: Call, rows: Sequence[Array], ring: Comm | None = None) -> None:
        self.call, self.rows, q = call, rows, rows[0]
        self.schedule = RingSchedule(0, 1) if ring is None else RingSchedule(ring.rank, ring.size)
        self.sums = [wide_zeros(q)]  # [B, H, S, D]
        if not call.backward:
            xp, out = namespace(q), self.sums[0]
            self.sums.append(xp.full(q.shape[:-1], -xp.inf, dtype=out.dtype, device=q.device))
        call.comm.hold(call.made, *self.sums)

    def meet(self, source: int, k: Array, v: Array, heads: Heads = ALL) -> Pair | None:
        """`attend` what they see of the K/V of rank `source`."""
        return self.attend(self.schedule.blocks(source, k.shape[2], **self.call.dealt), k, v, heads)

    def attend(self, blocks: Sequence[Block], k: Array, v: Array, heads: Heads = ALL) -> Pair | None:
        """Let the rows attend these blocks. Backward returns what these give to dk and dv, in float32 or wider."""
        call = self.call
        gradients = (wide_zeros(k), wide_zeros(v)) if call.backward else None
        if not blocks:
            return gradients
        B, H, D = k.shape[0], sum(self.rows[0][:, h, ...].shape[1] for h, _ in heads), k.shape[3]
        flops = attention_flops(sum(block.pairs for block in blocks), B, H, D, backward=call.backward)
        with call.comm.compute("attend backward" if call.backward else "attend", flops=flops):
            for block, (h, g) in product(blocks, heads):
                here, there = (slice(None), h, block.queries, ...), (slice(None), g, block.keys, ...)
                (q, *others), keys = [x[here] for x in self.rows], (k[there], v[there])
                totals: Any = *(x[here] for x in self.sums), *(x[there] for x in gradients or ())
                how: dict[str, Any] = {"diagonal": block.diagonal, "window": block.window, "scale": call.scale}
                if gradients is None:
                    attend_block(q, *keys, into=totals, **how)
                else:
                    dout, lse, delta = others
                    attend_block_backward(dout, q, *keys, lse, delta, totals=totals, **how)
        return gradients

    def done(self, gradients: Pair | None) -> list[Array]:
        """`sums`, out or dq in q's dtype; backward dk and dv count as held too."""
        hold, made = self.call.comm.hold, self.call.made
        hold(made, *(gradients or ()))
        self.sums[0] = narrowed(self.sums[0], self.rows[0])
        hold(made, *self.sums)
        return self.sums


def grid(comm: Comm, name: str, inside: int) -> tuple[Comm, Comm]:
    """Two groups of this rank: `inside` consecutive ranks, and those that have its place in each such group. `inside`,
    the argument called `name`, must divide the ranks, and be the same on all: ValueError, MismatchError.
    """
    checked_group(name, inside, comm.size)
    groups: tuple[Any, Any] = comm.split(comm.rank // inside), comm.split(comm.rank % inside)
    if (groups[0].size, groups[1].size) != (inside, comm.size // inside):
        raise MismatchError(f"rank {comm.rank} was told {name}={inside}, and another rank something else")
    return groups


def exchange(comm: Comm, gives: Sequence[Any], forms: Sequence[Any], label: str) -> Iterator[tuple[int, Any]]:
    """Everyone gives something to everyone: in step s, from 0, a rank sends `gives[rank + s]`, and takes what has the
    form of `forms[rank − s]`, which is yielded with its source. None is not sent, or will not come.
    """
    for step in range(comm.size):
        dst, src = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        if forms[src] is None:
            swap(comm, gives[dst], dst, None, src, label)
        else:
            yield src, gives[dst] if step == 0 else swap(comm, gives[dst], dst, forms[src], src, label)


def swap(comm: Comm, x: Any, dst: int, form: Any, src: int, label: str) -> Any:
    """Send x to `dst`, and at once take what `src` sends, of this form; None is not sent, or will not come."""
    if form is None:
        return None if x is None else comm.send(x, dst, label=label)
    if x is None:
        return comm.recv(src, form, label=label)
    return comm.sendrecv(x, dst, src, form, label=label)


def add_to(totals: Sequence[Array], parts: Sequence[Array]) -> None:
    """Add each part to its total, in place."""
    for total, part in zip(totals, parts, strict=True):
        total += part


def narrowed(x: Array, like: Array) -> Array:
    """A sum in the dtype of what it is returned as."""
    return namespace(x).astype(x, like.dtype, copy=False)
