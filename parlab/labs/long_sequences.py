"""The exercises of notebook 03: heads in Ulysses, who needs what in a packed ring, and where to cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from parlab.labs.difference import brief
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial, Wrong
from parlab.sequence import AttentionShape, ulysses_cost
from parlab.sequence.heads import head_shares
from parlab.sequence.layouts import journeys


@dataclass(frozen=True)
class Heads:
    """`size` ranks share `H` query heads that read `G` K/V heads."""

    size: int
    H: int
    G: int

    def __str__(self) -> str:
        return f"{self.size} ranks, {self.H} query heads, {self.G} K/V heads"


def _whole_numbers(found: Any) -> list[int] | None:
    """What a range, list, set or array of whole numbers holds."""
    if isinstance(found, np.ndarray):
        found = found.tolist()
    if not isinstance(found, range | list | tuple | set):
        return None
    numbers = list(found)
    whole = all(isinstance(x, int | np.integer) and not isinstance(x, bool) for x in numbers)
    return [int(x) for x in numbers] if whole else None


def _heads(trial: Trial, case: Heads) -> list[str]:
    calls = [(rank, case.size, case.H, case.G) for rank in range(case.size)]
    results = trial.called_each(calls)
    shares = head_shares(case.H, case.G, case.size)
    for call, result, share in zip(calls, results, shares, strict=True):
        if not isinstance(result, tuple | list) or len(result) != 2 or None in map(_whole_numbers, result):
            raise Wrong(f"heads{call} returned {brief(result)}, expected (its query heads, the K/V heads they read)")
        for name, mine, right in zip(("query", "K/V"), result, (share.queries, share.keys), strict=True):
            numbers, wanted = sorted(_whole_numbers(mine) or []), list(range(right.start, right.stop))
            if numbers != wanted:
                said = f"heads{call}: {name} heads {numbers}, expected {wanted}"
                raise Wrong(said, *_likely_heads(name, numbers, wanted, case))
    shape = AttentionShape(S=1024 * case.size, H=case.H, G=case.G, D=64, itemsize=2)
    copies = sum(share.keys.stop - share.keys.start for share in shares)
    kib = ulysses_cost(shape, case.size).nbytes / 1024
    sent = f"rank 0 sends {kib:g} KiB for its 1024 tokens of size 64"
    return [f"{copies} K/V heads on all ranks together, of {case.G}; {sent}"]


def _likely_heads(name: str, numbers: list[int], wanted: list[int], case: Heads) -> list[str]:
    if name == "query":
        return ["the first H mod P ranks have one query head more than the others"]
    if set(numbers) > set(wanted):
        return ["some of these are read by none of its query heads: they need not travel"]
    if len(numbers) == len(set(numbers)) < len(wanted):
        return ["one of its query heads would find no key: query head h reads K/V head h // (H/G)"]
    return ["query head h reads K/V head h // (H/G), each one once"]


def _draw_heads(random: np.random.Generator, size: int) -> Heads:
    G = int(random.integers(1, 7))
    return Heads(size, G * int(random.integers(-(-size // G), size + 2)), G)


HEADS = Exercise(
    "03.heads",
    "heads(rank, size, H, G)",
    [Heads(2, 4, 4), Heads(1, 4, 2), Heads(2, 6, 3), Heads(3, 4, 2), Heads(4, 8, 2), Heads(8, 32, 8), Heads(12, 32, 8)],
    _heads,
    _draw_heads,
    solved_by=("parlab.sequence.heads.head_shares",),
)


@dataclass(frozen=True)
class Packed:
    """`documents` in a sequence on `size` ranks, contiguous and causal."""

    size: int
    documents: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.size} ranks, documents={list(self.documents)}"


def _hops(trial: Trial, case: Packed) -> list[str]:
    calls = [(rank, case.size, list(case.documents)) for rank in range(case.size)]
    results = trial.called_each(calls)
    right = journeys(case.size, case.documents[-1] // case.size, causal=True, documents=case.documents)
    for (rank, *_), mine, wanted in zip(calls, results, right, strict=True):
        if not isinstance(mine, int | np.integer) or isinstance(mine, bool):
            raise Wrong(f"for rank {rank} it returned {brief(mine)}, expected a whole number")
        if mine != wanted:
            raise Wrong(
                f"for rank {rank} it returned {int(mine)}, expected {wanted} hops",
                "too many: nobody there looks at them" if mine > wanted else "too few: a later rank still needs them",
            )
    return [f"K/V make {sum(right)} of {case.size * (case.size - 1)} hops"]


def _draw_packed(random: np.random.Generator, size: int) -> Packed:
    S = size * int(random.integers(2, 9))
    edges = random.choice(np.arange(1, S), size=min(int(random.integers(0, 5)), S - 1), replace=False)
    return Packed(size, (0, *sorted(map(int, edges)), S))


HOPS = Exercise(
    "03.hops",
    "hops(rank, size, documents)",
    [
        Packed(2, (0, 4)),
        Packed(2, (0, 2, 4)),
        Packed(1, (0, 3, 5)),
        Packed(2, (0, 1, 4)),
        Packed(4, (0, 2, 8, 12)),
        Packed(4, (0, 6, 38, 64)),
        Packed(7, (0, 9, 30, 35)),
    ],
    _hops,
    _draw_packed,
    solved_by=("parlab.sequence.layouts.journeys",),
)


@dataclass(frozen=True)
class Boundaries:
    """The weight that crosses each boundary of a text of `S` words, for `size` ranks, drawn from `seed`."""

    size: int
    S: int
    shortest: int
    seed: int = 0
    crossing: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        crossing = np.random.default_rng([self.seed, self.size, self.S]).uniform(2, 6, self.S + 1).round(2)
        crossing[0] = crossing[-1] = 0
        object.__setattr__(self, "crossing", crossing)

    def __str__(self) -> str:
        return f"{self.size} ranks, {self.S} words, at least {self.shortest} in a chunk (seed {self.seed})"

    @property
    def least(self) -> float:
        """The least sum that cuts can have, by dynamic programming over their places."""
        best = np.where(np.arange(self.S + 1) == 0, 0.0, np.inf)
        for _ in range(self.size):
            reached = np.minimum.accumulate(best)  # of the ends up to each place
            best = np.full(self.S + 1, np.inf)
            best[self.shortest :] = reached[: self.S + 1 - self.shortest] + self.crossing[self.shortest :]
        return float(best[-1])


def _cuts(trial: Trial, case: Boundaries) -> list[str]:
    result = trial.called(case.crossing, case.size, case.shortest)
    found = _whole_numbers(result)
    if found is None or len(found) != case.size - 1:
        raise Wrong(f"returned {brief(result)}, expected {case.size - 1} places to cut, whole numbers")
    lengths = [stop - start for start, stop in pairwise([0, *found, case.S])]
    if min(lengths) < case.shortest:
        raise Wrong(f"cuts at {found} make chunks of {lengths} words: each needs at least {case.shortest}, in order")
    total, least = float(sum(case.crossing[found])) if found else 0.0, case.least
    even = [case.S * rank // case.size for rank in range(1, case.size)]
    equal = float(sum(case.crossing[even])) if even else 0.0
    if not total <= least + 1e-9:
        beaten = f"; equal chunks have {equal:.2f}" if total >= equal else ""
        raise Wrong(f"cuts at {found} are crossed by {total:.2f}, and {least:.2f} is possible{beaten}")
    return [f"crossed by {least:.2f}; equal chunks: {equal:.2f}"]


def _draw_boundaries(random: np.random.Generator, size: int) -> Boundaries:
    S = size * int(random.integers(3, 8))
    return Boundaries(size, S, int(random.integers(1, S // size)))


CUTS = Exercise(
    "03.cuts",
    "cuts(crossing, ranks, shortest)",
    [
        Boundaries(2, 8, 2),
        Boundaries(1, 5, 1),
        Boundaries(2, 12, 5),
        Boundaries(3, 12, 2),
        Boundaries(4, 60, 8),
        Boundaries(7, 70, 5),
    ],
    _cuts,
    _draw_boundaries,
)

EXERCISES = (HEADS, HOPS, CUTS)
