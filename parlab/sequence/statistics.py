"""The gradients' mean over the ranks of a sequence, and what a run of them did, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parlab.arguments import checked
from parlab.arrays import namespace
from parlab.sequence.arguments import RULES
from parlab.world import Comm, Run, Timeline, Transfer, values
from parlab.world.values import Value, leaves, mapped

GRADIENTS = "all_reduce"  # what gradients travel in; attention across ranks never does
ATTEND = "attend"  # how the names of its computations begin


def synchronise_gradients(comm: Comm, gradients: Value) -> Value:
    """The mean of the ranks' gradients, the same on all of them to the bit, nested as they are. One all-reduce a dtype.

    Right where each rank's loss is the mean over its own tokens, and all have as many. `gradients` are nested dicts,
    lists and tuples of floating arrays, or a ValueError, alike on every rank, or a MismatchError.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> shares = per_rank([{"w": np.ones(2)}, {"w": np.zeros(2)}])
    >>> run(synchronise_gradients, 2, shares).results
    [{'w': array([0.5, 0.5])}, {'w': array([0.5, 0.5])}]
    """
    gradients = values.checked(gradients, "gradients")
    arrays = list(leaves(gradients))
    for x in arrays:
        if not namespace(x).isdtype(x.dtype, "real floating"):
            raise ValueError(f"gradients has an array of {x.dtype}: a mean needs floating numbers")
    means = {}
    for dtype in dict.fromkeys(str(x.dtype) for x in arrays):
        alike = [x for x in arrays if str(x.dtype) == dtype]
        xp = namespace(*alike)
        mean = comm.all_reduce(xp.concat([xp.reshape(x, (-1,)) for x in alike])) / comm.size
        for x in alike:
            means[id(x)], mean = xp.reshape(mean[: x.size], x.shape), mean[x.size :]
    return mapped(lambda x: means[id(x)], gradients)


@dataclass(frozen=True)
class SequenceStatistics:
    """What a run of attention across ranks did; lists have an item a rank, times are in picoseconds. `reuse`: the share
    of all chunks that found their K/V there: between the start of the one before and their own no message of attention
    had arrived. A ring reuses its own K/V alone: 1/P of all, unmasked.
    """

    chunks: list[int]  # blocks of attention that it computed, forward and backward
    attention_bytes: list[int]  # sent in all messages but those of all-reduces
    gradient_bytes: list[int]  # ... in all-reduces, as `synchronise_gradients` makes
    attention_time: list[int]  # in which at least one such message left or reached it
    gradient_time: list[int]
    reuse: float
    efficiency: float  # time computing over the makespan, in the mean over the ranks
    peak_bytes: list[int]  # the most bytes held at once


@checked(RULES)
def sequence_statistics(run: Run | Timeline) -> SequenceStatistics:
    """The statistics of a run, from what its timeline recorded; of `run.on(cluster)` for other hardware.

    >>> import numpy as np
    >>> from parlab import run, sequence
    >>> found = sequence_statistics(run(sequence.ring_attention, 4, *np.ones((3, 1, 1, 4, 8))))  # q, k, v
    >>> found.chunks, found.attention_bytes, found.gradient_bytes, found.reuse
    ([4, 4, 4, 4], [1536, 1536, 1536, 1536], [0, 0, 0, 0], 0.25)
    """
    timeline = run.timeline if isinstance(run, Run) else run
    ranks = range(timeline.size)
    travelled = [t for t in timeline.transfers if t.src != t.dst]
    attention = [t for t in travelled if t.name != GRADIENTS]
    gradients = [t for t in travelled if t.name == GRADIENTS]
    attends = [span for span in timeline.computes if span.name.startswith(ATTEND)]
    starts = [[span.start for span in attends if span.rank == rank] for rank in ranks]
    there = 0
    for rank in ranks:
        arrivals = [t.end for t in attention if t.dst == rank]
        for before, start in zip([-1, *starts[rank]], starts[rank], strict=False):
            there += not any(before < arrival <= start for arrival in arrivals)
    return SequenceStatistics(
        [len(of_rank) for of_rank in starts],
        [sum(t.nbytes for t in attention if t.src == rank) for rank in ranks],
        [sum(t.nbytes for t in gradients if t.src == rank) for rank in ranks],
        [_time_in(attention, rank) for rank in ranks],
        [_time_in(gradients, rank) for rank in ranks],
        there / max(len(attends), 1),
        sum(map(timeline.busy, ranks)) / max(timeline.size * timeline.makespan, 1),
        [timeline.peak_bytes(rank) for rank in ranks],
    )


def _time_in(transfers: Sequence[Transfer], rank: int) -> int:
    """How long at least one of them was under way, from or to `rank`."""
    total = last = 0
    for t in transfers:  # by start
        if rank in (t.src, t.dst):
            total += max(t.end - max(t.start, last), 0)
            last = max(last, t.end)
    return total
