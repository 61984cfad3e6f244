"""The statistics of a run of attention across ranks, read off its timeline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from parlab.world import Run, Timeline

GRADIENT_MESSAGES = "all_reduce"  # their name; attention across ranks never makes an all-reduce
ATTEND = "attend"  # the names of attention's computations begin so


@dataclass(frozen=True)
class SequenceStatistics:
    """The statistics of a run of attention across ranks. Lists have one item a rank, times are in picoseconds.

    Messages of gradients are those of all-reduces, as `synchronise_gradients` makes them; all others are attention's.
    """

    attends: list[int]  # computations of attention, forward and backward: one for each source of K/V
    reuse: float  # the share of them that found their K/V on the rank; in an unmasked ring its own alone, 1/P of all
    attention_bytes: list[int]  # that the rank sent
    gradient_bytes: list[int]
    attention_transfer_time: list[int]  # in which at least one message was on its way from or to the rank
    gradient_transfer_time: list[int]
    efficiency: float  # time computing over the makespan, in the mean over the ranks
    peak_bytes: list[int]  # the most bytes held at once


def sequence_statistics(run: Run | Timeline) -> SequenceStatistics:
    """The statistics of a run, read off its timeline. For other hardware pass `run.on(cluster)`.

    >>> import numpy as np
    >>> from parlab import run, sequence
    >>> found = sequence_statistics(run(sequence.ring_attention, 4, *np.ones((3, 1, 1, 4, 8))))  # q, k, v
    >>> found.attends, found.attention_bytes, found.gradient_bytes, found.reuse
    ([4, 4, 4, 4], [1536, 1536, 1536, 1536], [0, 0, 0, 0], 0.25)
    """
    if not isinstance(run, Run | Timeline):
        raise ValueError(f"run={run!r:.60}: must be a Run or a Timeline")
    timeline = run.timeline if isinstance(run, Run) else run
    ranks = range(timeline.size)
    travelled = [t for t in timeline.transfers if t.src != t.dst]
    attention = [t for t in travelled if t.name != GRADIENT_MESSAGES]
    gradients = [t for t in travelled if t.name == GRADIENT_MESSAGES]
    attends = [span for span in timeline.computes if span.name.startswith(ATTEND)]
    starts = [[span.start for span in attends if span.rank == rank] for rank in ranks]
    arrivals = [[t.end for t in attention if t.dst == rank] for rank in ranks]
    return SequenceStatistics(
        attends=[len(of_rank) for of_rank in starts],
        reuse=sum(map(_found_here, starts, arrivals)) / max(len(attends), 1),
        attention_bytes=[sum(t.nbytes for t in attention if t.src == rank) for rank in ranks],
        gradient_bytes=[sum(t.nbytes for t in gradients if t.src == rank) for rank in ranks],
        attention_transfer_time=[
            _covered((t.start, t.end) for t in attention if rank in (t.src, t.dst)) for rank in ranks
        ],
        gradient_transfer_time=[
            _covered((t.start, t.end) for t in gradients if rank in (t.src, t.dst)) for rank in ranks
        ],
        efficiency=sum(map(timeline.busy, ranks)) / max(timeline.size * timeline.makespan, 1),
        peak_bytes=[timeline.peak_bytes(rank) for rank in ranks],
    )


def _found_here(starts: list[int], arrivals: list[int]) -> int:
    """How many of a rank's computations, begun at `starts`, found their K/V on the rank: no message of attention had
    arrived since the computation before began.

    >>> _found_here(starts=[0, 10, 20, 30], arrivals=[7, 20])  # the first and the last
    2
    """
    spans = pairwise([-1, *starts])
    return sum(not any(before < arrival <= start for arrival in arrivals) for before, start in spans)


def _covered(spans: Iterable[tuple[int, int]]) -> int:
    """The time in which at least one of the spans (start, end) lasts; they come by start.

    >>> _covered([(0, 4), (1, 3), (2, 6), (9, 10)])  # 0 to 6, and 9 to 10
    7
    """
    total = last = 0
    for start, end in spans:
        total += max(end - max(start, last), 0)
        last = max(last, end)
    return total
