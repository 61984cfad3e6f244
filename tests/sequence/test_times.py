"""The formulas of time against the simulated clock, on clusters of every kind."""

from dataclasses import replace

import numpy as np
import pytest

from parlab import Cluster, per_rank, run
from parlab.sequence import (
    METHODS,
    AttentionShape,
    allgather_attention,
    best_ulysses,
    method_times,
    ring_attention,
    shard,
    times,
    ulysses_attention,
    usp_attention,
    usp_time,
)
from parlab.world import Device, Link

POINTS, PROBLEMS = 200, 20


def problem(random):
    """A shape that deals out evenly to some ranks."""
    size, H = int(random.choice([2, 4, 8])), int(random.choice([4, 8]))
    G = int(random.choice([g for g in (1, 2, 4, 8) if H % g == 0]))
    S = 2 * size * int(random.integers(1, 17))
    return AttentionShape(S=S, H=H, G=G, D=4, itemsize=int(random.choice([2, 4, 8]))), size


def cluster(random, ranks_per_node):
    """Latency, bandwidth and flops from "only this counts" to "this is free", slower between nodes."""
    intra = Link(10 ** random.uniform(-8, -5), 10 ** random.uniform(7, 11))
    inter = Link(intra.latency * random.uniform(1, 10), intra.bandwidth / random.uniform(1, 20))
    return Cluster("any", Device("any", 10 ** random.uniform(9, 13), 1e12), ranks_per_node, intra, inter)


def simulated(shape, size):
    """A run of each method, and of USP for each group, to be timed on any cluster."""
    kind = f"float{8 * shape.itemsize}"
    x = [np.zeros((1, heads, shape.S, shape.D), kind) for heads in (shape.H, shape.G, shape.G)]
    zigzag, plain = ([per_rank(shard(y, size, layout)) for y in x] for layout in ("zigzag", "contiguous"))
    dealt = {"causal": True, "layout": "zigzag"}
    runs = {
        "ring": run(ring_attention, size, *zigzag, **dealt),
        "all-gather": run(allgather_attention, size, *zigzag, **dealt),
    }
    for ulysses in {2, 4} & set(range(size)):
        runs["USP", ulysses] = run(usp_attention, size, *zigzag, ulysses=ulysses, **dealt)
    if size <= shape.H:
        runs["Ulysses"] = run(ulysses_attention, size, *plain, causal=True)
    return runs


def test_at_200_random_points_the_times_are_the_clocks_and_the_choice_is_within_2_percent_of_the_least_makespan():
    random, chosen = np.random.default_rng(3), set()
    for _ in range(PROBLEMS):
        (shape, size), node = problem(random), int(random.choice([1, 2, 4, 8]))
        runs = simulated(shape, size)
        for _ in range(POINTS // PROBLEMS):
            where = cluster(random, node)
            found, group = method_times(shape, size, where), best_ulysses(shape, size, where)
            spans = {name: runs[("USP", group) if name == "USP" else name].on(where).makespan for name in found}
            choice = min(found, key=found.__getitem__)
            chosen.add(choice)
            assert spans[choice] <= 1.02 * min(spans.values())
            assert spans["ring"] <= spans["all-gather"] + 100  # as many bytes, hidden; 100 picoseconds of rounding
            for name, time in found.items():  # each block of work is rounded to a picosecond by itself
                assert time == pytest.approx(spans[name], abs=2 * size * shape.G), name
    assert chosen == set(METHODS) - {"all-gather"}


def test_without_transfers_every_method_takes_s_s_plus_1_over_2_pairs_over_p():
    shape = AttentionShape(S=4096, H=8, G=8, D=64, itemsize=4)
    free = Cluster.uniform(0, float("inf"), flops=1e12)
    expected = 4 * 8 * 64 * 4096 * 4097 // 2 // 4  # picoseconds at 1 flop a picosecond
    assert all(abs(time - expected) <= 4 for time in method_times(shape, 4, free).values())


def test_ulysses_without_a_head_for_each_rank_is_no_choice_and_refused_by_name():
    shape, where = AttentionShape(S=1024, H=8, G=2, D=64, itemsize=2), Cluster.uniform(1e-6, 1e9)
    assert set(method_times(shape, 16, where)) == {"ring", "all-gather", "USP"}
    with pytest.raises(ValueError, match=r"ulysses=16: must divide H=8, and divide G=2 or be a multiple of it"):
        usp_time(shape, 16, where, ulysses=16)


def test_12_query_heads_and_4_kv_heads_are_not_dealt_out_evenly_to_6_ranks():
    shape, where = AttentionShape(S=1152, H=12, G=4, D=64, itemsize=2), Cluster.uniform(1e-6, 1e9)
    assert set(method_times(shape, 6, where)) == {"ring", "all-gather", "USP"}  # 2 ranks a group, not 3
    assert best_ulysses(shape, 6, where) == 2
    with pytest.raises(ValueError, match=r"ulysses=6: must divide H=12, and divide G=4 or be a multiple of it"):
        usp_time(shape, 6, where, ulysses=6)


@pytest.mark.parametrize(("ranks_per_node", "group"), [(1, 2), (2, 2), (4, 2), (3, None)])
def test_a_group_of_2_fills_nodes_or_is_dealt_evenly_into_one(ranks_per_node, group):
    shape, where = AttentionShape(S=1152, H=2, G=2, D=64, itemsize=2), Cluster.uniform(1e-6, 1e9)
    assert best_ulysses(shape, 12, replace(where, ranks_per_node=ranks_per_node)) == group


def test_beyond_a_node_the_slow_link_sets_the_pace():
    shape = AttentionShape(S=1024, H=8, G=8, D=64, itemsize=2)
    one_node = Cluster("one", Device("d", 1e15, 1e12), 8, Link(1e-6, 1e9), Link(1e-6, 1e8))
    assert usp_time(shape, 8, replace(one_node, ranks_per_node=4), ulysses=1) > 9 * usp_time(
        shape, 8, one_node, ulysses=1
    )


MISTAKES = {
    "hops not hidden": lambda time: lambda *args, **how: time(*args, **how) + args[2].intra.picoseconds(1),
    "one hop forgotten": lambda time: (
        lambda shape, size, where, ulysses: time(shape, max(size - ulysses, ulysses), where, ulysses=ulysses)
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_formula_with_a_usual_mistake_is_not_the_clocks_time(mistake, monkeypatch):
    shape, where = AttentionShape(S=48, H=4, G=4, D=4, itemsize=4), Cluster.uniform(1e-6, 1e8)
    monkeypatch.setattr(times, "usp_time", MISTAKES[mistake](usp_time))
    wrong = method_times(shape, 4, where)["ring"]
    assert wrong != pytest.approx(simulated(shape, 4)["ring"].on(where).makespan, abs=64)
