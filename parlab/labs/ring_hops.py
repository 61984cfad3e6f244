"""The second exercise of notebook 02: the ring itself, whose hops travel while the ranks work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.counts import bytes_sent, makespan, messages, ranks_in_words
from parlab.labs.difference import brief, likely
from parlab.labs.exercise import Exercise
from parlab.labs.rank_programs import check_results, check_rightwards
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong, explains
from parlab.nn.attention import attend_tile, merge
from parlab.world import Cluster, Comm, Run, per_rank

LINK = Cluster.uniform(latency=1e-6, bandwidth=1e9)
WORK = 10e-6  # seconds for the K/V of one rank: more than any of these hops takes
D = 3
TOLERANCE = 1e-12
Part = tuple[Any, Any]  # out [n, D] and lse [n]
Seen = list[tuple[Any, int | None]]  # of each call of attend_to: the source that was said, and whose K/V they were


def posted_ring(comm: Comm, kv: Any, attend_to: Callable[[int, Any], Part], merge: Callable[..., Part]) -> Part:
    """Ring attention on one rank, with the parts of others: the exercise 02.ring.

    Args:
        comm: the ranks.
        kv: this rank's keys and values, which go around to the right.
        attend_to: `attend_to(source, kv)` is the (out, lse) of this rank's queries over the K/V of rank `source`.
        merge: `merge(out_a, lse_a, out_b, lse_b)` is the (out, lse) over the keys of both.

    Returns:
        (out, lse) over the K/V of all ranks. The next K/V travel while `attend_to` works: P − 1 hops.

    >>> from parlab import run
    >>> def sums(comm):
    ...     own = np.array([comm.rank])
    ...     return posted_ring(comm, own, lambda source, kv: (source, int(kv[0])), lambda a, b, c, d: (a + c, b + d))
    >>> run(sums, 3).results
    [(3, 3), (3, 3), (3, 3)]
    """
    found: Any = None
    for hop in range(comm.size):
        last = hop == comm.size - 1
        requests = () if last else (comm.isend(kv, comm.right), comm.irecv(comm.left, kv))
        part = attend_to((comm.rank - hop) % comm.size, kv)
        found = part if found is None else merge(*found, *part)
        for request in requests:
            kv = request.wait()  # the last one is the arriving one
    return found


@dataclass(frozen=True)
class HopCase:
    """`size` ranks with `length` tokens each; values are drawn from `seed`."""

    size: int
    length: int
    seed: int = 0

    def __str__(self) -> str:
        return f"{ranks_in_words(self.size)}, {self.length} token{'s' * (self.length > 1)} on each"

    def drawn(self) -> tuple[Any, list[tuple[Any, Any]]]:
        """The queries [P, n, D] and the K/V of each rank, twice [n, D]."""
        random = np.random.default_rng([self.seed, self.size, self.length])
        q, k, v = random.standard_normal((3, self.size, self.length, D))
        return q, list(zip(k, v, strict=True))


def _attended(q: Any, kv: Any) -> Part:
    """(out [n, D], lse [n]) of these queries over these keys."""
    out, lse = attend_tile(*(x[None, None] for x in (q, *kv)))
    return out[0, 0], lse[0, 0]


def merge_two(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> Part:
    """`merge` with the names of lesson 02: an error about an argument names one that the learner knows."""
    return merge(out_a, lse_a, out_b, lse_b)


def _try_ring(trial: Trial, case: HopCase) -> list[str]:
    (q, kvs), P = case.drawn(), case.size
    seen: list[Seen] = [[] for _ in range(P)]

    def program(comm: Comm, q: Any, own: Any) -> Any:
        def attend_to(source: Any, kv: Any) -> Part:
            if not isinstance(kv, tuple | list) or [np.shape(x) for x in kv] != [q.shape] * 2:
                raise TypeError(f"attend_to(source, kv): kv is {brief(kv)}, not the K/V of a rank")
            same = (rank for rank, one in enumerate(kvs) if all(map(np.array_equal, kv, one)))
            seen[comm.rank].append((source, next(same, None)))
            with comm.compute("attend", seconds=WORK):
                return _attended(q, kv)

        return trial.answer(comm, own, attend_to, merge_two)

    with ExitStack() as stack:
        for said, cause in REQUESTS.items():
            stack.enter_context(explains(said, cause))
        done = trial.ran(program, P, per_rank(list(q)), per_rank(kvs), cluster=LINK)
    check_rightwards(done, "wrong direction: send to comm.right, receive from comm.left")
    _check_calls(seen, max(messages(done).numbers))
    whole = [np.concatenate(parts) for parts in zip(*kvs, strict=True)]
    parts = [[_attended(one, kv) for kv in kvs] for one in q]
    expected = [_attended(one, whole) for one in q]
    check_results(done, q, expected, (), ("isend", "irecv"), _mistakes(parts), TOLERANCE)
    nbytes = sum(x.nbytes for x in kvs[0])
    lines = [messages(done).check("P − 1", P - 1, _too_many(done, nbytes), exact=True)]
    bytes_sent(done).check(
        "(P − 1) · K/V", (P - 1) * nbytes, "a hop passes on the K/V of one rank, those that came last"
    )
    return [*lines, makespan(done).check("P works", P * round(WORK * 10**12), _nothing_overlaps(done))]


REQUESTS = {  # by what an error says: what is behind it
    "without waiting for isend": "keep what isend returns, and wait() for it after attend_to",
    "without waiting for irecv": "in the last round nothing is left to come: post no hop there; in the others wait() "
    "for both",
    "(Request)": "isend and irecv return a request; the K/V are what wait() of irecv's returns",
    "kv is Request": "isend and irecv return a request; the K/V are what wait() of irecv's returns",
    "merge_two() missing": "a part is a pair (out, lse), and merge takes four arrays: merge(*found, *part)",
}
CALLS = "P − 1 hops bring a rank the K/V of P − 1 others, and it has its own: P calls"
Owners = list[Any]  # of the calls of one rank: whose K/V came
WRONG_OWNERS: dict[str, Callable[[Owners, list[int]], bool]] = {  # by what came, and what should
    "what came is never taken: kv = ...wait() of irecv's request": lambda had, right: set(had) == {right[0]},
    "each hop sends the rank's own K/V again: pass on those that came": (
        lambda had, right: had == [right[0], *right[1:2] * (len(right) - 1)]
    ),
    "off by one at the start: the first hop is over before the first call, which is for the rank's own K/V": (
        lambda had, right: had == [*right[1:], right[0]]
    ),
    f"the rank's own K/V are not attended: {CALLS}": lambda had, right: had == right[1:],
    f"the last K/V that came are not attended: {CALLS}": lambda had, right: had == right[:-1],
    "one call too many: after P − 1 hops a rank has seen all, and then its own come home": (
        lambda had, right: had == [*right, right[0]]
    ),
}
WRONG_SOURCES: dict[str, Callable[[int, int, int], Any]] = {  # the sources, by the rank, the hop and P
    "off by one: the first K/V, before any hop, are the rank's own": (
        lambda rank, hop, P: {(rank - hop - 1) % P, (rank - hop + 1) % P}
    ),
    "ranks are numbered around the ring: after 0 comes P − 1, so `% comm.size`": lambda rank, hop, P: {rank - hop},
    "wrong direction: K/V that came h hops to the right started h ranks to the left": (
        lambda rank, hop, P: {(rank + hop) % P, rank + hop}
    ),
    "source is the rank that K/V started from, not the rank that works": lambda rank, hop, P: {rank},
    "comm.left hands them all over; source is the rank that they started from": lambda rank, hop, P: {(rank - 1) % P},
}


def _check_calls(seen: list[Seen], hops: int) -> None:
    """Raise `Wrong` unless attend_to was told, on each rank, whose K/V it got, and got those of each rank once.

    `hops` are the most messages that a rank sent.
    """
    P = len(seen)
    owners = [[owner for _, owner in calls] for calls in seen]
    if any(None in of_rank for of_rank in owners):
        return  # changed on their way, or by the answer: the results say it
    right = [[(rank - hop) % P for hop in range(P)] for rank in range(P)]
    said = [(source, rank, hop) for rank, calls in enumerate(seen) for hop, (source, _) in enumerate(calls)]
    causes = [
        (f"too few hops, {hops}: {CALLS}", hops < P - 1),
        *((cause, P > 1 and owners != right and all(map(same, owners, right))) for cause, same in WRONG_OWNERS.items()),
        *(
            (cause, owners == right and all(source in known(rank, hop, P) for source, rank, hop in said))
            for cause, known in WRONG_SOURCES.items()
        ),
    ]
    for rank, calls in enumerate(seen):
        for number, (source, owner) in enumerate(calls):
            if source != owner:
                raise Wrong(
                    f"rank {rank}, call {number + 1} of attend_to: source is {_shown(source)}, but these are the K/V "
                    f"of rank {owner}",
                    *likely(causes),
                )
        if sorted(owners[rank]) != list(range(P)):  # type: ignore[type-var]
            raise Wrong(
                f"rank {rank} attends to the K/V of {_listed(owners[rank])}, should be of {_listed(right[rank])}",
                *likely(causes),
            )


def _shown(source: Any) -> str:
    return f"{source}" if isinstance(source, int | np.integer) else brief(source)


def _listed(ranks: list[Any]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}" if ranks else "no rank"


def _mistakes(parts: list[list[Part]]) -> dict[str, list[Part]]:
    """The results of each rank by well-known mistakes; `parts` [rank][source]: over the K/V of each rank."""
    P = len(parts)
    return {
        "this is the last part alone: merge each with what was there before": [
            of_rank[(rank + 1) % P] for rank, of_rank in enumerate(parts)
        ],
        "this is the part of the rank's own K/V alone: what merge returns is not kept": [
            of_rank[rank] for rank, of_rank in enumerate(parts)
        ],
        "the parts are added, not merged": [
            (sum(out for out, _ in of_rank), sum(lse for _, lse in of_rank)) for of_rank in parts
        ],
    }


def _too_many(done: Run, nbytes: int) -> str:
    P, most = done.timeline.size, max(messages(done).numbers)
    if most == 2 * (P - 1) and done.timeline.bytes_sent(0) == (P - 1) * nbytes:
        return "keys and values travel in two messages: send the tuple kv in one"
    if most == P:
        return "the last message is one too many: after P − 1 hops a rank has had the K/V of all ranks"
    return "each hop is one message to the right"


def _nothing_overlaps(done: Run) -> str:
    """Why a ring whose results and messages are right takes longer than its works."""
    first = min(done.timeline.computes, key=lambda span: (span.start, span.rank))
    hop = min((t for t in done.timeline.transfers if t.src == first.rank), key=lambda t: t.start, default=None)
    if hop is not None and hop.start >= first.end:
        return "a hop starts after the work, so nothing overlaps: post isend and irecv before attend_to"
    return "in some hop a rank waits before it works: post both, then attend_to, then wait() for both"


def _draw(random: np.random.Generator, size: int) -> HopCase:
    return HopCase(size, int(random.integers(1, 21)))


RING = Exercise(
    "02.ring",
    "ring(comm, kv, attend_to, merge)",
    [HopCase(size, length) for size in (2, 1, *range(3, 9)) for length in (1, 6)],
    _try_ring,
    _draw,
    on_ranks=True,
    solved_by=("parlab.labs.posted_ring", "parlab.sequence.travel.travel"),
)

EXERCISES = (RING,)
