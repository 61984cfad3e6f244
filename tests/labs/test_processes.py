"""The checkers of notebook 09 accept the solutions and refuse what learners write on the way there."""

import numpy as np
import pytest

from parlab import labs
from tests.labs.answers import borders, fit, refused, reviewed


def test_the_passing_texts_show_steps_and_how_near():
    assert "steps: 2; at most 2\n" in reviewed("09.buffering", borders).text
    assert reviewed("09.fit", fit).text.endswith("both within 5 %")


def test_the_librarys_borders_which_stands_in_for_an_answer_passes_the_check():
    assert reviewed("09.buffering", labs.borders).status == labs.PASSED


def plain_line(size, nbytes, seconds):
    slope, height = np.polyfit(nbytes / size, seconds / (2 * (size - 1)), 1)
    return height, 1 / slope


def the_slope(size, nbytes, seconds):
    latency, bandwidth = fit(size, nbytes, seconds)
    return latency, 1 / bandwidth


def of_all_messages(size, nbytes, seconds):
    latency, bandwidth = fit(size, nbytes, seconds)
    return latency * 2 * (size - 1), bandwidth


def not_divided(size, nbytes, seconds):
    slope, height = np.polyfit(nbytes / size, seconds, 1, w=1 / seconds)
    return height, 1 / slope


def divided_by_the_ranks(size, nbytes, seconds):
    slope, height = np.polyfit(nbytes / size, seconds / size, 1, w=1 / seconds)
    return height, 1 / slope


def whole_arrays(size, nbytes, seconds):
    latency, bandwidth = fit(size, nbytes, seconds)
    return latency, bandwidth * size


def largest_only(size, nbytes, seconds):
    latency, _ = fit(size, nbytes, seconds)
    return latency, nbytes[-1] / seconds[-1]


def a_dict(size, nbytes, seconds):
    return dict(zip(("latency", "bandwidth"), fit(size, nbytes, seconds), strict=True))


def means_of_the_ends(size, nbytes, seconds):
    each = seconds / (2 * (size - 1))
    small, large = each[nbytes == nbytes.min()].mean(), each[nbytes == nbytes.max()].mean()
    return small, nbytes.max() / size / (large - small)


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


def whole_plates(comm, x):
    requests = {}
    for other in (comm.rank - 1, comm.rank + 1):
        if 0 <= other < comm.size:
            requests[other] = comm.isend(x, other), comm.irecv(other, like=x)
    for sent, _ in requests.values():
        sent.wait()
    above, below = (
        [requests[other][1].wait()] if other in requests else [] for other in (comm.rank - 1, comm.rank + 1)
    )
    return np.concatenate([*(a[-1:] for a in above), x, *(b[:1] for b in below)])


def far_rows(comm, x):
    """The last row goes to the rank above, the first row to the rank below."""
    other = borders(comm, x[::-1])
    return np.concatenate([other[: comm.rank > 0], x, other[len(other) - (comm.rank < comm.size - 1) :]])


def above_is_below(comm, x):
    found = borders(comm, x)
    above, below = found[: comm.rank > 0], found[len(found) - (comm.rank < comm.size - 1) :]
    return np.concatenate([below, x, above])


def one_neighbour_after_the_other(comm, x):
    """Even ranks send first, odd ones receive first: four messages follow one another, on any number of ranks."""
    rows = dict.fromkeys((comm.rank - 1, comm.rank + 1), x[:0])
    for other in (comm.rank + 1, comm.rank - 1) if comm.rank % 2 == 0 else (comm.rank - 1, comm.rank + 1):
        if 0 <= other < comm.size:
            mine = x[-1:] if other > comm.rank else x[:1]
            if comm.rank % 2 == 0:
                comm.send(mine, other)
            rows[other] = comm.recv(other, like=mine)
            if comm.rank % 2:
                comm.send(mine, other)
    return np.concatenate([rows[comm.rank - 1], x, rows[comm.rank + 1]])


