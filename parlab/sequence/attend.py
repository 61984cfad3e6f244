"""What every method does between its messages: attend blocks of queries to blocks of keys, merged by their lse.

The methods differ in one thing only: which rank holds which q, k and v when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from parlab.arguments import whole
from parlab.arrays import Array, namespace, on_host
from parlab.nn.attention import (
    accumulator_dtype,
    attend_block,
    attend_block_backward,
    check_inputs,
    merge,
)
from parlab.sequence.costs import attention_flops
from parlab.sequence.layouts import checked_documents
from parlab.sequence.schedule import Block
from parlab.world import Comm, MismatchError
from parlab.world.values import Value

Heads = list[tuple[slice, slice]]  # query heads, and the K/V heads that they read: equally many to each

ALL = [(slice(None), slice(None))]


def checked(
    comm: Comm,
    q: Array,
    k: Array,
    v: Array,
    scale: float | None,
    layout: str = "contiguous",
    documents: Sequence[int] | None = None,
) -> tuple[int, ...] | None:
    """`documents`, and a refusal of shards that cannot be attended.

    Raises:
        ValueError: shapes, a layout or documents that do not fit.
    """
    check_inputs(q, k, v, causal=True, scale=scale)  # causal or not, shards have as many keys as queries
    edges = checked_documents(documents, q.shape[2] * comm.size, comm.size, layout)
    return None if documents is None else edges


def agreement(method: str, **how: Any) -> str:
    """What all ranks must have been told alike: the label of every message, so that a difference is an error."""
    return ", ".join([method, *(f"{name}={value}" for name, value in how.items() if value is not None)])


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


def nothing_attended(q: Array) -> tuple[Array, Array]:
    """`(out, lse)` of queries `[B, H, S, D]` that have seen no key yet: 0 and −inf, in float32 or wider."""
    xp = namespace(q)
    out = xp.zeros(q.shape, dtype=accumulator_dtype(q), device=q.device)  # [B, H, S, D]
    return out, xp.full(q.shape[:-1], -xp.inf, dtype=out.dtype, device=q.device)


def attend(
    comm: Comm,
    blocks: Sequence[Block],
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    scale: float | None,
    heads: Heads = ALL,
) -> None:
    """Merge the attention of these blocks into the rows of `out` and `lse` that they belong to."""
    if not blocks:
        return
    xp = namespace(q)
    with comm.compute("attend", flops=_flops(blocks, q)):
        for block in blocks:
            rows, columns, how = block.queries, block.keys, {"diagonal": block.diagonal, "window": block.window}
            for h, g in heads:
                part = attend_block(q[:, h, rows, :], k[:, g, columns, :], v[:, g, columns, :], scale=scale, **how)
                if not on_host(lse) or xp.any(lse[:, h, rows] > -xp.inf):  # else there is nothing to merge with
                    part = merge(out[:, h, rows, :], lse[:, h, rows], *part)
                out[:, h, rows, :], lse[:, h, rows] = part


def attend_backward(
    comm: Comm,
    blocks: Sequence[Block],
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    lse: Array,
    delta: Array,
    dq: Array,
    *,
    scale: float | None,
    heads: Heads = ALL,
) -> tuple[Array, Array]:
    """Add what these blocks give to `dq`; return what they give to dk and dv, in float32 or wider."""
    xp = namespace(k)
    dk, dv = (xp.zeros(k.shape, dtype=dq.dtype, device=k.device) for _ in range(2))
    if blocks:
        comm.compute("attend backward", flops=_flops(blocks, q, backward=True))
    for block in blocks:
        rows, columns, how = block.queries, block.keys, {"diagonal": block.diagonal, "window": block.window}
        for h, g in heads:
            given = dout[:, h, rows, :], q[:, h, rows, :], k[:, g, columns, :], v[:, g, columns, :]
            share = attend_block_backward(*given, lse[:, h, rows], delta[:, h, rows], scale=scale, **how)
            dq[:, h, rows, :] += share[0]
            dk[:, g, columns, :] += share[1]
            dv[:, g, columns, :] += share[2]
    return dk, dv


def add_to(totals: Sequence[Array], parts: Sequence[Array]) -> None:
    """Add each part to its total, in place."""
    for total, part in zip(totals, parts, strict=True):
        total += part


def narrowed(gradients: Sequence[Array], inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Each gradient in the dtype of what it is the gradient of."""
    return tuple(namespace(x).astype(d, x.dtype, copy=False) for d, x in zip(gradients, inputs, strict=True))


def _flops(blocks: Sequence[Block], q: Array, *, backward: bool = False) -> int:
    B, H, _, D = q.shape
    return attention_flops(sum(block.pairs for block in blocks), B, H, D, backward=backward)
