"""A step of a pipeline whose stages are not all the same, in closed form."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parlab.plan.case import Case, Column


class Pass(NamedTuple):
    """Forward and backward of something, in seconds."""

    forward: Column
    backward: Column

    @property
    def both(self) -> Column:
        """The sum."""
        return self.forward + self.backward


class Step(NamedTuple):
    """Seconds a rank works in a step on average, the slowest rank more than that, and idle time of the slowest."""

    mean: Column
    imbalance: Column
    bubble: Column


def step(p: Column, m: Column, v: Column, chunk: Pass, first: Pass, last: Pass, interleaved: Column) -> Step:
    """Of a step: m microbatches, p ranks, v chunks a rank, of which the very first and the very last differ.

    The slowest rank works m·s; what comes before its first chunk and after its last one is a chunk of each other rank:
    (p − 1)/v·s where all are the same. A last stage that is quicker than the others leaves 1F1B a little more.

    Exactly what `parlab.pipeline.simulate` gives (transfers apart) for GPipe, 1F1B and looped breadth-first while no
    first chunk is slower than the others; interleaved with a quicker last stage where a backward takes two forwards and
    m > p.

    >>> one = Pass(1.0, 2.0)
    >>> found = step(4, 8, 1, one, one, one, True)
    >>> [float(part) for part in found]  # 24 of work, 3 ranks' F and B
    [24.0, 0.0, 9.0]
    """
    rest = (v - 1) * chunk.both
    begin, middle, end = rest + first.both, rest + chunk.both, rest + last.both
    mean = m * np.where(p == 1, rest + first.both + last.both - chunk.both, (begin + (p - 2) * middle + end) / p)
    before = first.both + (p - 2) * chunk.both  # a chunk of each rank but the last
    other, of_other = (
        np.maximum(begin, np.where(p > 2, middle, 0)),
        np.where((p > 2) & (middle > begin), chunk.both, first.both),
    )
    neighbour = [np.where((p == 2) & (v == 1), a, b) for a, b in zip(first, chunk, strict=True)]
    waits = np.maximum(last.both - neighbour[1], 0) + np.where(v == 1, np.maximum(last.both - neighbour[0], 0), 0)
    quick = m * other + before - of_other + np.where(interleaved, waits, last.both)
    whole = np.where(p == 1, mean, np.maximum(m * end + before, quick))
    slowest = np.where(p == 1, mean, m * np.maximum(other, end))
    return Step(mean, slowest - mean, whole - slowest)


def exposed_transfers(case: Case, apart: bool) -> Column:
    """How many transfers between stages a step waits for.

    1F1B with one chunk: each microbatch's round trip is seen, 2((p − 1)(1 + m/p) − 1). Otherwise other work is there to
    do meanwhile, if transfers travel `apart` from computing, and only the way there and back is seen: 2(pv − 1), of
    which breadth-first with m > p hides the turns from chunk to chunk. If not apart, each of a rank's 2mv is seen.
    """
    p, m, v = case.p, case.m, case.v
    way = 2 * (p * np.where(case.in_turn | (m == p), v, 1) - 1) if apart else 2 * m * v + 2 * (p - 1)
    return np.where(p == 1, 0, np.where(case.in_turn & (v == 1), 2 * ((p - 1) * (1 + m / p) - 1), way))
