"""The helpers of lesson 10: rows that experts answer, and the way back to their tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parlab.nn.permute import sum_of_slots
from parlab.world import Comm


def answered(number: Any, rows: Any, expert: Callable[[Any, Any], Any]) -> Any:
    """The answers to `rows` [R, E], each by the expert whose number it has; `expert(e, rows)` answers several at once.

    >>> answered(np.array([1, 0]), np.array([[5.0], [7.0]]), lambda e, rows: rows + 10 * e).ravel().tolist()
    [15.0, 7.0]
    """
    answers = np.empty_like(rows)
    for e in np.unique(number):
        answers[number == e] = expert(e, rows[number == e])
    return answers


def summed(answers: Any, order: Any, gates: Any) -> Any:
    """Σ gate · answer of each token, [T, E], from the answers [T·k, E] of pairs that `order` has sorted by expert.

    >>> summed(np.array([[1.0], [2.0]]), np.array([1, 0]), np.array([[0.25, 0.75]])).tolist()  # pair 0 has 2.0
    [[1.25]]
    """
    pairs = np.empty_like(answers)
    pairs[order] = answers  # the answer of row i belongs to pair order[i]
    return sum_of_slots(pairs.reshape(*gates.shape, -1), gates)


def expert_of_each(comm: Comm, table: Any) -> Any:
    """The expert of each row that this rank receives: by source, then by expert.

    `table` counts rows: [from rank, to rank, which of its experts].
    """
    own = comm.rank * table.shape[2] + np.arange(table.shape[2])
    return np.concatenate([np.repeat(own, of_source) for of_source in table[:, comm.rank]])
