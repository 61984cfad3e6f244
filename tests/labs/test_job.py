"""Lesson 01's job: a gradient of 14 GB on the ports of DGX A100s takes the times of the closed forms."""

import re
from functools import partial

import pytest

from parlab import labs
from parlab.world import DGX_A100
from parlab.world.collectives import hierarchical_all_reduce_cost, rings_all_reduce_cost
from tests.views.drawn import check_refused

ALPHA, INSIDE = 9.6e-6, 3.4e-6  # seconds


def seconds(all_reduce, **where):
    return labs.gradient_job(all_reduce, work=0, **where).timeline.makespan / 1e12


def by(algorithm, ranks_per_node=None):
    return lambda comm, x: comm.all_reduce(x, algorithm=algorithm, ranks_per_node=ranks_per_node)


WAYS = {"one ring": by("ring"), "eight rings": by("rings", 8), "two levels": by("hierarchical", 8)}


def test_the_ring_adds_14_gb_on_8_lone_gpus_in_0_98_s_and_the_naive_way_in_5_6():
    assert seconds(by("ring")) == pytest.approx(14 * (14 / 8 / 25 + ALPHA), rel=1e-9)
    assert seconds(labs.naive_all_reduce) == pytest.approx(10 * (14 / 25 + ALPHA), rel=1e-9)


@pytest.mark.parametrize("all_reduce", [labs.naive_all_reduce, by("ring")])
def test_each_rank_gets_the_sum_of_all(all_reduce):
    assert all((total == 8).all() for total in labs.gradient_job(all_reduce).results)


def test_a_ring_sends_24_5_gb_from_each_of_8_gpus_after_1_s_of_work():
    job = labs.gradient_job(by("ring")).timeline
    assert {labs.gigabytes(job.bytes_sent(rank)) for rank in range(8)} == {24.5}
    assert min(transfer.start for transfer in job.transfers) == 10**12


def at_once(comm, x):
    return labs.rings_at_once(by("ring"), comm, x)


def test_16_gpus_on_2_nodes_take_1_05_s_in_one_ring_0_13_in_eight_and_0_15_in_two_levels():
    on = partial(seconds, nodes=2, gpus_per_node=8)
    assert on(by("ring")) == pytest.approx(30 * (14 / 16 / 25 + ALPHA), rel=1e-9)
    hops = 30 * (14 / 16 / 8 / 25 + ALPHA)
    for eight in (WAYS["eight rings"], at_once):
        assert on(eight) == pytest.approx(hops, rel=1e-9)
    assert hops == pytest.approx(0.13, abs=0.005)
    inside, between = 14 * (14 / 8 / 300 + INSIDE), 2 * (14 / 16 / 25 + ALPHA)
    assert on(WAYS["two levels"]) == pytest.approx(inside + between, rel=1e-9)
    assert inside + between == pytest.approx(0.15, abs=0.005)


@pytest.mark.parametrize(("nodes", "rings", "levels"), [(4, 0.136, 0.187), (8, 0.139, 0.205)])
def test_on_4_and_8_nodes_eight_rings_take_0_14_s_and_two_levels_0_19_and_0_20(nodes, rings, levels):
    size, number = 8 * nodes, 14 * 10**9 // 2
    links = (8, DGX_A100.intra, DGX_A100.inter)
    costs = [form(size, number, 2, *links) for form in (rings_all_reduce_cost, hierarchical_all_reduce_cost)]
    hops = 2 * (size - 1) * (14 / size / 8 / 25 + ALPHA)
    inside, between = 14 * (14 / 8 / 300 + INSIDE), 2 * (nodes - 1) * (14 / 8 / nodes / 25 + ALPHA)
    assert [cost.picoseconds / 1e12 for cost in costs] == pytest.approx([hops, inside + between], rel=1e-6)
    assert (hops, inside + between) == pytest.approx((rings, levels), abs=0.001)


def test_rings_at_once_give_every_rank_the_sum_and_each_leaves_the_node_at_another_gpu():
    job = labs.gradient_job(at_once, nodes=2, gpus_per_node=8, work=0)
    assert all((total == 16).all() for total in job.results)
    crossing = re.findall(r"(\d+) \| +(\d+)", labs.ring_orders())
    sent = {(t.src, t.dst) for t in job.timeline.transfers if t.src // 8 != t.dst // 8}
    assert {(int(a), int(b)) for a, b in crossing} == {pair for pair in sent if pair[0] < 8}
    assert sorted({(t.src, t.dst) for t in job.timeline.transfers if t.src // 8 != t.dst // 8}) == [
        (rank, (rank // 8 * 8 + 8 + (rank + 1) % 8) % 16) for rank in range(16)
    ]


def test_the_busiest_port_of_2_nodes_of_8_sends_26_25_gb_in_one_ring_3_28_in_eight_and_1_75_in_two_levels():
    """One ring 2(P − 1)/P · n through one GPU; eight an eighth of it each; two levels 2(k − 1)/k · n/g."""
    ways = [*WAYS.values(), at_once]
    sent = [labs.busiest_port(labs.gradient_job(way, nodes=2, gpus_per_node=8)) for way in ways]
    assert sent == [2 * 15 / 16 * 14, 2 * 15 / 16 * 14 / 8, 14 / 8, 2 * 15 / 16 * 14 / 8]


def test_inside_one_node_8_gpus_take_0_08_s_twelve_times_less():
    assert seconds(by("ring"), nodes=1, gpus_per_node=8) == pytest.approx(24.5 / 300, rel=1e-3)
    assert DGX_A100.intra.bandwidth / DGX_A100.inter.bandwidth == 12


def test_what_is_no_job_is_refused():
    check_refused(lambda: labs.gradient_job("ring"), "all_reduce='ring'", "all_reduce(comm, x)")
    check_refused(lambda: labs.gradient_job(by("ring"), nodes=0), "nodes=0", "at least 1")
    check_refused(lambda: labs.gradient_job(by("ring"), gpus_per_node=9), "gpus_per_node=9", "at most 64")
    check_refused(lambda: labs.gradient_job(by("ring"), work=-1), "work=-1", "at least 0")
