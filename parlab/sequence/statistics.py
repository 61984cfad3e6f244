"""The statistics of a run of attention across ranks, read off its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parlab.world import Run, Timeline, Transfer

GRADIENT_MESSAGES = "all_reduce"  # their name; attention across ranks never makes an all-reduce
ATTEND = "attend"  # the names of attention's computations begin so


@dataclass(frozen=True)
class SequenceStatistics:
    """The statistics of a run of attention across ranks. Lists have one item a rank, times are in picoseconds.

    `reuse` is the share of computations that found their K/V on the rank: no message of attention had arrived since the
    computation before began. In an unmasked ring only the rank's own K/V are found so: 1/P of all.
    """

    chunks: list[int]  # computations of attention, forward and backward: one for each source of K/V
    attention_bytes: list[int]  # bytes sent in all messages but those of all-reduces
    gradient_bytes: list[int]  # bytes sent in all-reduces, as `synchronise_gradients` makes
    attention_time: list[int]  # time in which at least one message of attention left or reached the rank
    gradient_time: list[int]  # the same for messages of all-reduces
    reuse: float
    efficiency: float  # time computing over the makespan, in the mean over the ranks
    peak_bytes: list[int]  # the most bytes held at once


def sequence_statistics(run: Run | Timeline) -> SequenceStatistics:
    """The statistics of a run, read off its timeline. For other hardware pass `run.on(cluster)`.

    >>> import numpy as np
    >>> from parlab import run, sequence
    >>> found = sequence_statistics(run(sequence.ring_attention, 4, *np.ones((3, 1, 1, 4, 8))))  # q, k, v
    >>> found.chunks, found.attention_bytes, found.gradient_bytes, found.reuse
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
    found_here = 0
    for rank in ranks:
        arrivals = [t.end for t in attention if t.dst == rank]
        for before, start in zip([-1, *starts[rank]], starts[rank], strict=False):
            found_here += not any(before < arrival <= start for arrival in arrivals)
    return SequenceStatistics(
        chunks=[len(of_rank) for of_rank in starts],
        attention_bytes=[sum(t.nbytes for t in attention if t.src == rank) for rank in ranks],
        gradient_bytes=[sum(t.nbytes for t in gradients if t.src == rank) for rank in ranks],
        attention_time=[_time_in(attention, rank) for rank in ranks],
        gradient_time=[_time_in(gradients, rank) for rank in ranks],
        reuse=found_here / max(len(attends), 1),
        efficiency=sum(map(timeline.busy, ranks)) / max(timeline.size * timeline.makespan, 1),
        peak_bytes=[timeline.peak_bytes(rank) for rank in ranks],
    )


def _time_in(transfers: Sequence[Transfer], rank: int) -> int:
    """How long at least one of these transfers was under way, from or to `rank`."""
    total = last = 0
    for t in transfers:  # by start
        if rank in (t.src, t.dst):
            total += max(t.end - max(t.start, last), 0)
            last = max(last, t.end)
    return total
