"""The exercise 03.heads: the query heads of a rank, and the K/V heads that these read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.counts import ranks_in_words
from parlab.labs.difference import brief
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong
from parlab.sequence import AttentionShape, ulysses_cost
from parlab.sequence.heads import heads_of_ranks
from parlab.world.units import several


@dataclass(frozen=True)
class HeadsCase:
    """`size` ranks share `H` query heads that read `G` K/V heads."""

    size: int
    H: int
    G: int

    def __str__(self) -> str:
        return f"{ranks_in_words(self.size)}, {several(self.H, 'query head')}, {several(self.G, 'K/V head')}"


def _whole_numbers(found: Any) -> list[int] | None:
    """The numbers in a range, list, set or array of whole numbers; None: `found` is something else."""
    if isinstance(found, np.ndarray):
        found = found.tolist()
    if not isinstance(found, range | list | tuple | set):
        return None
    numbers = list(found)
    whole = all(isinstance(x, int | np.integer) and not isinstance(x, bool) for x in numbers)
    return [int(x) for x in numbers] if whole else None


def _try_heads(trial: Trial, case: HeadsCase) -> list[str]:
    calls = [(rank, case.size, case.H, case.G) for rank in range(case.size)]
    results = trial.called_each(calls)
    heads = heads_of_ranks(case.H, case.G, case.size)
    queries = [range(own.query_heads.start, own.query_heads.stop) for own in heads]
    keys = [range(own.kv_heads.start, own.kv_heads.stop) for own in heads]
    found = [_checked_heads(call, result) for call, result in zip(calls, results, strict=True)]
    found_queries, found_keys = zip(*found, strict=True)
    for rank, (mine, wanted) in enumerate(zip(found_queries, queries, strict=True)):
        if mine != list(wanted):
            cause = _query_cause(found_queries, queries, rank, case)
            raise Wrong(f"heads{calls[rank]}: query heads {mine}, expected {list(wanted)}", f"likely cause: {cause}")
    for rank, (mine, wanted) in enumerate(zip(found_keys, keys, strict=True)):
        if mine != list(wanted):
            cause = _key_cause(found_keys, queries, keys, rank, case)
            raise Wrong(f"heads{calls[rank]}: K/V heads {mine}, expected {list(wanted)}", f"likely cause: {cause}")
    shape = AttentionShape(S=1024 * case.size, H=case.H, G=case.G, D=64, itemsize=2)
    copies = sum(map(len, keys))
    kib = ulysses_cost(shape, case.size).nbytes / 1024
    sent = f"rank 0 sends {kib:g} KiB for its 1024 tokens of size 64"
    return [f"{several(copies, 'K/V head')} on all ranks together, of {case.G}; {sent}"]


def _checked_heads(call: tuple[int, ...], result: Any) -> tuple[list[int], list[int]]:
    """The query heads and the K/V heads in `result`, each in order."""
    parts = [_whole_numbers(part) for part in result] if isinstance(result, tuple | list) else []
    if len(parts) != 2 or None in parts:
        raise Wrong(f"heads{call} returned {brief(result)}, expected (its query heads, the K/V heads they read)")
    return sorted(parts[0] or []), sorted(parts[1] or [])


def _first_rule(found: Sequence[list[int]], rules: dict[str, Callable[[int], Iterable[int]]]) -> str:
    """The first of these causes whose rule gives what every rank returned; "": none."""
    for cause, rule in rules.items():
        if all(mine == sorted(rule(rank)) for rank, mine in enumerate(found)):
            return cause
    return ""


def _query_cause(found: Sequence[list[int]], right: Sequence[range], rank: int, case: HeadsCase) -> str:
    P, H = case.size, case.H
    each, most = H // P, -(-H // P)
    rules: dict[str, Callable[[int], Iterable[int]]] = {
        "the heads are dealt like cards, by h % P; the heads of a rank follow one another": lambda r: range(r, H, P),
        "the last H mod P heads belong to no rank; the first H mod P ranks have one query head more": (
            lambda r: range(r * each, (r + 1) * each)
        ),
        "the last rank has all heads that are left over; the first H mod P ranks have one query head more": (
            lambda r: range(r * each, H if r == P - 1 else (r + 1) * each)
        ),
        "the cuts are at H·rank // P, so later ranks have more; the first H mod P ranks have one query head more": (
            lambda r: range(H * r // P, H * (r + 1) // P)
        ),
        "every rank takes ⌈H/P⌉ heads; only the first H mod P ranks have one query head more": (
            lambda r: range(min(H, r * most), min(H, (r + 1) * most))
        ),
    }
    if cause := _first_rule(found, rules):
        return cause
    if len(found[rank]) == len(right[rank]):
        return f"the ranks before rank {rank} own {several(right[rank].start, 'query head')}"
    more = f", and the first {H % P} ranks have one query head more" if H % P else ""
    return f"each rank has H // P = {each} heads{more}"


def _key_cause(
    found: Sequence[list[int]], queries: Sequence[range], right: Sequence[range], rank: int, case: HeadsCase
) -> str:
    P, G, group = case.size, case.G, case.H // case.G
    rules: dict[str, Callable[[int], Iterable[int]]] = {
        "query head h reads K/V head h // (H/G), and not h % G": lambda r: {head % G for head in queries[r]},
        "these are query heads; H/G of them read one K/V head": lambda r: queries[r],
        "K/V heads are not dealt to the ranks; a rank needs those that its query heads read": (
            lambda r: range(r * G // P, (r + 1) * G // P)
        ),
        "this is the K/V head of the first query head alone": lambda r: right[r][:1],
        "the K/V heads between the first and the last are missing": lambda r: {right[r][0], right[r][-1]},
    }
    if cause := _first_rule(found, rules):
        return cause
    if len(found[rank]) > len(set(found[rank])):
        return "a K/V head is named for each query head that reads it; name each one once"
    if set(found[rank]) > set(right[rank]):
        return "some of these are read by none of its query heads; they need not travel"
    missing = sorted(set(right[rank]) - set(found[rank]))
    if missing and set(found[rank]) < set(right[rank]):
        head = next(head for head in queries[rank] if head // group == missing[0])
        return f"its query head {head} would find no key; it reads K/V head {head} // {group} = {missing[0]}"
    return "query head h reads K/V head h // (H/G), from that of its first query head to that of its last"


def _draw_heads(random: np.random.Generator, size: int) -> HeadsCase:
    G = int(random.integers(1, 7))
    return HeadsCase(size, G * int(random.integers(-(-size // G), size + 2)), G)


HEADS = Exercise(
    "03.heads",
    "heads(rank, size, H, G)",
    [
        HeadsCase(2, 4, 4),
        HeadsCase(1, 4, 2),
        HeadsCase(2, 6, 3),
        HeadsCase(2, 6, 6),
        HeadsCase(3, 4, 2),
        HeadsCase(4, 8, 2),
        HeadsCase(8, 32, 8),
        HeadsCase(12, 32, 8),
    ],
    _try_heads,
    _draw_heads,
    solved_by=("parlab.sequence.heads.heads_of_ranks",),
)

EXERCISES = (HEADS,)
