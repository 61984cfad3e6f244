"""The bars are the bytes counted, in and out."""

import numpy as np

from parlab import run, views
from tests.views.drawn import boxes, check_refused, check_text, title


def naive(comm, x):
    """Rank 0 receives all, adds, and sends the sum to all."""
    if comm.rank:
        comm.send(x, 0)
        return comm.recv(0, like=x)
    total = sum([comm.recv(rank, like=x) for rank in range(1, comm.size)], x)
    for rank in range(1, comm.size):
        comm.send(total, rank)
    return total


def test_naive_and_ring_send_48_kib_but_a_port_passes_24_kib_or_12():
    x = np.ones(1024)
    runs = {"naive": run(naive, 4, x), "ring": run(lambda comm, x: comm.all_reduce(x), 4, x)}
    figure = views.bytes_in_and_out(runs)
    assert title(figure) == "48.0 KiB in all; through the busiest port 24.0 KiB (naive), 12.0 KiB (ring)"
    assert [round(box[3]) for box in boxes(figure, "receive naive")] == [24576, 8192, 8192, 8192]
    assert [round(box[3]) for box in boxes(figure, "send ring")] == [12288] * 4
    check_text(figure)


def test_no_runs_or_too_many_are_refused():
    one = run(lambda comm: None, 1)
    check_refused(lambda: views.bytes_in_and_out({}), "runs={}", "1 to 3")
    check_refused(lambda: views.bytes_in_and_out(dict.fromkeys("abcd", one)), "runs={'a'", "1 to 3")
