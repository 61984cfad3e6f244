"""The second exercise of notebook 02: the ring itself, whose hops travel while the ranks work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.counts import bytes_sent, makespan, messages, ranks_in_words, right_and_wrong
from parlab.labs.difference import brief, difference, likely
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import NotWritten, Wrong, need_messages
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

    try:
        done = trial.ran(program, P, per_rank(list(q)), per_rank(kvs), cluster=LINK)
    except NotWritten:
        raise
    except Wrong as wrong:
        raise _about_requests(wrong) from None
    _check_ways(done)
    _check_calls(seen, max(messages(done).numbers))
    whole = [np.concatenate(parts) for parts in zip(*kvs, strict=True)]
    _check_results(done, [_attended(one, whole) for one in q], [[_attended(one, kv) for kv in kvs] for one in q])
    nbytes = sum(x.nbytes for x in kvs[0])
    lines = [messages(done).check("P − 1", P - 1, _too_many(done, nbytes), exact=True)]
    bytes_sent(done).check(
        "(P − 1) · K/V", (P - 1) * nbytes, "a hop passes on the K/V of one rank, those that came last"
    )
    return [*lines, makespan(done).check("P works", P * round(WORK * 10**12), _nothing_overlaps(done))]


def _about_requests(wrong: Wrong) -> Wrong:
    said = "\n".join(wrong.args)
    if "without waiting for isend" in said:
        cause = "keep what isend returns, and wait() for it after attend_to"
    elif "without waiting for irecv" in said:
        cause = "in the last round nothing is left to come: post no hop there; in the others wait() for both"
    elif "Request" in said:
        cause = "isend and irecv return a request; the K/V are what wait() of irecv's returns"
    elif "merge_two() missing" in said:
        cause = "a part is a pair (out, lse), and merge takes four arrays: merge(*found, *part)"
    else:
        return wrong
    return Wrong(said, f"likely cause: {cause}")


def _check_ways(done: Run) -> None:
    """Raise `Wrong` unless every message goes to the rank on the right."""
    P = done.timeline.size
    for src, dst in sorted({(transfer.src, transfer.dst) for transfer in done.timeline.transfers}):
        if dst != (src + 1) % P:
            cause = "send to comm.right, receive from comm.left"
            if dst == (src - 1) % P:
                cause = f"wrong direction: {cause}"
            raise Wrong(
                f"rank {src} sends to rank {dst}, should be to its right, rank {(src + 1) % P}",
                f"likely cause: {cause}",
            )


def _check_calls(seen: list[Seen], hops: int) -> None:
    """Raise `Wrong` unless attend_to was told, on each rank, whose K/V it got, and got those of each rank once.

    `hops` are the most messages that a rank sent.
    """
    P = len(seen)
    owners = [[owner for _, owner in calls] for calls in seen]
    told = [[source for source, _ in calls] for calls in seen]
    if any(None in of_rank for of_rank in owners):
        return  # changed on their way, or by the answer: the results say it
    right = [[(rank - hop) % P for hop in range(P)] for rank in range(P)]
    short = P > 1 and hops < P - 1 and all(had == one[: hops + 1] for had, one in zip(owners, right, strict=True))
    causes = [
        (f"no hop was made, so a rank attends its own K/V alone: {CALLS}", short and hops == 0 and P > 2),
        (f"no hop was made: one too few, or none is posted at all: {CALLS}", short and hops == 0 and P == 2),
        (f"one hop too few: {CALLS}", short and hops == P - 2),
        (f"too few hops, {hops}: {CALLS}", short),
        *((cause, P > 1 and owners != right and all(map(same, owners, right))) for cause, same in WRONG_OWNERS),
        *((cause, told == _by(wrong, owners)) for cause, wrong in WRONG_SOURCES if owners == right),
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


def _by(source: Callable[[int, int, int], int], owners: list[list[Any]]) -> list[list[int]]:
    """The sources of each rank's calls, by a rule of the rank, the hop and P."""
    P = len(owners)
    return [[source(rank, hop, P) for hop in range(len(calls))] for rank, calls in enumerate(owners)]


