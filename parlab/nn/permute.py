"""From tokens to rows that stand expert by expert, and back.

    pairs      the T·k pairs (token, slot), sorted by expert, those of one expert by token
    permute    row = x[token] of each pair; its backward adds the rows of a token
    unpermute  y[token] = Σ over its slots of gate · row; its backward: drow = gate · dy, dgate = <row, dy>

Invariant: pairs are sorted once; a pair's row, answer and gradient stand at one place in that order, and go back to
their token and slot by its inverse.

Letters: T tokens, k experts a token, E hidden size, R rows: T·k, or fewer where some of the experts are not here.

Source: Megatron-LM, megatron/core/transformer/moe/moe_utils.py; Gale et al. 2022, "MegaBlocks" (no row is dropped).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from parlab.arrays import Array, namespace
from parlab.nn.routing import Routing, expert_loads


class Pairs(NamedTuple):
    """The (token, slot) pairs of a routing, sorted by expert."""

    order: Array  # [T·k]: the pair token·k + slot at each place
    counts: list[int]  # rows of each expert that is here
    k: int


def sort_by_expert(routing: Routing, num_experts: int) -> Pairs:
    """The pairs by expert, and those of one expert by token: a stable sort.

    An expert that is not here has the number `num_experts`: its pairs come last, and are not counted.

    >>> import numpy as np
    >>> chosen = np.array([[1, 0], [0, 2]])  # pairs 0 and 1 of token 0, pairs 2 and 3 of token 1
    >>> sort_by_expert(Routing(chosen, gates=None), 2)  # expert 0 has pairs 1 and 2; expert 2 is not here
    Pairs(order=array([1, 2, 0, 3]), counts=[2, 1], k=2)
    """
    xp, chosen = namespace(routing.chosen), routing.chosen
    order = xp.argsort(xp.reshape(chosen, (-1,)), stable=True)
    return Pairs(order, expert_loads(routing, num_experts), chosen.shape[1])


def permute(x: Array, pairs: Pairs) -> Array:
    """The token of each pair that goes to an expert, copied: `[T, E]` -> `[R, E]`.

    >>> import numpy as np
    >>> pairs = Pairs(np.array([1, 2, 0, 3]), [2, 1], k=2)  # as in `sort_by_expert`
    >>> permute(np.array([[10.0], [20.0]]), pairs).ravel().tolist()  # expert 0: tokens 0 and 1; expert 1: token 0
    [10.0, 20.0, 10.0]
    """
    return namespace(x).take(x, pairs.order[: sum(pairs.counts)] // pairs.k, axis=0)


def permute_backward(drows: Array, pairs: Pairs) -> Array:
    """dx: the sum of the gradients of a token's copies, `[R, E]` -> `[T, E]`."""
    return sum_of_slots(slots_of(drows, pairs))


class UnpermuteCache(NamedTuple):
    """The arrays that `unpermute` keeps for its backward."""

    pairs: Pairs
    gates: Array  # [T, k]
    slots: Array  # [T, k, E]: the rows at their tokens, before the gates


def unpermute(rows: Array, pairs: Pairs, gates: Array) -> tuple[Array, UnpermuteCache]:
    """`(y [T, E], cache)`: Σ gate · row over the slots of each token, from the experts' answers `[R, E]`.

    >>> import numpy as np
    >>> pairs, gates = Pairs(np.array([1, 2, 0, 3]), [2, 1], k=2), np.array([[0.5, 0.5], [0.25, 0.75]])
    >>> y, cache = unpermute(np.array([[1.0], [2.0], [3.0]]), pairs, gates)
    >>> cache.slots[:, :, 0].tolist(), y.ravel().tolist()  # (3 + 1)/2, and 2/4: its other expert is elsewhere
    ([[3.0, 1.0], [2.0, 0.0]], [2.0, 0.5])
    """
    slots = slots_of(rows, pairs)
    return sum_of_slots(slots, gates), UnpermuteCache(pairs, gates, slots)


def unpermute_backward(dy: Array, cache: UnpermuteCache) -> tuple[Array, Array]:
    """`(drows [R, E], dgates [T, k])`: gate · dy for each row, and <row, dy> for each gate."""
    pairs, gates, slots = cache
    xp = namespace(dy)
    dgates = xp.sum(slots * dy[:, None, :], axis=2)
    of_rows = xp.take(xp.reshape(gates, (-1, 1)), pairs.order[: sum(pairs.counts)], axis=0)  # [R, 1]
    return permute(dy, pairs) * of_rows, dgates


def slots_of(rows: Array, pairs: Pairs) -> Array:
    """The rows back at their tokens: `[R, E]` -> `[T, k, E]`, with zeros where a slot's expert is not here."""
    xp, elsewhere = namespace(rows), pairs.order.shape[0] - rows.shape[0]
    if elsewhere:
        rows = xp.concat([rows, xp.zeros((elsewhere, rows.shape[1]), dtype=rows.dtype, device=rows.device)])
    place = xp.argsort(pairs.order)  # of each pair in that order: its inverse
    return xp.reshape(xp.take(rows, place, axis=0), (-1, pairs.k, rows.shape[1]))


def sum_of_slots(slots: Array, gates: Array | None = None) -> Array:
    """Σ gate · row over the slots, in their order: `[T, k, E]`, `[T, k]` -> `[T, E]`. Without gates, Σ row."""
    weighted = slots if gates is None else slots * gates[:, :, None]
    y = weighted[:, 0, :]
    for slot in range(1, weighted.shape[1]):
        y = y + weighted[:, slot, :]
    return y


def parts_of(rows: Array, counts: Sequence[int]) -> list[Array]:
    """Consecutive parts of the rows, each of so many."""
    stops = list(accumulate(counts, initial=0))
    return [rows[start:stop, :] for start, stop in pairwise(stops)]
