"""Valid schedules, spoilt at random."""

from collections.abc import Callable

import numpy as np
import pytest

from parlab.pipeline import (
    Action,
    Schedule,
    gpipe,
    interleaved_one_f_one_b,
    looped_bfs,
    one_f_one_b,
    zb_h1,
    zb_h2,
)

VALID = [
    gpipe(2, 3),
    one_f_one_b(3, 4),
    looped_bfs(2, 3, 2),
    interleaved_one_f_one_b(2, 4, 2),
    zb_h1(3, 4),
    zb_h2(2, 4),
]


@pytest.fixture(scope="session")
def corrupted() -> Callable[[int], Schedule]:
    return spoil


def spoil(seed: int) -> Schedule:
    """One of the valid schedules with two actions of a rank swapped, or one dropped, repeated or renumbered."""
    rng = np.random.default_rng(seed)
    rows = [list(row) for row in VALID[rng.integers(len(VALID))].actions]
    row = rows[rng.integers(len(rows))]
    at, other = (int(i) for i in rng.choice(len(row), 2, replace=False))
    kind, stage, microbatch = row[at]
    match rng.choice(["swap", "swap neighbours", "drop", "repeat", "renumber"]):
        case "swap":
            row[at], row[other] = row[other], row[at]
        case "swap neighbours":
            at = min(at, len(row) - 2)
            row[at], row[at + 1] = row[at + 1], row[at]
        case "drop":
            row.pop(at)
        case "repeat":
            row.insert(other, row[at])
        case "renumber":
            row[at] = Action(kind, stage, (microbatch + int(rng.integers(1, 3))) % 5)
    return Schedule(rows)
