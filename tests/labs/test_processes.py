"""The checkers of notebook 09 refuse what learners write on the way there."""

import numpy as np
import pytest

from tests.labs.answers import borders, fit, refused


def changed(of):
    """The solution, whose latency and bandwidth are changed by `of`, which knows the ranks, bytes and seconds, too."""
    return lambda size, nbytes, seconds: of(*fit(size, nbytes, seconds), size, nbytes, seconds)


def line(of, relative=True):
    """The straight line through the times that `of` makes of the ranks and seconds."""

    def answer(size, nbytes, seconds):
        each = of(size, seconds)
        slope, height = np.polyfit(nbytes / size, each, 1, w=1 / seconds if relative else None)
        return height, 1 / slope

    return answer


def means_of_the_ends(size, nbytes, seconds):
    each = seconds / (2 * (size - 1))
    small, large = each[nbytes == nbytes.min()].mean(), each[nbytes == nbytes.max()].mean()
    return small, nbytes.max() / size / (large - small)


def a_line_of_logarithms(size, nbytes, seconds):
    slope, height = np.polyfit(np.log(nbytes / size), np.log(seconds / (2 * (size - 1))), 1)
    return np.exp(height), 1 / slope


not_divided = line(lambda size, seconds: seconds)
FITS = [
    (changed(lambda a, b, *_: (b, a)), "the two are swapped"),
    (changed(lambda a, b, *_: (a, 1 / b)), "seconds a byte"),
    (changed(lambda a, b, *_: (a, b / 1e9)), "the bandwidth is in gigabytes a second"),
    (changed(lambda a, b, *_: (a * 1e6, b)), "the latency is in microseconds"),
    (changed(lambda a, b, *_: (a * 1e9, b)), "the latency is in nanoseconds"),
    (changed(lambda a, b, size, *_: (a, b * size)), "carries n/P bytes"),
    (changed(lambda a, b, size, nbytes, seconds: (a, nbytes[-1] / seconds[-1])), "2(P − 1)/P of n"),
    (lambda size, nbytes, seconds: fit(size, nbytes, 2 * seconds), "this counts one half"),
    (lambda size, nbytes, seconds: fit(size, nbytes, seconds * (size - 1) / size), "this counts 2P"),
    (line(lambda size, seconds: seconds / (2 * (size - 1)), relative=False), "drown the small ones"),
    (means_of_the_ends, "the smallest and the largest size alone"),
    (a_line_of_logarithms, "a straight line through logarithms is a power of n"),
    (lambda *given: dict(zip("ab", fit(*given), strict=True)), "expected (latency, bandwidth)"),
    (changed(lambda *_: (np.nan, 1.0)), "expected (latency, bandwidth)"),
]


@pytest.mark.parametrize(("answer", "said"), FITS, ids=range(len(FITS)))
def test_a_wrong_fit_is_refused_with_its_cause(answer, said):
    refused("09.fit", answer, said)


@pytest.mark.parametrize(
    "answer",
    [
        changed(lambda a, b, *_: (a, -b)),
        changed(lambda a, b, *_: (a, 0.0)),
        line(lambda size, seconds: seconds / size),
    ],
)
def test_a_rare_mistake_in_the_fit_is_told_no_cause_of_another(answer):
    assert "likely cause" not in refused("09.fit", answer)


def test_the_commonest_slip_not_to_divide_is_told_on_ranks_where_2_and_2_times_p_minus_1_differ():
    assert "half" not in refused("09.fit", not_divided, "with 3 ranks|divide by 2(P − 1)")


def relies_on_buffering(comm, x):
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    if not first:
        comm.send(x[:1], comm.rank - 1)
    if not last:
        comm.send(x[-1:], comm.rank + 1)
    above = x[:0] if first else comm.recv(comm.rank - 1, like=x[:1])
    below = x[:0] if last else comm.recv(comm.rank + 1, like=x[:1])
    return np.concatenate([above, x, below])


def one_after_the_other(comm, x):
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    above = x[:0] if first else comm.recv(comm.rank - 1, like=x[:1])
    if not last:
        comm.send(x[-1:], comm.rank + 1)
    below = x[:0] if last else comm.recv(comm.rank + 1, like=x[:1])
    if not first:
        comm.send(x[:1], comm.rank - 1)
    return np.concatenate([above, x, below])


def around_the_ring(comm, x):
    above = comm.sendrecv(x[-1:], comm.right, comm.left)
    below = comm.sendrecv(x[:1], comm.left, comm.right)
    return np.concatenate([above, x, below])


def around_the_ring_and_thrown_away(comm, x):
    above = comm.sendrecv(x[-1:], comm.right, comm.left)[: comm.rank]
    below = comm.sendrecv(x[:1], comm.left, comm.right)[: comm.size - 1 - comm.rank]
    return np.concatenate([above, x, below])


def far_rows(comm, x):
    """The last row goes to the rank above, the first row to the rank below."""
    other = borders(comm, x[::-1])
    return np.concatenate([other[: comm.rank > 0], x, other[len(other) - (comm.rank < comm.size - 1) :]])


def above_is_below(comm, x):
    found = borders(comm, x)
    above, below = found[: comm.rank > 0], found[len(found) - (comm.rank < comm.size - 1) :]
    return np.concatenate([below, x, above])


WRONG = [
    (around_the_ring, "the plate is no ring"),
    (around_the_ring_and_thrown_away, "one row of each neighbour, and nothing else"),
    (lambda comm, x: borders(comm, np.hstack([x, x]))[:, : x.shape[1]], "more than a row"),
    (far_rows, "a rank sends the far row"),
    (above_is_below, "in each other's place"),
]


@pytest.mark.parametrize(("answer", "said"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_exchange_of_borders_is_refused_and_explained(answer, said):
    refused("09.buffering", answer, said)
