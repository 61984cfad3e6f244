"""A run to diagnose: eight ranks pass their pieces around a ring and work on each, and one of them stalls once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np

from parlab.arguments import amount, checked_rank, positive, whole
from parlab.world import Cluster, Comm, Run, per_rank, run

RANKS = 8
NBYTES = 2**20  # of a piece
WORK, MESSAGE, STALL = 8e-3, 2e-3, 6e-3  # seconds: of work on a piece; of its way; more work, where the rank stalls
Work = Callable[[Comm, Any], Any]
RANK_GUESSES = {  # the usual wrong guesses of lesson 00, and the reasoning that leads there
    "slow at work": (3, "all long rounds point at it, and its own stands alone"),
    "send": (1, "that is the message alone, and rank 1 is not there yet"),
    "4 kB": (2, "that is the bandwidth, which is twice as high"),
    "two stalls": (90, "each stall costs 6 ms"),
}


def in_turn(comm: Comm, x: Any, work: Work) -> Any:
    """The sum of `work(comm, piece)` over the pieces x of all ranks: a message, then work, and so on."""
    total, piece = work(comm, x), x
    for _ in range(comm.size - 1):
        piece = comm.sendrecv(piece, comm.right, comm.left)
        total = total + work(comm, piece)
    return total


def posted_ahead(comm: Comm, x: Any, work: Work) -> Any:
    """As `in_turn`, but the next piece travels while the rank works: the exercise 00.overlap."""
    total, piece = 0, x
    for _ in range(comm.size - 1):
        sent, arriving = comm.isend(piece, comm.right), comm.irecv(comm.left, like=piece)
        total = total + work(comm, piece)
        sent.wait()
        piece = arriving.wait()
    return total + work(comm, piece)


def patient(
    program: Callable[[Comm, Any, Work], Any] = in_turn,
    number: int = 0,
    stall: float = STALL,
    message: float = MESSAGE,
    also: Mapping[int, int] | None = None,
    always: bool = False,
) -> Run:
    """Run `program(comm, x, work)` on eight ranks, of which one stalls in one of its works, or in all.

    Work on a piece x takes 8 ms.

    Args:
        program: returns the sum of `work(comm, piece)` over the pieces of all ranks.
        number: the patient's number. Rank 5 of patient 0 stalls in its second work; each other number draws the rank
            that stalls, and in which of its first four works. Lesson 00 has number 18.
        stall: by how many seconds that work is longer.
        message: for how many seconds a piece travels.
        also: other ranks that stall for as long: {rank: in which of its eight works, from 1}. The patient's own rank,
            named here, stalls in this work instead.
        always: the patient's rank stalls in each of its works.

    Raises:
        ValueError: a program that cannot be called, a number or a stall below 0, a message that takes no time, or a
            rank or a work that is not there.
    """
    if not callable(program):
        raise ValueError(f"program={program!r:.60}: must be a function program(comm, x, work)")
    whole("number", number, 0)
    amount("stall", stall, least=0)
    positive("message", message, finite=True)
    others = {}
    for rank, late in (also or {}).items():
        others[checked_rank(rank, "also", RANKS)] = whole(f"also[{rank}]", late, 1) - 1
        if late > RANKS:
            raise ValueError(f"also={also!r:.60}: a rank has {RANKS} works, numbered from 1")
    draw = np.random.default_rng(number)
    culprit, late = (5, 1) if number == 0 else (int(draw.integers(RANKS)), int(draw.integers(4)))
    stalls = {culprit: late} | others
    works = [count() for _ in range(RANKS)]

    def work(comm: Comm, piece: Any) -> Any:
        late = next(works[comm.rank]) == stalls.get(comm.rank) or (always and comm.rank == culprit)
        with comm.compute("work", seconds=WORK + stall * late):
            return piece + 1

    pieces = [np.full(NBYTES // 4, rank + 1, dtype=np.float32) for rank in range(RANKS)]
    return run(program, RANKS, per_rank(pieces), work, cluster=Cluster.uniform(latency=message, bandwidth=math.inf))


def wait_log(done: Run) -> list[tuple[int, int, int, int]]:
    """The waits for a rank that had not come, by their start: each (rank, peer, start, came), in picoseconds.

    >>> wait_log(patient())[0]
    (6, 5, 18000000000, 24000000000)
    """
    waits = [(wait.rank, wait.peer, wait.start, wait.came) for wait in done.timeline.waits if wait.came > wait.start]
    return sorted(waits, key=lambda wait: wait[2])
