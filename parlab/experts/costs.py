"""The closed forms of expert parallelism: copies of a token's row, messages and bytes.

Letters: N experts, k chosen, P ranks of m = N/P experts, G nodes, T tokens a rank, E hidden size, b bytes an element.
Means are over tokens that choose k of the N experts uniformly; counts are of a plan that ran.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from parlab.arguments import checked_rank, whole
from parlab.experts.rank_experts import check_experts, experts_of


class ExpertCost(NamedTuple):
    """One rank in one direction of a layer: plan, dispatch and combine; backward has no plan."""

    messages: int
    nbytes: int  # sent
    held: int  # bytes of rows and of answers, kept from forward to backward; the experts' activations come on top


def expert_cost(
    counts: Sequence[Sequence[int]], rank: int, hidden: int, itemsize: int, *, backward: bool = False
) -> ExpertCost:
    """Of `rank`, by unequal all-to-alls, one copy for each expert.

    Args:
        counts: `[P][N]`, rows that each rank sends to each expert: `Plan.counts`.
        rank: the rank in question.
        hidden: E.
        itemsize: b.
        backward: the same rows again, without the plan.

    Forward: P − 1 messages of the plan's 8N bytes around the ring; P − 1 of dispatch, in all bE a row for other ranks'
    experts; P − 1 of combine, bE a row from other ranks. Forward and backward together 2(S + R)bE, for S rows sent and
    R received in dispatch. Kept are the rows of its experts, and an answer for each pair of its tokens.

    Raises:
        ValueError: N is no multiple of P, or there is no such rank.

    >>> expert_cost([[1, 2], [3, 4]], 0, hidden=10, itemsize=4)  # sends 2 rows, receives 3
    ExpertCost(messages=3, nbytes=216, held=280)
    """
    P, N = len(counts), len(counts[0])
    check_experts(N, P)
    checked_rank(rank, "rank", P)
    own = experts_of(rank, N, P)
    sent = sum(counts[rank]) - sum(counts[rank][expert] for expert in own)
    received = sum(counts[source][expert] for source in range(P) for expert in own if source != rank)
    of_plan = 0 if backward else P - 1  # messages
    kept = 0 if backward else sum(row[expert] for row in counts for expert in own) + sum(counts[rank])
    moved = (sent + received) * hidden * itemsize
    return ExpertCost(2 * (P - 1) + of_plan, moved + of_plan * 8 * N, kept * hidden * itemsize)


def units_of_layer(counts: Sequence[Sequence[int]]) -> int:
    """After how many units of time the experts of all ranks have answered, if a row takes 1: the rows of the fullest.

    Args:
        counts: `[P][N]`, rows that each rank sends to each expert: `Plan.counts`.

    Raises:
        ValueError: N is no multiple of P.

    >>> units_of_layer([[1, 2], [3, 4]])  # expert 0 gets 4 rows, expert 1 gets 6
    6
    """
    P, N = len(counts), len(counts[0])
    check_experts(N, P)
    loads = [sum(to_expert) for to_expert in zip(*counts, strict=True)]
    return max(sum(loads[first : first + N // P]) for first in range(0, N, N // P))


def copies_to_experts(num_experts: int, k: int, size: int) -> Fraction:
    """Mean rows of a token that leave its rank, one for each expert: k(1 − 1/P), however many experts a rank has.

    For nodes, give their number G as `size`, here and in `copies_to_limited_nodes`.

    Raises:
        ValueError: a size that does not divide the experts, or k above their number.

    >>> copies_to_experts(256, 8, 8)
    Fraction(7, 1)
    """
    _checked_choice(num_experts, k, size)
    return k * (1 - Fraction(1, size))


def copies_to_ranks(num_experts: int, k: int, size: int) -> Fraction:
    """Mean rows of a token that leave its rank, one for each other rank with an expert of it:
    (P − 1)(1 − C(N − m, k)/C(N, k)).

    Raises:
        ValueError: as `copies_to_experts`.

    >>> round(float(copies_to_ranks(256, 8, 8)), 2)  # between 8 nodes: DeepSeek-V3's, without its limit
    4.63
    """
    _checked_choice(num_experts, k, size)
    m = num_experts // size
    return (size - 1) * (1 - Fraction(math.comb(num_experts - m, k), math.comb(num_experts, k)))


def copies_to_limited_nodes(num_experts: int, k: int, size: int, limit: int) -> Fraction:
    """Mean rows of a token that leave its node, if it goes to exactly M = `limit` of G = `size` nodes: M(1 − 1/G).

    Raises:
        ValueError: as `copies_to_experts`, or a limit above k or above the nodes: so many cannot all be used.

    >>> copies_to_limited_nodes(256, 8, 8, limit=4)
    Fraction(7, 2)
    """
    _checked_choice(num_experts, k, size)
    if whole("limit", limit, 1) > min(k, size):
        raise ValueError(f"limit={limit}: {k} experts on {size} nodes use at most {min(k, size)}")
    return limit * (1 - Fraction(1, size))


def _checked_choice(num_experts: int, k: int, size: int) -> None:
    if whole("num_experts", num_experts, 1) % whole("size", size, 1):
        raise ValueError(f"size={size}: must divide the {num_experts} experts")
    if whole("k", k, 1) > num_experts:
        raise ValueError(f"k={k}: there are {num_experts} experts")
