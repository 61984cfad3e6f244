"""Closed forms of a pipeline, in columns: how many chunks a rank keeps, and how long a step takes and waits.

p ranks, m microbatches, v chunks a rank: arrays with an entry a pipeline. `in_turn`: microbatches go forward and
backward in turn (1F1B; interleaved, if there are several chunks), else all of them through a chunk before the next
(GPipe; breadth-first). `parlab.pipeline.simulate` gives the same of a schedule, action by action.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from parlab.arrays import Array, namespace

Column = Any  # an array with an entry a pipeline, or a number that is the same for all


class Pass(NamedTuple):
    """Forward and backward of something, in seconds."""

    forward: Column
    backward: Column

    @property
    def both(self) -> Column:
        """The sum."""
        return self.forward + self.backward


def in_flight(p: Array, m: Array, v: Array, in_turn: Column, rank: Column) -> Column:
    """Chunks that a rank keeps at its fullest: all m·v for GPipe and breadth-first; 1F1B p − r; interleaved
    vp + p − 1 − 2r; never more than m·v.

    Source: Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters", section 2.2.

    >>> import numpy as np
    >>> in_flight(np.array([4, 4]), np.array([8, 8]), np.array([1, 2]), True, rank=0).tolist()
    [4, 11]
    """
    xp = namespace(p, m, v)
    return xp.where(in_turn, xp.minimum(m * v, xp.where(v == 1, p - rank, v * p + p - 1 - 2 * rank)), m * v)


def exposed_transfers(p: Array, m: Array, v: Array, in_turn: Column, apart: bool) -> Column:
    """How many transfers between stages a step waits for. 1F1B with one chunk sees each microbatch's round trip:
    2((p − 1)(1 + m/p) − 1). Otherwise other work is there to do meanwhile, if transfers travel `apart` from computing,
    and only the way there and back is seen: 2(pv − 1), of which breadth-first with m > p hides the turns from chunk to
    chunk. If not apart, each of a rank's 2mv is seen.
    """
    xp = namespace(p, m, v)
    way = 2 * (p * xp.where(in_turn | (m == p), v, 1) - 1) if apart else 2 * m * v + 2 * (p - 1)
    return xp.where(p == 1, 0, xp.where(in_turn & (v == 1), 2 * ((p - 1) * (1 + m / p) - 1), way))


def step(
    p: Array, m: Array, v: Array, in_turn: Column, chunk: Pass, first: Pass, last: Pass
) -> tuple[Column, Column, Column]:
    """Seconds that a rank works on average, the slowest more than that, and the slowest's idle time; `first` and `last`
    are the pipeline's very first and very last `chunk`, which may differ from the others.

    The slowest rank works m·s, and waits for a chunk of each other rank: (p − 1)/v·s where all are the same; 1F1B a
    little more where the last is quicker. Exactly what `parlab.pipeline.simulate` gives (transfers apart): of GPipe,
    1F1B and breadth-first while no first chunk is slower than the others; interleaved with a quicker last one where a
    backward takes two forwards and m > p.

    >>> import numpy as np
    >>> found = step(np.array(4), np.array(8), np.array(1), True, *[Pass(1.0, 2.0)] * 3)
    >>> [float(seconds) for seconds in found]  # (p − 1)(F + B) idle
    [24.0, 0.0, 9.0]
    """
    xp = namespace(p, m, v)
    rest = (v - 1) * chunk.both
    begin, middle, end = (rest + one.both for one in (first, chunk, last))
    mean = m * xp.where(p == 1, begin + end - middle, (begin + (p - 2) * middle + end) / p)
    before = first.both + (p - 2) * chunk.both  # a chunk of each rank but the last
    other = xp.maximum(begin, xp.where(p > 2, middle, 0))  # the slowest of these
    forward, backward = (xp.where((p == 2) & (v == 1), *side) for side in zip(first, chunk, strict=True))
    waits = xp.maximum(last.both - backward, 0) + xp.where(v == 1, xp.maximum(last.both - forward, 0), 0)
    quick = (m - 1) * other + rest + before + xp.where(in_turn, waits, last.both)
    whole = xp.where(p == 1, mean, xp.maximum(m * end + before, quick))
    slowest = xp.where(p == 1, mean, m * xp.maximum(other, end))
    return mean, slowest - mean, whole - slowest
