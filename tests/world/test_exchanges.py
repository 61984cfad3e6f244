"""Collectives that know nodes, and the circulant all-reduce: values against NumPy; messages, bytes inside and between
nodes, and picoseconds against the closed forms, written here again without looking at the code.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil, log2

import numpy as np
import pytest

from parlab.arrays import asarray, to_numpy
from parlab.world import CLASSROOM, Cluster, Link, MismatchError, WorldError, collectives, per_rank, run
from parlab.world.collectives import circulant, rings, two_levels
from parlab.world.collectives.common import pieces_of
from tests.libraries import EACH_LIBRARY

SIZES = range(1, 18)
NODES = [(size, g) for size in SIZES for g in range(1, size + 1) if size % g == 0]
EVEN = Cluster.uniform(latency=3e-7, bandwidth=7e9)
INTRA, INTER = Link(1e-6, 5e9), Link(4e-6, 1e9)


def nodes_of(g):
    return Cluster("nodes", CLASSROOM.device, g, INTRA, INTER)


def draw(size, *shape):
    """One array a rank; whole numbers, so that every order of summation gives the same bits."""
    return list(np.random.default_rng([size, *shape]).integers(-8, 9, (size, *shape)).astype(float))


def counted(done, g):
    """Messages, bytes and bytes between nodes of each rank, and the makespan."""
    timeline, between = done.timeline, [0] * done.timeline.size
    for t in timeline.transfers:
        between[t.src] += t.nbytes if t.src // g != t.dst // g else 0
    ranks = range(timeline.size)
    return [timeline.messages(r) for r in ranks], [timeline.bytes_sent(r) for r in ranks], timeline.makespan, between


def assert_cost(done, g, cost):
    assert counted(done, g) == (cost.messages, cost.nbytes, cost.picoseconds, cost.between)


def gathered(comm, own, g):
    total = np.full(own.size * comm.size, np.nan)
    blocks = pieces_of([own.size] * comm.size)
    total[blocks[comm.rank]] = own
    two_levels.hierarchical_all_gather(comm, total, blocks, g)
    return total


def scattered(comm, x, g, combine=np.add):
    total, blocks = x.copy(), pieces_of([x.size // comm.size] * comm.size)
    two_levels.hierarchical_reduce_scatter(comm, total, blocks, combine, g)
    return total[blocks[comm.rank]]


@pytest.mark.parametrize(("size", "g"), NODES)
def test_two_level_all_gather_takes_k_plus_g_minus_2_messages_and_k_minus_1_blocks_leave_the_node(size, g):
    xs, k, p = draw(size, 3), size // g, 24
    done = run(gathered, size, per_rank(xs), g, cluster=nodes_of(g))
    for result in done.results:
        np.testing.assert_array_equal(result, np.concatenate(xs))
    time = (k - 1) * INTER.picoseconds(p) + (g - 1) * INTRA.picoseconds(k * p)
    sent, between = (k - 1) * p + (g - 1) * k * p, (k - 1) * p
    assert counted(done, g) == ([k + g - 2] * size, [sent] * size, time, [between] * size)
    assert_cost(done, g, two_levels.hierarchical_all_gather_cost(size, p, g, INTRA, INTER))


@pytest.mark.parametrize(("size", "g"), NODES)
def test_two_level_reduce_scatter_takes_k_plus_g_minus_2_messages_and_k_minus_1_blocks_leave_the_node(size, g):
    xs, k, p = draw(size, 2 * size), size // g, 16
    done = run(scattered, size, per_rank(xs), g, cluster=nodes_of(g))
    np.testing.assert_array_equal(np.concatenate(done.results), np.sum(xs, axis=0))
    time = (g - 1) * INTRA.picoseconds(k * p) + (k - 1) * INTER.picoseconds(p)
    sent, between = (k - 1) * p + (g - 1) * k * p, (k - 1) * p
    assert counted(done, g) == ([k + g - 2] * size, [sent] * size, time, [between] * size)
    assert_cost(done, g, two_levels.hierarchical_reduce_scatter_cost(size, p, g, INTRA, INTER))


def exchanged(comm, x, g, name):
    pieces = [x[block] for block in pieces_of([x.size // comm.size] * comm.size)]
    return getattr(collectives, f"{name}_all_to_all")(comm, pieces, g)


@pytest.mark.parametrize(("size", "g"), NODES)
def test_two_level_all_to_all_sends_g_minus_1_times_k_pieces_inside_and_k_minus_1_times_g_between(size, g):
    xs, k, p = draw(size, 2 * size), size // g, 16
    done = run(exchanged, size, per_rank(xs), g, "hierarchical", cluster=nodes_of(g))
    for rank, result in enumerate(done.results):
        np.testing.assert_array_equal(np.stack(result), np.stack(xs).reshape(size, size, 2)[:, rank])
    time = (g - 1) * INTRA.picoseconds(k * p) + (k - 1) * INTER.picoseconds(g * p)
    between = (k - 1) * g * p
    assert counted(done, g) == ([k + g - 2] * size, [(g - 1) * k * p + between] * size, time, [between] * size)
    assert_cost(done, g, two_levels.hierarchical_all_to_all_cost(size, p, g, INTRA, INTER))


@pytest.mark.parametrize(("size", "g"), NODES)
def test_grid_all_to_all_takes_g_minus_1_steps_inside_and_N_minus_g_between_and_no_step_mixes_links(size, g):
    xs, p = draw(size, 2 * size), 16
    done = run(exchanged, size, per_rank(xs), g, "grid", cluster=nodes_of(g))
    for rank, result in enumerate(done.results):
        np.testing.assert_array_equal(np.stack(result), np.stack(xs).reshape(size, size, 2)[:, rank])
    time = (g - 1) * INTRA.picoseconds(p) + (size - g) * INTER.picoseconds(p)
    between = (size - g) * p
    assert counted(done, g) == ([size - 1] * size, [(size - 1) * p] * size, time, [between] * size)
    assert_cost(done, g, collectives.grid_all_to_all_cost(size, p, g, INTRA, INTER))
    crossing = {}
    for t in done.timeline.transfers:
        crossing.setdefault(t.start, set()).add(t.src // g != t.dst // g)
    assert all(len(kinds) == 1 for kinds in crossing.values())


TIMES = {(8, 4): (9.0, 10.2, 24.9), (15, 5): (16.0, 19.2, 58.4), (6, 3): (7.8, 8.6, 18.4), (16, 8): (13.8, 16.6, 50.9)}


@pytest.mark.parametrize(("size", "g"), TIMES)
def test_microseconds_of_gather_all_to_all_and_grid_of_1000_bytes_on_two_links_as_tried_by_hand(size, g):
    links = Link(1e-6, 10e9), Link(5e-6, 2.5e9)  # of lesson 03
    costs = [
        getattr(collectives, f"{name}_cost")(size, 1000, g, *links).picoseconds / 1e6
        for name in ("hierarchical_all_gather", "hierarchical_all_to_all", "grid_all_to_all")
    ]
    assert [round(cost, 1) for cost in costs] == pytest.approx(TIMES[size, g], abs=0.1)


@pytest.mark.parametrize(("size", "g"), NODES)
def test_g_rings_send_2_N_minus_1_m_between_nodes_and_as_much_on_each_of_g_minus_1_turns_inside(size, g):
    m = 16  # bytes of one of the N blocks of one of the g rings
    xs = draw(size, 2 * size * g)
    done = run(lambda comm, x: rings.rings_all_reduce(comm, x, np.add, g), size, per_rank(xs), cluster=nodes_of(g))
    for result in done.results:
        np.testing.assert_array_equal(result, np.sum(xs, axis=0))
    steps = 2 * (size - 1)
    crossing = INTER if size > g else INTRA
    time = steps * (crossing.picoseconds(m) + (g - 1) * INTRA.picoseconds(m))
    between = steps * m if size > g else 0
    assert counted(done, g) == ([steps * g] * size, [steps * g * m] * size, time, [between] * size)
    assert_cost(done, g, rings.rings_all_reduce_cost(size, 2 * size * g, 8, g, INTRA, INTER))


@pytest.mark.parametrize(
    ("size", "g"), [pytest.param(*case, marks=pytest.mark.slow if case[0] > 10 else ()) for case in NODES]
)
def test_g_rings_of_uneven_blocks_send_what_their_cost_says_and_take_at_most_the_longest_blocks_time(size, g):
    for length in (0, 1, size + 2, size * g + 1):
        xs = draw(size, length)
        done = run(lambda comm, x: rings.rings_all_reduce(comm, x, np.add, g), size, per_rank(xs), cluster=nodes_of(g))
        for result in done.results:
            np.testing.assert_array_equal(result, np.sum(xs, axis=0))
        cost = rings.rings_all_reduce_cost(size, length, 8, g, INTRA, INTER)
        messages, nbytes, time, between = counted(done, g)
        assert (messages, nbytes, between) == (cost.messages, cost.nbytes, cost.between)
        assert time <= cost.picoseconds


def posted_at_once(comm, x, combine, g):
    """The rings with all turns of a step posted together, as NCCL's channels run."""
    total = x.copy()
    parts = pieces_of([x.size // g] * g)
    places = [rings.ring_place(comm.rank, comm.size, ring, part, g) for ring, part in enumerate(parts)]
    for phase in ("add", "take"):
        for step in range(comm.size - 1):
            back = 1 if phase == "add" else 0
            posts = []
            for place in places:
                sent = place.pieces[(place.position - step - back) % comm.size]
                received = place.pieces[(place.position - step - back - 1) % comm.size]
                going = comm.isend(total[sent].copy(), place.after)
                posts.append((received, going, comm.irecv(place.before, total[received])))
            for received, going, coming in posts:
                arrived = coming.wait()
                total[received] = combine(total[received], arrived) if phase == "add" else arrived
                going.wait()
    return total


PORTS = {(4 << 20, 1): 1616, (4 << 20, "a level"): 936, (512 << 10, "a level"): 248}


@pytest.mark.parametrize(("nbytes", "ports"), PORTS)
def test_4_rings_of_16_ranks_take_936_us_with_a_port_a_level_and_1616_with_one_port(nbytes, ports):
    cluster = Cluster("nodes", CLASSROOM.device, 4, Link(1e-6, 10e9), Link(5e-6, 2.5e9), ports)
    x = np.ones(nbytes // 8)
    program = rings.rings_all_reduce if ports == 1 else posted_at_once
    done = run(program, 16, x, np.add, 4, cluster=cluster)
    np.testing.assert_array_equal(done.results[7], 16 * x)
    assert done.timeline.makespan / 1e6 == pytest.approx(PORTS[nbytes, ports], abs=1)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "all_to_all", "all_reduce"])
def test_comm_takes_each_exchange_by_name_and_gives_what_the_default_gives(name):
    algorithms = {
        "all_gather": ("hierarchical", "circulant"),
        "reduce_scatter": ("hierarchical", "circulant"),
        "all_to_all": ("hierarchical", "grid"),
        "all_reduce": ("hierarchical", "rings", "circulant"),
    }

    def program(comm, x, algorithm=None):
        nodes = {"ranks_per_node": 3} if algorithm in ("hierarchical", "rings", "grid") else {}
        axes = {"split_axis": 1, "concat_axis": 0} if name == "all_to_all" else {}
        return getattr(comm, name)(x, algorithm=algorithm, **axes, **nodes)

    xs = per_rank(draw(6, 12, 6))
    expected = run(program, 6, xs).results
    for algorithm in algorithms[name]:
        for found, array in zip(run(program, 6, xs, algorithm).results, expected, strict=True):
            np.testing.assert_array_equal(found, array)


def test_ranks_told_of_other_nodes_are_a_mismatch():
    with pytest.raises(MismatchError, match="ranks_per_node=2"):
        run(
            lambda comm: comm.all_gather(np.ones(2), algorithm="hierarchical", ranks_per_node=2 + 2 * (comm.rank == 1)),
            4,
        )


@pytest.mark.parametrize("size", SIZES)
def test_circulant_takes_2_ceil_log2_N_steps_and_sends_2_n_N_minus_1_over_N_for_every_N(size):
    n = 8 * 3 * size
    xs = draw(size, 3 * size)
    done = run(lambda comm, x: circulant.circulant_all_reduce(comm, x, np.add), size, per_rank(xs), cluster=EVEN)
    for result in done.results:
        np.testing.assert_array_equal(result, np.sum(xs, axis=0))
    steps = ceil(log2(size))
    messages, nbytes, time, _ = counted(done, size)
    assert messages == [2 * steps] * size
    assert nbytes == [2 * n * (size - 1) // size] * size
    expected = 2 * steps * 3e-7 + 2 * (size - 1) / size * n / 7e9
    assert time == pytest.approx(expected * 1e12, abs=2 * steps)  # each message is rounded to a picosecond
    assert time == circulant.circulant_all_reduce_cost(size, 3 * size, 8, EVEN.intra).picoseconds


@pytest.mark.parametrize("size", SIZES)
def test_circulant_of_uneven_blocks_equals_numpy_and_its_cost_to_the_picosecond(size):
    for length in (0, 1, size - 1, size + 2, 2 * size + 1):
        xs = draw(size, length)
        done = run(lambda comm, x: circulant.circulant_all_reduce(comm, x, np.add), size, per_rank(xs), cluster=EVEN)
        for result in done.results:
            np.testing.assert_array_equal(result, np.sum(xs, axis=0))
        cost = circulant.circulant_all_reduce_cost(size, length, 8, EVEN.intra)
        assert counted(done, size)[:3] == (cost.messages, cost.nbytes, cost.picoseconds)


@pytest.mark.parametrize(("size", "circulant_us", "ring_us", "rabenseifner_us"), [
    (7, 99.75, 105.75, 197.4), (12, 179.9, 193.9, 359.6)])  # fmt: skip
def test_8000_bytes_a_block_at_1_us_and_1024_MB_a_second_take_the_published_times(
    size, circulant_us, ring_us, rabenseifner_us
):
    link = Link(1e-6, 1.024e9)
    times = [
        circulant.circulant_all_reduce_cost(size, 1000 * size, 8, link),
        collectives.ring_all_reduce_cost(size, 1000 * size, 8, link),
        collectives.rabenseifner_all_reduce_cost(size, 1000 * size, 8, link),
    ]
    found = [cost.picoseconds / 1e6 for cost in times]
    assert found == pytest.approx([circulant_us, ring_us, rabenseifner_us], abs=0.1)


@pytest.mark.parametrize("size", [3, 6, 12])
def test_every_rank_holds_the_same_bits_even_where_sums_round(size):
    xs = [np.random.default_rng([size, rank]).standard_normal(101) for rank in range(size)]
    for all_reduce in (
        lambda comm, x: circulant.circulant_all_reduce(comm, x, np.add),
        lambda comm, x: rings.rings_all_reduce(comm, x, np.add, 3),
    ):
        results = run(all_reduce, size, per_rank(xs)).results
        assert len({result.tobytes() for result in results}) == 1
        np.testing.assert_allclose(results[0], np.sum(xs, axis=0), rtol=1e-12)


@pytest.mark.parametrize("xp", EACH_LIBRARY[1:])
def test_arrays_of_other_libraries_go_through_every_exchange(xp):
    xs = draw(6, 12)
    own = per_rank([asarray(x, xp) for x in xs])

    def program(comm, x):
        blocks = pieces_of([2] * 6)
        gather, scatter = xp.zeros(12), xp.asarray(x, copy=True)
        gather[blocks[comm.rank]] = x[blocks[comm.rank]]
        two_levels.hierarchical_all_gather(comm, gather, blocks, 3)
        two_levels.hierarchical_reduce_scatter(comm, scatter, blocks, xp.add, 3)
        pieces = two_levels.hierarchical_all_to_all(comm, [x[block] for block in blocks], 2)
        sums = rings.rings_all_reduce(comm, x, xp.add, 2)
        return gather, scatter[blocks[comm.rank]], pieces[5], sums, circulant.circulant_all_reduce(comm, x, xp.add)

    for rank, (gather, scatter, last, *sums) in enumerate(run(program, 6, own).results):
        block = slice(2 * rank, 2 * rank + 2)
        np.testing.assert_array_equal(
            to_numpy(gather), np.concatenate([x[2 * r : 2 * r + 2] for r, x in enumerate(xs)])
        )
        np.testing.assert_array_equal(to_numpy(scatter), np.sum(xs, axis=0)[block])
        np.testing.assert_array_equal(to_numpy(last), xs[5][block])
        for total in sums:
            np.testing.assert_array_equal(to_numpy(total), np.sum(xs, axis=0))


@pytest.mark.parametrize(("size", "g"), NODES)
def test_uneven_pieces_cross_to_each_other_node_once_at_once_and_in_the_background(size, g):
    """Pieces of 0, 1, 2, ... elements: all ranks together send N − 1 times all of them, (k − 1) times between nodes."""
    counts = [(3 * rank) % 5 for rank in range(size)]
    total, k = sum(counts), size // g
    xs = draw(size, total)
    starts = np.concatenate([[0], np.cumsum(counts)])
    own = [np.arange(start, stop) for start, stop in pairwise(starts)]

    def program(comm, x, mine, background):
        how = {"counts": counts, "ranks_per_node": g}
        if background:
            return comm.iall_gather(mine, **how).wait(), comm.ireduce_scatter(x, **how).wait()
        how["algorithm"] = "hierarchical"
        return comm.all_gather(mine, **how), comm.reduce_scatter(x, **how)

    for background in (False, True):
        done = run(program, size, per_rank(xs), per_rank(own), background, cluster=nodes_of(g))
        gathered, scattered = zip(*done.results, strict=True)
        assert all(np.array_equal(x, np.arange(total)) for x in gathered)
        assert np.array_equal(np.concatenate(scattered), np.sum(xs, axis=0))
        _, sent, _, between = counted(done, g)
        assert (sum(sent), sum(between)) == (2 * (size - 1) * total * 8, 2 * (k - 1) * total * 8)


def test_an_all_reduce_in_the_background_is_hierarchical_with_ranks_per_node():
    xs = draw(6, 7)
    done = run(lambda comm, x: comm.iall_reduce(x, ranks_per_node=3).wait(), 6, per_rank(xs), cluster=nodes_of(3))
    assert all(np.array_equal(x, np.sum(xs, axis=0)) for x in done.results)
    assert_cost(done, 3, two_levels.hierarchical_all_reduce_cost(6, 7, 8, 3, INTRA, INTER))


# Mutants: the usual mistakes, each applied alone; values, counts or the clock must tell


def check_gather():
    test_two_level_all_gather_takes_k_plus_g_minus_2_messages_and_k_minus_1_blocks_leave_the_node(6, 3)


def check_scatter():
    test_two_level_reduce_scatter_takes_k_plus_g_minus_2_messages_and_k_minus_1_blocks_leave_the_node(6, 3)


def check_all_to_all():
    test_two_level_all_to_all_sends_g_minus_1_times_k_pieces_inside_and_k_minus_1_times_g_between(6, 3)


def check_rings():
    test_g_rings_send_2_N_minus_1_m_between_nodes_and_as_much_on_each_of_g_minus_1_turns_inside(6, 3)


def check_circulant():
    test_circulant_takes_2_ceil_log2_N_steps_and_sends_2_n_N_minus_1_over_N_for_every_N(7)


def swapped_levels(comm, g, levels=two_levels.levels):
    return levels(comm, comm.size // g)


def floored_halvings(size):
    steps, window = [], size
    while window > 1:
        steps.append((window, window // 2))
        window //= 2
    return steps


def same_place(rank, size, ring, part, g, ring_place=rings.ring_place):
    """Every ring crosses where ring 0 does."""
    return ring_place(rank, size, 0, part, g)


def one_ring_a_turn(rank, places):
    """A rank sends and receives on the same ring in a turn, so that its neighbour is on another."""
    g = len(places)
    return [(places[(rank + 1 + turn) % g],) * 2 for turn in range(g)]


def without_sums(comm, total, blocks, combine):
    """The sums inside the node are forgotten."""


MUTANTS = [
    (two_levels, "levels", swapped_levels, check_gather),
    (two_levels, "levels", swapped_levels, check_scatter),
    (two_levels, "levels", swapped_levels, check_all_to_all),
    (two_levels, "ring_reduce_scatter", without_sums, check_scatter),
    (rings, "ring_place", same_place, check_rings),
    (rings, "_turns", one_ring_a_turn, check_rings),
    (circulant, "halvings", floored_halvings, check_circulant),
]


@pytest.mark.parametrize(("module", "name", "mutant", "check"), MUTANTS)
def test_each_of_7_mutants_is_caught(monkeypatch, module, name, mutant, check):
    check()
    monkeypatch.setattr(module, name, mutant)
    with pytest.raises((AssertionError, WorldError, ValueError, IndexError)):
        check()
