"""What a pipeline costs on paper, in columns: how many chunks a rank keeps, and how long a step takes and waits.

p ranks, m microbatches, v chunks a rank: each a number, or an array with an entry a pipeline. `in_turn`: microbatches
go forward and backward in turn (1F1B; interleaved, if there are several chunks), else all of them through a chunk
before the next (GPipe; breadth-first). `parlab.pipeline.simulate` gives the same of a schedule, action by action.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Column = Any  # a number, or an array of them (booleans, where it is a question)


class Pass(NamedTuple):
    """Forward and backward of something, in seconds."""

    forward: Column
    backward: Column

    @property
    def both(self) -> Column:
        """The sum."""
        return self.forward + self.backward


def in_flight(p: Column, m: Column, v: Column, in_turn: Column, rank: Column) -> Column:
    """Chunks that a rank keeps at its fullest: all m·v for GPipe and breadth-first; 1F1B p − r; interleaved
    vp + p − 1 − 2r; never more than m·v.

    Source: Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters", section 2.2.

    >>> [int(in_flight(4, 8, 1, True, rank)) for rank in range(4)]
    [4, 3, 2, 1]
    """
    return np.where(in_turn, np.minimum(m * v, np.where(v == 1, p - rank, v * p + p - 1 - 2 * rank)), m * v)


def exposed_transfers(p: Column, m: Column, v: Column, in_turn: Column, apart: bool) -> Column:
    """How many transfers between stages a step waits for. 1F1B with one chunk sees each microbatch's round trip:
    2((p − 1)(1 + m/p) − 1). Otherwise other work is there to do meanwhile, if transfers travel `apart` from computing,
    and only the way there and back is seen: 2(pv − 1), of which breadth-first with m > p hides the turns from chunk to
    chunk. If not apart, each of a rank's 2mv is seen.
    """
    way = 2 * (p * np.where(in_turn | (m == p), v, 1) - 1) if apart else 2 * m * v + 2 * (p - 1)
    return np.where(p == 1, 0, np.where(in_turn & (v == 1), 2 * ((p - 1) * (1 + m / p) - 1), way))


def step(
    p: Column, m: Column, v: Column, in_turn: Column, chunk: Pass, first: Pass, last: Pass
) -> tuple[Column, Column, Column]:
    """Seconds that a rank works on average, the slowest more than that, and the slowest's idle time; `first` and `last`
    are the pipeline's very first and very last `chunk`, which may differ from the others.

    The slowest rank works m·s, and waits for a chunk of each other rank: (p − 1)/v·s where all are the same; 1F1B a
    little more where the last is quicker. Exactly what `parlab.pipeline.simulate` gives (transfers apart): of GPipe,
    1F1B and breadth-first while no first chunk is slower than the others; interleaved with a quicker last one where a
    backward takes two forwards and m > p.

    >>> [float(x) for x in step(4, 8, 1, True, *[Pass(1.0, 2.0)] * 3)]  # (p − 1)(F + B) idle
    [24.0, 0.0, 9.0]
    """
    rest = (v - 1) * chunk.both
    begin, middle, end = (rest + one.both for one in (first, chunk, last))
    mean = m * np.where(p == 1, begin + end - middle, (begin + (p - 2) * middle + end) / p)
    before = first.both + (p - 2) * chunk.both  # a chunk of each rank but the last
    other = np.maximum(begin, np.where(p > 2, middle, 0))  # the slowest of these
    forward, backward = (np.where((p == 2) & (v == 1), *side) for side in zip(first, chunk, strict=True))
    waits = np.maximum(last.both - backward, 0) + np.where(v == 1, np.maximum(last.both - forward, 0), 0)
    quick = (m - 1) * other + rest + before + np.where(in_turn, waits, last.both)
    whole = np.where(p == 1, mean, np.maximum(m * end + before, quick))
    slowest = np.where(p == 1, mean, m * np.maximum(other, end))
    return mean, slowest - mean, whole - slowest
