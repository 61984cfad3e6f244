"""The exercises of notebook 01, collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import chain
from typing import Any

import numpy as np

from parlab.labs.counts import bytes_sent, listed, messages
from parlab.labs.difference import difference
from parlab.labs.rank_programs import UP_TO_8, Case, check_results, on_arrays, some_shape
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong, explains
from parlab.world import Comm, Run, per_rank

VIEWS = "`x` is read-only, and the pieces of np.split are parts of it: write `a = a + b`, not `a += b`, or copy first"


def _with_x_read_only(answer: Callable[..., Any]) -> Callable[..., Any]:
    """The answer, where a rank cannot write into its x, as in the lesson, whose cells share one x among all ranks.

    It lies in bytes, which nothing can make writeable again.
    """

    def program(comm: Comm, x: np.ndarray) -> Any:
        return answer(comm, np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape))

    return program


def _divisible_shape(random: np.random.Generator, size: int, longest: int) -> tuple[int, ...]:
    first, *more = some_shape(random, size, longest)
    return (size * first, *more)


def _try_reduce_scatter(trial: Trial, case: Case) -> list[str]:
    x, P = case.inputs(), case.size
    with explains("read-only", VIEWS), explains("WRITEABLE", VIEWS):
        done = trial.ran(_with_x_read_only(trial.answer), P, per_rank(x))
    pieces = [[np.split(one, P)[rank] for one in x] for rank in range(P)]
    sums = [sum(of_rank) for of_rank in pieces]
    flat = "the numbers are right, but only one axis is left: cut x with np.split(x, P)"
    mistakes = {flat: [np.ravel(one) for one in sums]}
    if P > 1 and set(messages(done).numbers) == {P - 1}:
        nothing = "this is the rank's own contribution; nothing was added to it"
        mistakes[f"{nothing}: did it leave before the others' numbers came, or was what came not stored?"] = [
            of_rank[rank] for rank, of_rank in enumerate(pieces)
        ]
        own = "a rank sends pieces of its own x each time: send the sum so far, what came with your own piece added"
        by_turn = chain.from_iterable(_own_pieces_sent(pieces, side) for side in (1, -1) if _all_sent_to(done, side))
        sent = [results for results in by_turn if not any(map(difference, done.results, results))]
        mistakes |= {own: sent[0]} if sent else {}
        replaced = "what came has replaced the rank's own numbers: add the two"
        mistakes[replaced] = [pieces[rank][(rank + 1) % P] for rank in range(P)]  # it fails with 2 ranks: no other side
    check_results(done, x, sums, pieces, mistakes=mistakes)
    counted = [
        bytes_sent(done).check(
            "n(P − 1)/P",
            case.nbytes * (P - 1) // P,
            "a rank sends more than one piece in a step, or makes one step too many",
        ),
        messages(done).check("P − 1", P - 1, "a rank sends a piece in several messages"),
    ]
    _check_ring(done)
    return counted


def _own_pieces_sent(pieces: list[list[np.ndarray]], side: int) -> Iterator[list[np.ndarray]]:
    """Each rank's result if no sum travels: another piece in each step, always its own, always the neighbour's, or one
    whose sum stays behind. pieces[p][r] is rank r's piece p; ranks send to the right (side 1) or to the left (-1).
    """
    P = len(pieces)
    came = [[pieces[p][(rank - side) % P] for p in range(P)] for rank in range(P)]  # [rank][piece]
    own = [pieces[rank][rank] for rank in range(P)]
    yield [own[r] + sum(piece for p, piece in enumerate(came[r]) if p != (r - side) % P) for r in range(P)]
    yield [own[r] + (P - 1) * came[r][(r - side) % P] for r in range(P)]
    yield [own[r] + (P - 1) * came[r][r] for r in range(P)]
    yield [own[r] + came[r][r] for r in range(P)]


def _all_sent_to(done: Run, side: int) -> bool:
    """Whether each message went to the right neighbour (side 1), or to the left one (-1)."""
    return all(t.dst == (t.src + side) % done.timeline.size for t in done.timeline.transfers)


def _check_ring(done: Run) -> None:
    """Raise `Wrong` unless all ranks send to the right, or all to the left."""
    P = done.timeline.size
    sent_to = [sorted({t.dst for t in done.timeline.transfers if t.src == rank}) for rank in range(P)]
    if any(all(to == [(rank + step) % P] for rank, to in enumerate(sent_to)) for step in (1, -1)) or P == 1:
        return
    astray = next((rank for rank, to in enumerate(sent_to) if to not in ([(rank + 1) % P], [(rank - 1) % P])), 0)
    cause = "in the ring a rank talks to its two neighbours only, and a piece visits all ranks"
    if all(len(to) == P - 1 for to in sent_to):
        cause = "a piece of each rank goes straight to its owner; in the ring it walks from neighbour to neighbour"
    first, *others = sent_to[astray]
    to = f"ranks {listed(sent_to[astray])}" if others else f"rank {first}"
    raise Wrong(
        "the results and the bytes are right, but this is no ring:",
        f"rank {astray} sends to {to}, should be to one neighbour, the same side for all ranks",
        f"likely cause: {cause}",
    )


REDUCE_SCATTER = on_arrays(
    "01.reduce_scatter",
    "reduce_scatter(comm, x)",
    _try_reduce_scatter,
    _divisible_shape,
    (2, 3, 1, *range(4, 9)),  # three before one: a sum that is right on two ranks by luck shows there what it lacks
)


def _walked(x: list[np.ndarray], roll: int = -1, ahead: int = 1, first: bool = True) -> list[np.ndarray]:
    """Each rank's result of a circulant that rolls its pieces, sends or adds in another way."""
    P = len(x)
    windows = [np.roll(np.stack(np.split(one, P)), roll * rank, axis=0) for rank, one in enumerate(x)]
    while (width := len(windows[0])) > 1:
        half = -(-width // 2)
        came = [windows[(rank - ahead * half) % P][half:] for rank in range(P)]
        windows = [window[:half].copy() for window in windows]
        for window, more in zip(windows, came, strict=True):
            window[slice(width - half) if first else slice(half - len(more), half)] += more
    return [window[0] for window in windows]


def _try_circulant(trial: Trial, case: Case) -> list[str]:
    x, P = case.inputs(), case.size
    rounded = explains("broadcast", "of 3 pieces a rank keeps 2: it keeps the larger half")
    with (
        explains("read-only", VIEWS),
        explains("WRITEABLE", VIEWS),
        rounded if P & (P - 1) else nullcontext(),  # of a power of two no half is rounded
    ):
        done = trial.ran(_with_x_read_only(trial.answer), P, per_rank(x))
    pieces = [[np.split(one, P)[rank] for one in x] for rank in range(P)]
    mistakes = {
        "pieces are numbered from 0 on every rank: number them from the rank's own on": _walked(x, roll=0),
        "`np.roll` by the rank moves the own piece away from the front: roll by minus the rank": _walked(x, roll=1),
        "they are sent back: the rank h *ahead* is the one for which they are the first": _walked(x, ahead=-1),
        "what comes is added to the last pieces: for the rank h ahead they are the first": _walked(x, first=False),
    }
    mistakes = {  # two of them may give the same on one rank
        cause: results for cause, results in mistakes.items() if not any(map(difference, done.results, results))
    }
    check_results(done, x, [sum(of_rank) for of_rank in pieces], pieces, mistakes=mistakes)
    return [
        messages(done).check(
            "⌈log₂P⌉",
            (P - 1).bit_length(),
            "a rank keeps half of its pieces in a step, and sends all others in one message",
        ),
        bytes_sent(done).check(
            "n(P − 1)/P", case.nbytes * (P - 1) // P, "a rank sends pieces that it keeps, or sends some piece twice"
        ),
    ]


CIRCULANT = on_arrays("01.circulant", "circulant(comm, x)", _try_circulant, _divisible_shape, (*UP_TO_8, 10, 13))


EXERCISES = (REDUCE_SCATTER, CIRCULANT)
