"""Curves are the closed forms over the best, dots the runs, and the crossings lie where the closed forms meet."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab import Cluster, run, views
from parlab.views.all_reduce import clock as all_reduce_clock
from parlab.views.all_reduce import crossings
from parlab.views.all_reduce.clock import STEPS, all_reduce_time
from parlab.views.drawing import theme
from parlab.world import CLASSROOM, Device, Link
from parlab.world.collectives import (
    circulant_all_reduce_cost,
    hierarchical_all_reduce_cost,
    rabenseifner_all_reduce_cost,
    recursive_doubling_all_reduce_cost,
    ring_all_reduce_cost,
)
from tests.views.drawn import check_text

COSTS = {
    "ring": ring_all_reduce_cost,
    "recursive_doubling": recursive_doubling_all_reduce_cost,
    "rabenseifner": rabenseifner_all_reduce_cost,
    "circulant": circulant_all_reduce_cost,
}
UNIFORM = Cluster.uniform(1e-6, 1e10)


def all_reduce(comm, n, algorithm, ranks_per_node=None):
    comm.all_reduce(np.ones(n), algorithm=algorithm, ranks_per_node=ranks_per_node)


def nodes_of(ranks_per_node):
    return Cluster("nodes", Device("d", 1e12, 1e11), ranks_per_node, Link(1e-6, 10e9), Link(5e-6, 1e9))


@pytest.mark.parametrize("algorithm", COSTS)
@pytest.mark.parametrize("size", range(2, 18))
def test_on_equal_links_the_clock_shows_the_closed_form(algorithm, size):
    lengths = [size * 16, size * 16 * 1000]  # equal pieces for the ring, and for Rabenseifner's power of two
    times = all_reduce_time(algorithm, size, 8 * np.array(lengths), UNIFORM)
    costs = [COSTS[algorithm](size, length, 8, UNIFORM.intra).picoseconds for length in lengths]
    assert times == pytest.approx(costs, abs=2 * size)  # the closed form rounds each message to a picosecond


@pytest.mark.parametrize(("nodes", "inside"), [(2, 2), (2, 8), (3, 4), (4, 3), (1, 4)])
def test_the_hierarchical_clock_shows_the_closed_form(nodes, inside):
    cluster, size = nodes_of(inside), nodes * inside
    cost = hierarchical_all_reduce_cost(size, 960, 8, inside, cluster.intra, cluster.inter)
    (time,) = all_reduce_time("hierarchical", size, np.array([960 * 8]), cluster)
    assert time == pytest.approx(cost.picoseconds, abs=2 * size)


@settings(max_examples=30)
@given(
    algorithm=st.sampled_from(sorted(COSTS)),
    size=st.integers(2, 17),
    inside=st.integers(1, 9),
    pieces=st.integers(1, 40),
)
def test_on_any_nodes_the_clock_shows_the_time_of_a_run(algorithm, size, inside, pieces):
    length = size * 16 * pieces
    (time,) = all_reduce_time(algorithm, size, np.array([8 * length]), nodes_of(inside))
    measured = run(all_reduce, size, length, algorithm).on(nodes_of(inside)).makespan
    assert time == pytest.approx(measured, abs=4 * size)


@pytest.mark.parametrize(
    ("one", "other", "size", "meet"),
    [
        # α = 1 µs, β = 0.1 ns a byte. 3(α + nβ) = 6α + 14/8 nβ: n = 3α / 1.25β
        ("recursive_doubling", "rabenseifner", 8, 24_000),
        # 2(α + nβ) = 6α + 6/4 nβ: n = 4α / 0.5β
        ("recursive_doubling", "ring", 4, 80_000),
        # 4(α + nβ) = 30α + 30/16 nβ: n = 26α / 2.125β
        ("recursive_doubling", "ring", 16, 26 / 2.125 * 10_000),
        # N = 17: 10α + (2 + 2·15/16)nβ = 32α + 32/17 nβ
        ("rabenseifner", "ring", 17, 22 / (2 + 30 / 16 - 32 / 17) * 10_000),
    ],
)
def test_the_crossing_lies_where_the_closed_forms_meet(one, other, size, meet):
    assert all_reduce_clock.crossing(one, other, size, 64, 2**26, UNIFORM) == pytest.approx(meet, abs=0.01)


def test_the_diamond_stands_on_the_crossing_24000_bytes_and_the_strip_changes_colour_there():
    figure = views.all_reduce_times(size=8, cluster=UNIFORM)
    (diamond,) = figure.findobj(lambda artist: artist.get_gid() == "crossing")
    (x,), (y,) = diamond.get_data()
    assert x == pytest.approx(24_000, abs=0.01)
    assert y == 1
    strips = figure.findobj(lambda artist: (artist.get_gid() or "").startswith("fastest"))
    ends = [(strip.get_gid(), *np.sort(strip.get_paths()[0].vertices[:, 0])[[0, -1]]) for strip in strips]
    assert ends[0][:2] == ("fastest: recursive_doubling", 64)
    assert ends[0][2] == ends[1][1] == x
    assert ends[1][::2] == ("fastest: circulant", 2**26)


def test_a_strip_too_narrow_for_the_sentence_has_the_name_alone():
    links = Cluster.uniform(latency=1e-6, bandwidth=1.024e9)
    (axes,) = views.all_reduce_times(size=12, cluster=links).axes  # doubling up to 970 of 64 B to 64 MiB
    words = [text.get_text() for text in axes.texts]
    assert words == ["recursive doubling", "970 B", "circulant is fastest"]


def test_the_headline_says_which_is_fastest_up_to_which_size():
    links = Cluster.uniform(latency=1e-6, bandwidth=1.024e9)
    headline = views.all_reduce_times(size=12, cluster=links).texts[0].get_text()
    assert headline == "12 ranks: recursive doubling wins up to 970 B, then circulant"


def test_the_headline_names_both_where_two_are_equally_fast():
    links = Cluster.uniform(latency=1e-6, bandwidth=10e9)
    headline = views.all_reduce_times(size=8, cluster=links).texts[0].get_text()
    assert headline.endswith("KiB, then circulant = halving and doubling")


def test_curves_and_dots_are_times_over_the_best_and_dots_lie_on_the_curves():
    lengths = (64, 4096, 65536)
    runs = {name: {8 * n: run(all_reduce, 8, n, name) for n in lengths} for name in COSTS}
    axes = views.all_reduce_times(runs).axes[0]
    at = np.array([8 * n for n in lengths])
    best = np.min([all_reduce_time(name, 8, at, CLASSROOM) for name in COSTS], axis=0)
    for name in COSTS:
        (dots,) = axes.findobj(lambda artist, name=name: artist.get_gid() == f"run {name}")
        assert dots.get_xdata().tolist() == at.tolist()
        assert dots.get_ydata() == pytest.approx([runs[name][8 * n].timeline.makespan for n in lengths] / best)
        (curve,) = axes.findobj(lambda artist, name=name: artist.get_gid() == f"formula {name}")
        assert curve.get_color() == dots.get_color() == theme.ALGORITHMS[name].color
        x = curve.get_xdata()
        fastest = np.min([all_reduce_time(one, 8, x, CLASSROOM) for one in COSTS], axis=0)
        assert curve.get_ydata() == pytest.approx(all_reduce_time(name, 8, x, CLASSROOM) / fastest)
        assert min(curve.get_ydata()) >= 1


@pytest.mark.parametrize("size", range(2, 41))
def test_the_ring_is_ahead_for_no_size_and_no_number_of_ranks(size):
    sizes = np.geomspace(64, 2**26, 60)
    circulant, ring = (all_reduce_time(name, size, sizes, UNIFORM) for name in ("circulant", "ring"))
    assert (ring >= circulant * (1 - 1e-12)).all()
    assert (ring > circulant).all() == (size > 3)  # 2 and 3 ranks take as many steps by both


def circulants_in_nodes(comm, x):
    node, peers = comm.split(comm.rank // 8), comm.split(comm.rank % 8)
    piece = node.reduce_scatter(x, algorithm="circulant")
    return node.all_gather(peers.all_reduce(piece), algorithm="circulant")


def test_two_levels_with_circulants_inside_nodes_pass_recursive_doubling_between_7_5_and_8_KiB():
    for kib, ahead in ((7.5, False), (8, True)):
        x = np.ones(int(kib * 128))
        done = run(circulants_in_nodes, 16, x, cluster=CLASSROOM)
        assert (done.results[0] == 16).all()
        doubling = all_reduce_time("recursive_doubling", 16, np.array([x.nbytes]), CLASSROOM)[0]
        assert (done.timeline.makespan < doubling) == ahead


def test_times_of_7_and_12_ranks_are_those_worked_out_by_hand():
    for size, times in ((7, (99.75, 105.75, 197.4)), (12, (179.875, 193.875, 359.56))):
        cluster = Cluster.uniform(1e-6, 1.024e9)  # pieces of 8000 bytes
        names = ("circulant", "ring", "rabenseifner")
        found = [all_reduce_time(name, size, np.array([8000 * size]), cluster)[0] / 1e6 for name in names]
        assert found == pytest.approx(times, abs=0.05)


def test_a_run_of_8_bytes_and_one_of_128_mib_widen_the_axis():
    done = run(all_reduce, 2, 2, "ring")
    axes = views.all_reduce_times({"ring": {8: done, 2**27: done}}).axes[0]
    assert axes.get_xlim() == (8, 2**27)


def test_the_upright_axis_names_the_doublings_up_to_the_slowest():
    axes = views.all_reduce_times(size=16, cluster=UNIFORM).axes[0]
    low, high = axes.get_ylim()
    assert low < 1
    assert [ratio for ratio in axes.get_yticks() if low <= ratio <= high] == [1, 2, 4, 8]  # 30 steps against 4


def test_another_cluster_moves_dots_and_curves_alike_without_running_again():
    done = run(all_reduce, 4, 4096, "ring")
    axes = views.all_reduce_times({"ring": {32768: done}}, cluster=UNIFORM).axes[0]
    (dots,) = axes.findobj(lambda artist: artist.get_gid() == "run ring")
    assert done.on(UNIFORM).makespan == 6 * 1_819_200
    assert dots.get_ydata() == pytest.approx([1])  # the only one is the best


@pytest.mark.parametrize(
    ("size", "cluster"), [(2, UNIFORM), (8, Cluster.uniform(0, 1e9)), (16, Cluster.uniform(0, 3e9))]
)
def test_ring_and_rabenseifner_take_the_same_time_and_do_not_cross(size, cluster):
    figure = views.all_reduce_times(size=size, cluster=cluster, algorithms=["ring", "rabenseifner"])
    assert repr(figure).splitlines()[1:] == ["for small arrays, ring is fastest"]


def test_on_nodes_hierarchical_beats_all_for_large_arrays():
    assert repr(views.all_reduce_times(size=16)).splitlines()[-1] == "from 15.6 KiB on, hierarchical is fastest"


def test_the_legend_of_five_algorithms_with_runs_and_crossings_has_room():
    runs = {name: {2**14: run(all_reduce, 16, 2**11, name)} for name in COSTS}
    runs["hierarchical"] = {2**14: run(all_reduce, 16, 2**11, "hierarchical", 8)}
    check_text(views.all_reduce_times(runs))


def test_hierarchical_is_left_out_where_nodes_are_not_whole():
    axes = views.all_reduce_times(size=17).axes[0]
    assert not axes.findobj(lambda artist: artist.get_gid() == "formula hierarchical")


def test_a_ring_with_one_step_too_few_would_be_noticed(monkeypatch):
    def short(clock):
        for _ in range(2 * (clock.size - 1) - 1):
            clock.exchange((np.arange(clock.size) + 1) % clock.size, 1 / clock.size)

    monkeypatch.setitem(STEPS, "ring", short)
    with pytest.raises(AssertionError):
        test_on_equal_links_the_clock_shows_the_closed_form("ring", 4)


def test_winners_of_equal_times_are_the_first_named():
    times = {"ring": np.array([2.0, 2.0]), "rabenseifner": np.array([2.0, 2.0])}
    assert crossings.fastest_by_size(times, np.array([64, 128]), 2, UNIFORM) == [(64.0, "ring")]
