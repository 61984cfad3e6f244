"""All-reduce times in plain seconds: the curves are those of the clock, and the crossing is where both meet."""

import numpy as np
import pytest

from parlab import views
from parlab.views.world.all_reduce_seconds import BANDWIDTH, LATENCY, crosses_at, ways
from parlab.world import Link
from parlab.world.collectives import (
    rabenseifner_all_reduce_cost,
    recursive_doubling_all_reduce_cost,
    ring_all_reduce_cost,
)
from tests.views.drawn import title

COSTS = {
    "ring": ring_all_reduce_cost,
    "recursive_doubling": recursive_doubling_all_reduce_cost,
    "rabenseifner": rabenseifner_all_reduce_cost,
}


def curves(ranks, latency=LATENCY):
    """The drawn curves by name: (bytes, picoseconds)."""
    (axes,) = views.all_reduce_seconds(ranks, latency).axes
    return {line.get_gid(): line.get_data() for line in axes.lines if line.get_gid() in ways(ranks)}


@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
@pytest.mark.parametrize("name", COSTS)
def test_a_curve_has_the_times_of_the_librarys_cost_on_equal_links(ranks, name):
    nbytes, drawn = curves(ranks)[name]
    for length in (ranks * 1024, ranks * 16 * 1024):  # equal pieces for the ring, and for Rabenseifner's
        cost = COSTS[name](ranks, length, 8, Link(LATENCY, BANDWIDTH))
        # a curve is a straight line of the bytes; the cost rounds each message to a picosecond
        assert np.interp(8 * length, nbytes, drawn) == pytest.approx(cost.picoseconds, abs=2 * ranks)


def test_the_double_tree_takes_2_log2_p_latencies_and_sends_2_n():
    nbytes, drawn = curves(16, 9.6e-6)["tree"]
    assert drawn == pytest.approx(1e12 * (8 * 9.6e-6 + 2 * nbytes / 25e9), rel=1e-9)


def test_two_ranks_send_1_n_in_a_double_tree_and_100_mb_take_4_02_ms():
    rows = {line[:25].strip(): line.split() for line in str(views.all_reduce_seconds(2, 9.6e-6)).splitlines()[2:]}
    assert rows["NCCL's double tree, about"][-6:] == ["1", "n", "19.6", "µs", "4.02", "ms"]


def test_the_crossing_of_64_ranks_is_357_kb_with_9_6_us_and_100_kb_with_2_7():
    """6α + 6nβ = 12α + 126/64 nβ."""
    assert crosses_at(64, 9.6e-6) == pytest.approx(6 / (6 - 126 / 64) * 9.6e-6 * 25e9)
    assert crosses_at(64, 9.6e-6) == pytest.approx(357e3, rel=1e-2)
    assert crosses_at(64, 2.7e-6) == pytest.approx(100e3, rel=1e-2)


def test_the_crossing_of_8_ranks_is_576_kb_and_goes_with_the_latency():
    """3α + 3nβ = 6α + 1.75nβ at n = 2.4 α/β."""
    assert crosses_at(8, 9.6e-6) == pytest.approx(2.4 * 9.6e-6 * 25e9)
    assert crosses_at(8, 2 * 9.6e-6) == pytest.approx(1.152e6)
    (axes,) = views.all_reduce_seconds(8, 9.6e-6).axes
    (diamond,) = (line for line in axes.lines if line.get_gid() == "crossing")
    (x,), (y,) = diamond.get_data()
    assert (x, y) == pytest.approx((576e3, 1e12 * (3 * 9.6e-6 + 3 * 576e3 / 25e9)))


def test_two_ranks_have_no_crossing_and_without_latency_few_bytes_win():
    assert title(views.all_reduce_seconds(2)) == "2 ranks: few steps win at every size"
    assert title(views.all_reduce_seconds(8, 0)) == "8 ranks: few bytes win"
