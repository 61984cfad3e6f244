"""Right answers to the exercises of notebook 09, in several styles each."""

import numpy as np

from tests.labs import answers
from tests.labs.right_answers import of
from tests.labs.right_answers_08 import RIGHT

__all__ = ["RIGHT"]


@of("09.fit")
def as_an_array(size, nbytes, seconds):
    return np.array(answers.fit(size, nbytes, seconds))


@of("09.fit")
def by_its_two_halves(size, nbytes, seconds):
    """The latency from the smaller half, the bandwidth from the larger one, each with the other known."""
    each, n, half = seconds / (2 * (size - 1)), nbytes / size, len(seconds) // 2
    bandwidth = n[-1] / each[-1]
    for _ in range(50):
        latency = np.mean(each[:half] - n[:half] / bandwidth)
        bandwidth = 1 / np.mean((each[half:] - latency) / n[half:])
    return latency, bandwidth


@of("09.buffering")
def two_sendrecvs(comm, x):
    above = below = x[:0]
    if 0 < comm.rank < comm.size - 1:
        above = comm.sendrecv(x[-1:], comm.rank + 1, comm.rank - 1)
        below = comm.sendrecv(x[:1], comm.rank - 1, comm.rank + 1)
    elif comm.size > 1 and comm.rank == 0:
        comm.send(x[-1:], 1)
        below = comm.recv(1, like=x[:1])
    elif comm.size > 1:
        above = comm.recv(comm.rank - 1, like=x[:1])
        comm.send(x[:1], comm.rank - 1)
    return np.concatenate([above, x, below])


def neighbours(comm):
    return [other for other in (comm.rank - 1, comm.rank + 1) if 0 <= other < comm.size]


@of("09.buffering")
def all_posted_ahead(comm, x):
    row = {other: x[:1] if other < comm.rank else x[-1:] for other in neighbours(comm)}
    sent = [comm.isend(row[other], other) for other in row]
    came = {other: comm.irecv(other, like=row[other]) for other in row}
    around = [came[other].wait() if other in came else x[:0] for other in (comm.rank - 1, comm.rank + 1)]
    for request in sent:
        request.wait()
    return np.vstack([around[0], x, around[1]])


@of("09.buffering")
def rows_without_their_axis(comm, x):
    sent = [comm.isend(x[0 if other < comm.rank else -1], other) for other in neighbours(comm)]
    came = {other: comm.irecv(other, like=x[0]).wait() for other in neighbours(comm)}
    for request in sent:
        request.wait()
    rows = [x]
    if comm.rank - 1 in came:
        rows.insert(0, came[comm.rank - 1][None])
    if comm.rank + 1 in came:
        rows.append(came[comm.rank + 1][None])
    return np.concatenate(rows)
