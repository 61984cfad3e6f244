"""The exercise 03.hops: how far the K/V of packed documents travel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parlab.labs.counts import ranks_in_words
from parlab.labs.difference import brief
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong
from parlab.sequence.tiles import kv_hops, sharded_mask


@dataclass(frozen=True)
class PackedCase:
    """`documents` in a sequence on `size` ranks, contiguous and causal."""

    size: int
    documents: tuple[int, ...]

    def __str__(self) -> str:
        return f"{ranks_in_words(self.size)}, documents={list(self.documents)}"


def _try_hops(trial: Trial, case: PackedCase) -> list[str]:
    calls = [(rank, case.size, list(case.documents)) for rank in range(case.size)]
    results = trial.called_each(calls)
    c = case.documents[-1] // case.size
    right = kv_hops(sharded_mask(case.size, c, causal=True, documents=case.documents))
    for (rank, *_), mine, wanted in zip(calls, results, right, strict=True):
        if not isinstance(mine, int | np.integer) or isinstance(mine, bool):
            raise Wrong(f"for rank {rank} it returned {brief(mine)}, expected a whole number")
        if mine != wanted:
            said = f"for rank {rank} it returned {int(mine)}, expected {wanted} hops"
            raise Wrong(said, _which_token(case, rank, int(mine), wanted))
    return [f"K/V make {sum(right)} of {case.size * (case.size - 1)} hops"]


def _which_token(case: PackedCase, rank: int, found: int, right: int) -> str:
    """The token that still needs the K/V of `rank`, or the last one that does."""
    if found < 0:
        return "a number of hops is not negative"
    c = case.documents[-1] // case.size
    last = (rank + 1) * c - 1
    stop = min(edge for edge in case.documents if edge > last)
    if found < right:
        there = rank + found + 1
        return f"too few: token {there * c}, on rank {there}, sees token {last}, the last one of rank {rank}"
    if stop == last + 1:
        return f"too many: token {last}, the last one of rank {rank}, ends its document; no later rank sees it"
    return (
        f"too many: the document of token {last}, the last one of rank {rank}, ends with token {stop - 1}, "
        f"on rank {rank + right}"
    )


def _draw_packed(random: np.random.Generator, size: int) -> PackedCase:
    S = size * int(random.integers(2, 9))
    edges = random.choice(np.arange(1, S), size=min(int(random.integers(0, 5)), S - 1), replace=False)
    return PackedCase(size, (0, *sorted(map(int, edges)), S))


HOPS = Exercise(
    "03.hops",
    "hops(rank, size, documents)",
    [
        PackedCase(2, (0, 4)),
        PackedCase(2, (0, 2, 4)),
        PackedCase(1, (0, 3, 5)),
        PackedCase(2, (0, 1, 4)),
        PackedCase(4, (0, 2, 8, 12)),
        PackedCase(4, (0, 6, 38, 64)),
        PackedCase(7, (0, 9, 30, 35)),
    ],
    _try_hops,
    _draw_packed,
    solved_by=("parlab.sequence.tiles.kv_hops",),
)

EXERCISES = (HOPS,)
