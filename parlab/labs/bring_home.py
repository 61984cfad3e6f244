"""The exercise 02.bring_home: a gradient travels home with its K/V."""

from __future__ import annotations

import numpy as np

from parlab.labs.counts import bytes_sent, messages
from parlab.labs.rank_programs import Case, check_results, check_rightwards, on_arrays
from parlab.labs.trial import Trial
from parlab.world import per_rank


def _shares(random: np.random.Generator, size: int, longest: int) -> tuple[int, ...]:
    return size, int(random.integers(longest // 2, longest + 1))


def _try_bring_home(trial: Trial, case: Case) -> list[str]:
    x, P = case.inputs(), case.size
    done = trial.ran(trial.answer, P, per_rank(x))
    shares = [[one[rank] for one in x] for rank in range(P)]
    check_results(done, x, [sum(of_rank) for of_rank in shares], shares)
    check_rightwards(done, "a gradient travels with its K/V, which go around to comm.right")
    return [
        messages(done).check(
            "P",
            P if P > 1 else 0,
            "a gradient starts where its K/V start, at home; after P − 1 hops it is one rank short of home",
            exact=True,
        ),
        bytes_sent(done).check(
            "P · n", case.nbytes if P > 1 else 0, "a rank holds one gradient at a time, and sends that one alone"
        ),
    ]


BRING_HOME = on_arrays("02.bring_home", "bring_home(comm, x)", _try_bring_home, _shares)

EXERCISES = (BRING_HOME,)
