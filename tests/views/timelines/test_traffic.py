"""The bars are the bytes counted, the lines the closed form."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from parlab import run, views
from parlab.views.drawing import theme
from parlab.world import CLASSROOM
from parlab.world.collectives import ring_all_reduce_cost
from tests.views.drawn import artists, boxes, check_refused, check_text, nothing, ring, title


def lines(figure):
    (collection,) = artists(figure, "closed form")
    return [
        (segment[0][1], tuple(color))
        for segment, color in zip(collection.get_segments(), collection.get_colors(), strict=True)
    ]


@pytest.mark.parametrize("size", [1, 2, 5, 8, 17, 64])
def test_bars_are_the_bytes_counted_and_lines_the_closed_form(size):
    done = run(ring, size, np.ones(257))
    cost = ring_all_reduce_cost(size, 257, 8, CLASSROOM.intra)
    figure = views.bytes_sent(done, cost)
    assert [box[3] for box in boxes(figure, "bars")] == [done.timeline.bytes_sent(rank) for rank in range(size)]
    assert [height for height, _ in lines(figure)] == cost.nbytes
    assert "counted = closed form on every rank" in title(figure)


def test_a_wrong_formula_is_named_with_its_first_rank_and_drawn_in_red():
    done = run(ring, 4, np.ones(256))
    right = [done.timeline.bytes_sent(rank) for rank in range(4)]
    figure = views.bytes_sent(done, [*right[:2], right[2] + 8, right[3]])
    assert f"rank 2 sent {right[2]} bytes, not {right[2] + 8}" in title(figure)
    colors = [color for _, color in lines(figure)]
    assert colors[0] == colors[1] == colors[3] != colors[2]


def test_a_wrong_number_of_messages_is_named_too():
    done = run(ring, 4, np.ones(256))
    cost = ring_all_reduce_cost(4, 256, 8, CLASSROOM.intra)
    object.__setattr__(cost, "messages", [6, 6, 6, 7])
    assert "rank 3 sent 6 messages, not 7" in repr(views.bytes_sent(done, cost))


def test_each_bar_has_the_colour_of_its_rank():
    (bars,) = artists(views.bytes_sent(run(ring, 17, np.ones(64))), "bars")
    assert [to_hex(color).upper() for color in bars.get_facecolors()] == [theme.rank_color(rank) for rank in range(17)]


def test_a_run_without_messages_is_drawn():
    assert "0 B sent by 1 rank" in repr(views.bytes_sent(run(nothing, 1), 0))


def test_the_text_lists_messages_bytes_and_closed_form():
    done = run(ring, 2, np.ones(16))
    assert repr(views.bytes_sent(done, 128)).splitlines() == [
        "256 B sent by 2 ranks: counted = closed form on every rank",
        "rank messages          bytes    closed form",
        "   0        2            128            128",
        "   1        2            128            128",
    ]


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
