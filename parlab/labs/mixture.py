"""The exercise 10.mixture: tokens travel to their experts, and the answers come back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.counts import ITEMSIZE, bytes_sent, messages, ranks_in_words
from parlab.labs.difference import difference, likely, possible
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong, need_messages
from parlab.world import Comm

TOLERANCE = 1e-12
EXPERT_GUESSES = {  # the usual wrong guesses of lesson 10, and the reasoning that leads there
    "experts travel": (7.0, "each GPU sends its four experts once"),
    "units": (10.0, "40 rows on four ranks"),
    "64 GPUs": (64.0, "64 times the GPUs"),
    "copies": (7.0, "8 experts, of which one in 8 is at home"),
}


@dataclass(frozen=True)
class MixtureCase:
    """Tokens on each of `size` ranks, of which each goes to k of the experts."""

    size: int
    num_experts: int
    k: int
    tokens: int
    seed: int = 0

    def __str__(self) -> str:
        experts = "1 expert" if self.num_experts == 1 else f"{self.num_experts} experts"
        tokens = "1 token" if self.tokens == 1 else f"{self.tokens} tokens"
        return f"{ranks_in_words(self.size)}, {experts}, k = {self.k}, {tokens} a rank"

    @property
    def own(self) -> int:
        """Experts of a rank."""
        return self.num_experts // self.size

    def drawn(self) -> tuple[Any, Any, Any, Any]:
        """x [P, T, E], the experts chosen and the gates [P, T, k], and the weights of the experts [N, E, E]."""
        P, N, k, T = self.size, self.num_experts, self.k, self.tokens
        draw = np.random.default_rng([self.seed, P, N, k, T])
        x = draw.normal(size=(P, T, HIDDEN))
        liked = draw.normal(size=N)  # some experts are chosen more often
        chosen = np.argsort(-(liked + draw.normal(size=(P, T, N))), axis=-1)[..., :k]
        gates = draw.uniform(0.2, 1.0, size=(P, T, k))  # their sum is not 1, so that they count with k = 1, too
        return x, chosen, gates, draw.normal(size=(N, HIDDEN, HIDDEN))


HIDDEN = 3
RAISED = {  # by what an error says: what is behind it
    "out of bounds for axis 0 with size": "order numbers pairs, and x has one row a token: the token of pair p is "
    "p // k, x[order // k]",
    "which has the experts": "an expert answers on its own rank: rows travel to it, and expert_of_each(comm, table) "
    "numbers those that came",
    "whole numbers are needed, how many rows": "table[comm.rank] and table[:, comm.rank] are [rank, which of its "
    "experts]: sum(axis=1) adds up over experts",
    "entered different collectives: rank 0 calls all_gather(int64": "np.bincount(..., minlength=num_experts) counts "
    "experts that nobody chose, too",
    "boolean index did not match": "other rows came than this rank's pairs; the expert of each row that came is "
    "expert_of_each(comm, table)",
}


def _try_mixture(trial: Trial, case: MixtureCase) -> list[str]:
    P, N = case.size, case.num_experts
    x, chosen, gates, weights = case.drawn()

    def program(comm: Comm) -> Any:
        def expert(number: Any, rows: Any) -> Any:
            if number not in range(comm.rank * case.own, (comm.rank + 1) * case.own):
                own = f"{comm.rank * case.own} to {(comm.rank + 1) * case.own - 1}"
                raise ValueError(f"expert({number}, rows) on rank {comm.rank}, which has the experts {own}")
            return np.tanh(np.asarray(rows) @ weights[number])

        given = x[comm.rank].copy(), chosen[comm.rank].copy(), gates[comm.rank].copy()
        return trial.answer(comm, *given, N, expert)

    ranks = chosen // case.own  # [P, T, k]
    try:
        done = trial.ran(program, P)
    except Wrong as wrong:
        wrong.args += tuple(likely(_causes_of_an_error(str(wrong), case, ranks)))
        raise
    for rank, found in enumerate(done.results):
        given = x[rank], chosen[rank], gates[rank], weights
        if said := difference(found, _mixed(*given), rtol=TOLERANCE, atol=TOLERANCE):
            mistakes = _mistakes(case, *given)
            same = ((cause, not difference(found, y, TOLERANCE, TOLERANCE)) for cause, y in mistakes.items())
            raise Wrong(f"rank {rank} {said}", *possible(same))
    need_messages(done)
    leaving = [int((ranks[rank] != rank).sum()) for rank in range(P)]
    coming = [int((ranks == rank).sum() - (ranks[rank] == rank).sum()) for rank in range(P)]
    allowed = [ITEMSIZE * (HIDDEN * (s + r) + (P - 1) * N) for s, r in zip(leaving, coming, strict=True)]
    sent = bytes_sent(done)
    worst = max(range(P), key=lambda rank: sent.numbers[rank] - allowed[rank])
    return [
        messages(done).check(
            "3(P − 1)", 3 * (P - 1), "counts, rows and answers travel once each, and nothing to oneself"
        ),
        type(sent)(f"bytes that rank {worst} sends", [sent.numbers[worst]]).check(
            "8E(S + R) + 8N(P − 1)",
            allowed[worst],
            "own rows, gates, or every pair's expert travel too: only rows of others' experts (S), answers (R) and N "
            "counts need to",
        ),
    ]


def _causes_of_an_error(said: str, case: MixtureCase, ranks: Any) -> Iterator[tuple[str, bool]]:
    """The causes of an error, each with whether its text says so; `ranks` [P, T, k] have the experts chosen."""
    yield from ((cause, part in said) for part, cause in RAISED.items())
    pairs = case.tokens * case.k
    come = {int((ranks == rank).sum()) for rank in range(case.size)} - {case.tokens, pairs}
    back = (f"adds up to {pairs}, and {rows} rows are given" in said for rows in come)
    there = (f"adds up to {rows}, and {pairs} rows are given" in said for rows in come)
    yield "on the way back sent and received change places", any(back)
    yield "on the way there table[comm.rank] is sent, and table[:, comm.rank] comes", any(there)


def _mixed(x: Any, chosen: Any, gates: Any, weights: Any) -> Any:
    """The sum over slots, [T, E], with the experts `chosen` [T, k]."""
    return (_answers(x, chosen, weights) * gates[..., None]).sum(axis=1)


def _answers(x: Any, chosen: Any, weights: Any) -> Any:
    """Of each pair of a token and an expert, [T, k, E]."""
    return np.tanh(np.einsum("te,tkef->tkf", x, weights[chosen]))


def _mistakes(case: MixtureCase, x: Any, chosen: Any, gates: Any, weights: Any) -> dict[str, Any]:
    """The results [T, E] that usual mistakes give on a rank, by cause."""
    order = np.argsort(chosen.reshape(-1), kind="stable")  # of the rank's pairs
    answers = _answers(x, chosen, weights).reshape(-1, HIDDEN)  # by pair
    weighed = answers * gates.reshape(-1, 1)
    last = np.zeros_like(x)
    last[order // case.k] += weighed[order]  # NumPy keeps the last of a token's rows
    by_rank = chosen.reshape(-1).copy()  # the experts that rows meet which are sorted by rank alone
    for rank in range(case.size):
        there = np.flatnonzero(by_rank // case.own == rank)
        by_rank[there] = np.sort(by_rank[there])

    def summed(by_pair: Any) -> Any:
        return (by_pair.reshape(*chosen.shape, HIDDEN) * gates[..., None]).sum(axis=1)

    return {
        "the gates are in it twice: on the way there and on the way back": summed(weighed),
        "the gates are missing": answers.reshape(*chosen.shape, HIDDEN).sum(axis=1),
        "rows are sorted by rank and not by expert: an expert reads its neighbour's rows": _mixed(
            x, by_rank.reshape(chosen.shape), gates, weights
        ),
        "the answers come back sorted by expert, and were not put back at their tokens": summed(answers[order]),
        "the answers are put back by answers[order]; the pair order[i] has answer i: slots[order] = answers": summed(
            answers[order][order]
        ),
        "y[tokens] += rows keeps the last of a token's rows alone; np.add.at adds them all": last,
    }


MIXTURE = Exercise(
    "10.mixture",
    "mixture(comm, x, chosen, gates, num_experts, expert)",
    [
        MixtureCase(*sizes)
        for sizes in (
            (2, 2, 1, 2),
            (2, 4, 2, 3),
            (1, 3, 2, 4),
            (3, 3, 1, 5),
            (3, 9, 4, 6),
            (4, 8, 2, 1),
            (4, 12, 1, 6),
            (5, 10, 3, 8),
            (8, 16, 4, 12),
        )
    ],
    _try_mixture,
    lambda random, size: MixtureCase(
        size, size * int(random.integers(1, 4)), int(random.integers(1, size)), int(random.integers(1, 20))
    ),
    on_ranks=True,
    solved_by=(
        "parlab.experts.mixed_rows",
        "parlab.experts.dispatch",
        "parlab.experts.combine",
        "parlab.experts.ExpertParallel",
    ),
)

EXERCISES = (MIXTURE,)