def only_above(comm, x):
    found = borders(comm, x)
    return found if comm.rank == comm.size - 1 else found[:-1]


def from_everybody(comm, x):
    rows = comm.all_gather(x)
    height = len(x)
    return rows[max(0, comm.rank * height - 1) : (comm.rank + 1) * height + 1]


def a_line_of_logarithms(size, nbytes, seconds):
    slope, height = np.polyfit(np.log(nbytes / size), np.log(seconds / (2 * (size - 1))), 1)
    return np.exp(height), 1 / slope


WRONG = [
    ("09.fit", plain_line, "drown the small ones"),
    ("09.fit", lambda size, nbytes, seconds: fit(size, nbytes, seconds)[::-1], "the two are swapped"),
    ("09.fit", the_slope, "seconds a byte"),
    ("09.fit", of_all_messages, "divide by 2(P − 1)"),
    ("09.fit", not_divided, "divide by 2(P − 1)"),
    ("09.fit", lambda size, nbytes, seconds: fit(size, nbytes, 2 * seconds), "this counts one half"),
    ("09.fit", whole_arrays, "carries n/P bytes"),
    ("09.fit", lambda size, nbytes, seconds: fit(size, nbytes, seconds * (size - 1) / size), "this counts 2P"),
    ("09.fit", means_of_the_ends, "the smallest and the largest size alone"),
    ("09.fit", largest_only, "2(P − 1)/P of n"),
    ("09.fit", a_dict, "expected (latency, bandwidth)"),
    ("09.fit", lambda size, nbytes, seconds: (np.nan, 1.0), "expected (latency, bandwidth)"),
    ("09.fit", a_line_of_logarithms, "a straight line through logarithms is a power of n"),
    ("09.buffering", relies_on_buffering, "rank 0 waits"),
    ("09.buffering", one_after_the_other, "but a chain"),
    ("09.buffering", around_the_ring, "the plate is no ring"),
    ("09.buffering", around_the_ring_and_thrown_away, "one row of each neighbour, and nothing else"),
    ("09.buffering", whole_plates, "more than a row"),
    ("09.buffering", far_rows, "a rank sends the far row"),
    ("09.buffering", above_is_below, "in each other's place"),
    ("09.buffering", one_neighbour_after_the_other, "or a rank serves its neighbours one after the other"),
    ("09.buffering", only_above, "right on ranks: 1; wrong on: 0"),
    ("09.buffering", from_everybody, "comm.all_gather did the work"),
]


@pytest.mark.parametrize(
    ("name", "answer", "said"), WRONG, ids=[f"{n[3:]}-{answer.__name__}" for n, answer, _ in WRONG]
)
def test_a_wrong_answer_is_refused_and_explained(name, answer, said):
    assert said in refused(name, answer)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda latency, bandwidth: (latency, 1 / bandwidth), "seconds a byte"),
        (lambda latency, bandwidth: (latency, bandwidth / 1e9), "the bandwidth is in gigabytes a second"),
        (lambda latency, bandwidth: (latency * 1e6, bandwidth), "the latency is in microseconds"),
        (lambda latency, bandwidth: (latency, -bandwidth), ""),
        (lambda latency, bandwidth: (latency, 0.0), ""),
    ],
)
def test_a_bandwidth_is_told_its_own_cause_and_none_where_none_fits(change, cause):
    text = refused("09.fit", lambda *given: change(*fit(*given)))
    assert ("likely cause: " in text) == bool(cause)
    assert cause in text


def test_a_time_divided_by_something_else_is_told_no_cause_that_is_not_its_own():
    assert "likely cause" not in refused("09.fit", divided_by_the_ranks)


def test_the_commonest_slip_not_to_divide_is_told_on_ranks_where_2_and_2_times_p_minus_1_differ():
    text = refused("09.fit", not_divided)
    assert "with 3 ranks" in text
    assert "half" not in text
