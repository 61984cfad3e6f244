"""The core exercise of notebook 03: attention cut by tokens and by heads, composed of an all-to-all and a ring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.counts import bytes_sent, ranks_in_words, right_and_wrong
from parlab.labs.difference import difference, likely
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong, explains, need_messages
from parlab.nn.dense_attention import dense_attention
from parlab.sequence import ring_attention, shard
from parlab.world import Comm, Run, WorldError, per_rank, run
from parlab.world.units import several

ROUNDING = 1e-9  # of the largest entry: merges in another order

GROUP_GUESSES = {  # the usual wrong guesses of lesson 03, and the reasoning that leads there
    "shards": (6, "every query must see every key, so all keys must come"),
    "PCIe": (1, "on PCIe the ring wins, so heads are better not shared"),
    "32 nodes": (8, "a node has 8 GPUs"),
    "one port": (122, "the same messages leave by the same port"),
}


@dataclass(frozen=True)
class UspCase:
    """`size` ranks with c tokens each, in groups of `ulysses`; H query heads read G K/V heads; drawn from `seed`."""

    size: int
    ulysses: int
    H: int
    G: int
    c: int = 2
    seed: int = 0

    def __str__(self) -> str:
        groups = f"ulysses={self.ulysses}, {several(self.H, 'query head')}, {several(self.G, 'K/V head')}"
        return f"{ranks_in_words(self.size)}, {groups}, {several(self.c, 'token')} on each"

    def inputs(self) -> list[np.ndarray]:
        """q, k and v, whole."""
        random = np.random.default_rng([self.seed, self.size, self.ulysses, self.H])
        return [random.standard_normal((1, heads, self.size * self.c, 2)) for heads in (self.H, self.G, self.G)]

    @property
    def nbytes(self) -> int:
        """The bytes that a rank sends: q, k, v and out to its group, and K/V around the ring."""
        token, U = 2 * 8, self.ulysses  # bytes of a head
        turned = (2 * self.H + 2 * self.G) * token * (U - 1) // U
        return self.c * (turned + (self.size // U - 1) * 2 * self.G * token)


def _turn(
    comm: Comm, given: Sequence[Any], group: int, ring: int, causal: bool = True, cut: int = 1, back: bool = True
) -> Any:
    """USP with any groups: the ranks with the same `group` cut axis `cut`, those with the same `ring` form a ring."""
    groups: Any = comm.split(group)
    rings: Any = comm.split(ring)
    q, k, v = (groups.all_to_all(x, cut, 3 - cut) for x in given)
    out = ring_attention(rings, q, k, v, causal=causal)[0]
    return groups.all_to_all(out, 3 - cut, cut) if back else out


USP_MISTAKES: dict[str, Callable[[int, int, int], dict[str, Any]]] = {  # of rank, U and P/U: what `_turn` is given
    "the groups are exchanged: neighbours share the heads, and the ring goes from group to group": (
        lambda rank, U, R: {"group": rank % R, "ring": rank // R}
    ),
    "the mask is missing: the ring needs causal=True": (
        lambda rank, U, R: {"group": rank // U, "ring": rank % U, "causal": False}
    ),
    "each rank attends the tokens of its group alone: the K/V of the other groups come around the ring": (
        lambda rank, U, R: {"group": rank // U, "ring": rank}
    ),
    "the ring has all ranks: one of each group is enough, for they have the same heads": (
        lambda rank, U, R: {"group": rank // U, "ring": 0}
    ),
    "these are some heads of all tokens of the group: the outputs must turn back, to all heads of the rank's own": (
        lambda rank, U, R: {"group": rank // U, "ring": rank % U, "back": False}
    ),
    "the axes are exchanged: cut the heads, axis 1, and join the tokens, axis 2": (
        lambda rank, U, R: {"group": rank // U, "ring": rank % U, "cut": 2}
    ),
}


def _try_usp(trial: Trial, case: UspCase) -> list[str]:
    whole = case.inputs()
    expected = shard(dense_attention(*whole, causal=True)[0], case.size)
    own = [per_rank(shard(x, case.size)) for x in whole]

    def program(comm: Comm, q: Any, k: Any, v: Any) -> Any:
        return trial.answer(comm, q, k, v, case.ulysses)

    among = "the all-to-all is among other ranks than the U neighbours of a group"
    both = "ring_attention returns two arrays, out and its log-sum-exp: take the first"
    with explains("split_axis=1:", among), explains("x is a tuple", both):
        done = trial.ran(program, case.size, *own)
    largest = max(float(np.abs(x).max()) for x in expected)

    def differs(found: Any, wanted: Any) -> str:
        return difference(found, wanted, rtol=0.0, atol=ROUNDING * largest)

    said = [differs(found, wanted) for found, wanted in zip(done.results, expected, strict=True)]
    if wrong := [rank for rank, text in enumerate(said) if text]:
        rank = wrong[0]
        runs = ((cause, _mistaken(mistake, case, own)) for cause, mistake in USP_MISTAKES.items())
        causes = ((cause, not any(map(differs, done.results, made.results))) for cause, made in runs if made)
        right = [rank for rank, text in enumerate(said) if not text]
        raise Wrong(f"rank {rank} {said[rank]}", *right_and_wrong(right, wrong), *likely(causes))
    need_messages(done)
    formula = "c(Q + KV + OUT)(U − 1)/U + (P/U − 1)·c·KV"
    cause = (
        "each array is turned once among U neighbours, and K/V of a rank's own heads alone go around the ring of P/U"
    )
    return [bytes_sent(done).check(formula, case.nbytes, cause, exact=True)]


def _mistaken(mistake: Callable[[int, int, int], dict[str, Any]], case: UspCase, own: Sequence[Any]) -> Run | None:
    """The run of a program with a mistake; none where it cannot run."""

    def program(comm: Comm, *given: Any) -> Any:
        return _turn(comm, given, **mistake(comm.rank, case.ulysses, case.size // case.ulysses))

    try:
        return run(program, case.size, *own)
    except (ValueError, WorldError):
        return None


def _draw_usp(random: np.random.Generator, size: int) -> UspCase:
    U = int(random.choice([number for number in range(1, size + 1) if size % number == 0]))
    G = U * int(random.integers(1, 3))
    return UspCase(size, U, G * int(random.integers(1, 3)), G, int(random.integers(1, 4)), int(random.integers(100)))


USP = Exercise(
    "03.usp",
    "usp(comm, q, k, v, ulysses)",
    [
        UspCase(2, 1, 2, 1),
        UspCase(2, 2, 2, 2),
        UspCase(1, 1, 2, 2),
        UspCase(4, 2, 4, 2),
        UspCase(4, 2, 4, 4),
        UspCase(4, 2, 2, 2, 3),
        UspCase(4, 4, 4, 4),
        UspCase(6, 2, 4, 2),
        UspCase(6, 3, 6, 3),
        UspCase(8, 4, 8, 4, 1),
        UspCase(8, 2, 4, 4, 3),
        UspCase(9, 3, 3, 3, 1),
        UspCase(12, 4, 4, 4, 1),
    ],
    _try_usp,
    _draw_usp,
    on_ranks=True,
    solved_by=("parlab.sequence.usp_attention", "parlab.sequence.ulysses_attention"),
)

EXERCISES = (USP,)
