"""The exercises of notebook 00, ranks and messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from parlab.labs.blame import TO_BLAME
from parlab.labs.counts import Count, makespan, messages, steps
from parlab.labs.rank_programs import Case, check_results, check_rightwards, on_arrays, some_shape
from parlab.labs.trial import Trial
from parlab.labs.wrong import NotWritten, Wrong
from parlab.world import Cluster, Comm, Run, per_rank


def _try_exchange(trial: Trial, case: Case) -> list[str]:
    x, P = case.inputs(), case.size
    done = trial.ran(trial.answer, P, per_rank(x))
    check_results(done, x, [(x[rank - 1], x[(rank + 1) % P]) for rank in range(P)])
    return [
        messages(done).check("2", 2, "ranks pass on arrays that the next rank does not need"),
        steps(done).check(
            "2",
            2,
            "messages follow one another that could travel at the same time; post both sends and both receives "
            "before you wait, or use sendrecv",
        ),
    ]


EXCHANGE = on_arrays("00.exchange", "exchange(comm, x)", _try_exchange, some_shape, range(2, 9))


LINK = Cluster.uniform(latency=1e-6, bandwidth=1e9)
WORK = 10e-6  # seconds on one piece: more than any piece of these cases travels


def _try_overlap(trial: Trial, case: Case) -> list[str]:
    x, P = case.inputs(), case.size
    factor = int(
        np.random.default_rng([case.seed, P]).integers(2, 50)
    )  # drawn, so that nobody can guess what `work` does

    def worked(piece: Any) -> Any:
        return piece * (piece + piece.dtype.type(factor))

    def work(comm: Comm, piece: Any) -> Any:
        with comm.compute(f"work {factor}", seconds=WORK):
            return worked(piece)

    try:
        done = trial.ran(trial.answer, P, per_rank(x), work, cluster=LINK)
    except NotWritten:
        raise
    except Wrong as wrong:
        raise _about_requests(wrong) from None
    ranks = [span.rank for span in done.timeline.computes if span.name == f"work {factor}"]
    works = Count("works of a rank", [ranks.count(rank) for rank in range(P)])
    cause = "work(comm, piece) is not called exactly once with each piece"
    if len(ranks) == P * (P - 1) == P * ranks.count(0):
        cause = "P − 1 messages bring a rank P − 1 pieces, and it has its own: one of them is never worked on"
    line = works.check("P", P, cause, exact=True, early=True)
    terms = [worked(piece) for piece in x]
    again = [terms[rank] + (P - 1) * terms[rank - 1] for rank in range(P)]
    twice = [sum(terms) + terms[rank] - terms[(rank + 1) % P] for rank in range(P)]
    mistakes = {
        "each round sends x again; pass on the piece that arrived in the round before": again,
        "a rank works on its own piece twice, and never on the piece that comes last: the one that wait() of irecv's "
        "returns": twice,
    }
    check_results(done, x, [sum(terms)] * P, [terms] * P, tools=("isend", "irecv"), mistakes=mistakes)
    check_rightwards(done, "pieces travel in a ring; pass on to comm.right what comes from comm.left")
    return [
        line,
        messages(done).check("P − 1", P - 1, "the last piece is passed on, too"),
        makespan(done).check(
            "P works",
            P * round(WORK * 10**12),
            _stands_still(done),
        ),
    ]


def _about_requests(wrong: Wrong) -> Wrong:
    """`wrong` with what helps in this exercise, where a request is no array; of a deadlock the cause alone."""
    said = "\n".join(wrong.args)
    if "'Request'" in said:
        return Wrong(
            said, "likely cause: isend and irecv return a request; the piece is what wait() of irecv's returns"
        )
    said, deadlock, _ = said.partition(" first, or use sendrecv")
    if not deadlock:
        return wrong
    return Wrong(said.rpartition("; ")[0])


def _stands_still(done: Run) -> str:
    """Why a run takes longer than its works: the first time at which a rank only waits."""
    first = min(done.timeline.waits, key=lambda wait: (wait.start, wait.rank), default=None)
    if first is None:
        return "a rank does something else, too, that takes time"
    late = _end_posted_late(done)
    if late:
        return late
    start, end = map(done.timeline.format, (first.start, first.end))
    return f"from {start} to {end} rank {first.rank} does not work: it stands still until a message has passed"


def _end_posted_late(done: Run) -> str:
    """Which end of the first message was posted long after the other; "" if both were posted at the same time."""
    shown = done.timeline
    message = min(shown.transfers, key=lambda t: (t.ready, t.dst))
    send, receive = shown.held_by_name(message.src)["sent"][0][0], shown.held_by_name(message.dst)["received"][0][0]
    if send == receive:
        return ""
    rank, end, posted = (message.dst, "receive", receive) if send < receive else (message.src, "send", send)
    return f"rank {rank} posted its {end} at {shown.format(posted)} only; both ends must be there"


OVERLAP = on_arrays(
    "00.overlap",
    "overlap(comm, x, work)",
    _try_overlap,
    some_shape,
    (2, 1, *range(3, 8)),
    solved_by=("parlab.labs.posted_ahead",),
)

EXERCISES = (EXCHANGE, OVERLAP, TO_BLAME)
