"""Closed forms of a pipeline, in columns: how many chunks a rank keeps, and how long a step takes and waits.

`parlab.pipeline.simulate` gives the same of a schedule, action by action.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from parlab.arrays import namespace

Column = Any  # an array with an entry a pipeline, or a number that is the same for all


class Pipeline(NamedTuple):
    """Pipelines, in columns.

    Fields:
        ranks: p.
        microbatches: m.
        chunks: v, of a rank.
        alternates: forwards and backwards alternate (1F1B; interleaved, if there are several chunks); else all forwards
            come before all backwards (GPipe; breadth-first).
        group: N, the microbatches that pass a chunk in a row before the next chunk comes: a divisor of m, at
            least p. Interleaved 1F1B has p at the fewest; GPipe and breadth-first have all m.
    """

    ranks: Column
    microbatches: Column
    chunks: Column
    alternates: Column
    group: Column


class Seconds(NamedTuple):
    """Seconds of something in the forward, and in the backward."""

    forward: Column
    backward: Column

    @property
    def both(self) -> Column:
        """Forward and backward together."""
        return self.forward + self.backward

    def times(self, count: Column) -> Seconds:
        """Seconds of so many of them."""
        return Seconds(count * self.forward, count * self.backward)

    def plus(self, other: Seconds) -> Seconds:
        """Seconds of this and of the other."""
        return Seconds(self.forward + other.forward, self.backward + other.backward)


def in_flight(pipeline: Pipeline, rank: Column) -> Column:
    """Chunks that a rank keeps at its fullest: all m·v for GPipe and breadth-first; 1F1B p − r; interleaved
    (v − 1)N + 2(p − r) − 1; never more than m·v.

    Source: Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters", section 2.2; N: the
    Llama team 2024, "The Llama 3 herd of models", section 3.3.2.

    >>> import numpy as np
    >>> columns = Pipeline(np.array([4, 4, 4]), np.array([8, 8, 8]), np.array([1, 2, 2]), True, np.array([4, 4, 8]))
    >>> in_flight(columns, rank=0).tolist()
    [4, 11, 15]
    """
    p, m, v, alternates, group = pipeline
    xp = namespace(p, m, v)
    interleaved = (v - 1) * group + 2 * p - 1 - 2 * rank
    alternating = xp.where(v == 1, p - rank, interleaved)
    return xp.where(alternates, xp.minimum(m * v, alternating), m * v)


def exposed_transfers(pipeline: Pipeline, apart: bool) -> Column:
    """How many transfers between stages a step waits for. 1F1B with one chunk sees each microbatch's round trip:
    2((p − 1)(1 + m/p) − 1). Otherwise other work is there to do meanwhile, if transfers travel `apart` from computing,
    and only the way there and back is seen: 2(pv − 1), of which groups of more than p microbatches hide the turns from
    chunk to chunk. If not apart, each of a rank's 2mv is seen.
    """
    p, m, v, alternates, group = pipeline
    xp = namespace(p, m, v)
    round_trips = 2 * ((p - 1) * (1 + m / p) - 1)
    turns = xp.where(group == p, v, 1)  # through all ranks; of larger groups only one is seen
    there_and_back = 2 * (p * turns - 1) if apart else 2 * m * v + 2 * (p - 1)
    return xp.where(p == 1, 0, xp.where(alternates & (v == 1), round_trips, there_and_back))


def slowest_and_idle(pipeline: Pipeline, chunk: Seconds, first: Seconds, last: Seconds) -> tuple[Column, Column]:
    """Seconds of a step that the slowest rank works, and those that it waits for the others; `first` and `last` are the
    pipeline's very first and very last `chunk`, which may differ from the others.

    The slowest rank works m·s, and waits for a chunk of each other rank: (p − 1)/v·s where all are the same; 1F1B a
    little more where the last is quicker. Exactly what `parlab.pipeline.simulate` gives (transfers apart): of GPipe,
    1F1B and breadth-first while no first chunk is slower than the others; interleaved with a quicker last one where a
    backward takes two forwards and m > p.

    >>> import numpy as np
    >>> pipeline = Pipeline(np.array(4), np.array(8), np.array(1), True, np.array(4))
    >>> found = slowest_and_idle(pipeline, *[Seconds(1.0, 2.0)] * 3)
    >>> [float(seconds) for seconds in found]  # m(F + B) of work, (p − 1)(F + B) idle
    [24.0, 9.0]
    """
    p, m, v, alternates, _ = pipeline
    xp = namespace(p, m, v)
    rest = (v - 1) * chunk.both
    begin, middle, end = (rest + one.both for one in (first, chunk, last))  # a microbatch on a rank, all its chunks
    before = first.both + (p - 2) * chunk.both  # a chunk of each rank but the last
    other = xp.maximum(begin, xp.where(p > 2, middle, 0))  # the slowest of these
    two_chunks = (p == 2) & (v == 1)  # the chunk before the very last is the very first
    forward = xp.where(two_chunks, first.forward, chunk.forward)  # of the chunk before the very last
    backward = xp.where(two_chunks, first.backward, chunk.backward)
    waits = xp.maximum(last.both - backward, 0) + xp.where(v == 1, xp.maximum(last.both - forward, 0), 0)
    through_last = m * end + before  # the step, if the last rank works without a pause once it has begun
    through_other = (m - 1) * other + rest + before + xp.where(alternates, waits, last.both)  # if another rank does
    alone = m * (begin + end - middle)  # one rank has both ends, and waits for none
    slowest = xp.where(p == 1, alone, m * xp.maximum(other, end))
    return slowest, xp.where(p == 1, alone, xp.maximum(through_last, through_other)) - slowest