CALLS = "P − 1 hops bring a rank the K/V of P − 1 others, and it has its own: P calls"
WRONG_OWNERS: list[tuple[str, Callable[[list[Any], list[int]], bool]]] = [  # of one rank: whose K/V came, and should
    ("what came is never taken: kv = ...wait() of irecv's request", lambda had, right: had == right[:1] * len(right)),
    (
        "each hop sends the rank's own K/V again: pass on those that came",
        lambda had, right: had == [right[0], *right[1:2] * (len(right) - 1)],
    ),
    (
        "off by one at the start: the first hop is over before the first call, which is for the rank's own K/V",
        lambda had, right: had == [*right[1:], right[0]],
    ),
    (f"the last K/V that came are not attended: {CALLS}", lambda had, right: had == right[:-1]),
    (f"the rank's own K/V are not attended: {CALLS}", lambda had, right: had == right[1:]),
    (
        "one call too many: after P − 1 hops a rank has seen all, and then its own come home",
        lambda had, right: had == [*right, right[0]],
    ),
]
OFF, LEFT = (
    "off by one: the first K/V, before any hop, are the rank's own",
    "comm.left hands them all over; source is the rank that they started from",
)
WRONG_SOURCES: list[tuple[str, Callable[[int, int, int], int]]] = [  # of the rank, the hop and P
    (OFF, lambda rank, hop, P: (rank - hop - 1) % P),
    (OFF, lambda rank, hop, P: (rank - hop + 1) % P),
    ("ranks are numbered around the ring: after 0 comes P − 1, so `% comm.size`", lambda rank, hop, P: rank - hop),
    (
        "wrong direction: K/V that came h hops to the right started h ranks to the left",
        lambda rank, hop, P: (rank + hop) % P,
    ),
    ("wrong direction, and without `% comm.size`", lambda rank, hop, P: rank + hop),
    ("source is the rank that K/V started from, not the rank that works", lambda rank, hop, P: rank),
    (LEFT, lambda rank, hop, P: (rank - 1) % P),
    (LEFT, lambda rank, hop, P: (rank - (hop > 0)) % P),
    ("the number of the hop is no rank: rank r begins with the K/V of rank r", lambda rank, hop, P: hop),
]


def _shown(source: Any) -> str:
    return f"{source}" if isinstance(source, int | np.integer) else brief(source)


def _listed(ranks: list[Any]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}" if ranks else "no rank"


def _check_results(done: Run, expected: list[Part], parts: list[list[Part]]) -> None:
    """Raise `Wrong` unless each rank has (out, lse) over all keys, brought by messages of its own."""
    P, said = len(expected), []
    for result, right in zip(done.results, expected, strict=True):
        if not isinstance(result, tuple | list) or len(result) != 2:
            said.append(f"returned {brief(result)}, expected (out, lse)")
            continue
        compared = (difference(one, other, TOLERANCE, TOLERANCE) for one, other in zip(result, right, strict=True))
        said.append(
            next((f"{name}: {wrong}" for name, wrong in zip(("out", "lse"), compared, strict=True) if wrong), "")
        )
    wrong = [rank for rank in range(P) if said[rank]]
    if wrong:
        rank = wrong[0]
        same = ((cause, _same(done.results[rank], other)) for cause, other in _mistakes(rank, expected, parts[rank]))
        raise Wrong(
            f"rank {rank} {said[rank]}",
            *right_and_wrong([r for r in range(P) if r not in wrong], wrong),
            *likely(same),
        )
    need_messages(done)
    for name in sorted({transfer.name for transfer in done.timeline.transfers} - {"message"}):
        raise Wrong(f"the results are right, but comm.{name} did the work: build it from comm.isend, comm.irecv")


def _same(result: Any, other: Any) -> bool:
    if other is None or not isinstance(result, tuple | list) or len(result) != 2:
        return result is other
    return not any(difference(one, two, TOLERANCE, TOLERANCE) for one, two in zip(result, other, strict=True))


def _mistakes(rank: int, expected: list[Part], parts: list[Part]) -> Iterator[tuple[str, Any]]:
    """Well-known mistakes, each with what the rank then returns; `parts`: over the K/V of each rank."""
    P = len(parts)
    last = parts[(rank + 1) % P]
    yield "a path through the program without a return", None
    yield "this is the last part alone: merge each with what was there before", last
    yield "this is the part of the rank's own K/V alone: what merge returns is not kept", parts[rank]
    yield "the parts are added, not merged", (sum(out for out, _ in parts), sum(lse for _, lse in parts))
    yield "the rank's own part is merged twice", merge(*parts[rank], *expected[rank])
    yield "the last part is merged twice", merge(*expected[rank], *last)
    for lost in (rank, (rank + 1) % P):
        kept = [part for number, part in enumerate(parts) if number != lost]
        if kept:
            found = kept[0]
            for part in kept[1:]:
                found = merge(*found, *part)
            yield f"the part of the K/V of rank {lost} is not merged", found


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
    if hop is None:
        return "a rank does something else, too, that takes time"
    if hop.start >= first.end:
        return "a hop starts after the work, so nothing overlaps: post isend and irecv before attend_to"
    if any(span.rank == hop.dst and span.start >= hop.end for span in done.timeline.computes) and (
        first.start >= hop.end
    ):
        return "a rank waits for the hop before it works: call wait() after attend_to"
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
