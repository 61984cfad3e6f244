"""The papers' schedules: their order, idle time and kept activations."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.pipeline import (
    Costs,
    Schedule,
    gpipe,
    interleaved_one_f_one_b,
    looped_bfs,
    naive,
    one_f_one_b,
    simulate,
    validate,
    zb_h1,
    zb_h2,
)

COST = st.integers(1, 50)
RANKS = st.sampled_from([1, 2, 3, 6, 8, 16])


def idle_time(schedule: Schedule, costs: Costs, work: int) -> int:
    """By longest stage, of a rank whose actions take `work` in all."""
    return simulate(schedule, costs).longest_stage - work


@given(st.integers(2, 5), st.integers(2, 5), st.integers(0, 4))
def test_invariant_that_all_stages_take_the_microbatches_of_a_kind_in_the_same_order(p, chunks, more):
    in_order = [interleaved_one_f_one_b(p, 2 * p, chunks), gpipe(p, 3), zb_h1(p, p + more), zb_h2(p, p + more)]
    for schedule in [*in_order, naive(p, 3), one_f_one_b(p, p + more), looped_bfs(p, 3, chunks)]:
        orders = {}
        for action in (action for rank in schedule.actions for action in rank):
            orders.setdefault((action.kind, action.stage), []).append(action.microbatch)
        for kind in {kind for kind, _ in orders}:
            assert len({tuple(orders[kind, stage]) for stage in range(schedule.num_stages)}) == 1


# Who holds what when, checked over p 1..16 and m up to 64


@settings(max_examples=20)
@given(RANKS, st.integers(1, 64), COST, COST, COST)
def test_gpipe_idles_p_minus_1_times_f_plus_b_and_keeps_m(p, m, f, i, w):
    schedule, costs = gpipe(p, m), Costs(f, i, w)
    assert idle_time(schedule, costs, m * (f + i + w)) == (p - 1) * (f + i + w)
    assert simulate(schedule, costs).peak_activations == [m] * p


@settings(max_examples=20)
@given(RANKS, st.data(), COST, COST, COST)
def test_1f1b_idles_p_minus_1_times_f_plus_b_and_keeps_p_minus_r(p, data, f, i, w):
    m = data.draw(st.integers(p, 64))
    schedule, costs = one_f_one_b(p, m), Costs(f, i, w)
    assert idle_time(schedule, costs, m * (f + i + w)) == (p - 1) * (f + i + w)
    assert simulate(schedule, costs).peak_activations == [min(m, p - r) for r in range(p)]
    assert simulate(schedule, costs).makespan == simulate(gpipe(p, m), costs).makespan


@settings(max_examples=20)
@given(RANKS, st.data(), COST, COST, COST)
def test_interleaved_1f1b_idles_a_vth_and_keeps_vp_plus_p_minus_1_minus_2r_chunks(p, data, f, i, w):
    v = data.draw(st.integers(1, 4))
    m = p * data.draw(st.integers(1, 64 // p))
    schedule, costs = interleaved_one_f_one_b(p, m, v), Costs(f, i, w)  # of a chunk
    assert idle_time(schedule, costs, m * v * (f + i + w)) == (p - 1) * (f + i + w)
    assert simulate(schedule, costs).peak_activations == [min(m * v, v * p + p - 1 - 2 * r) for r in range(p)]


@settings(max_examples=20)
@given(RANKS, st.data(), COST, COST, COST)
def test_looped_bfs_idles_a_vth_and_keeps_all_chunks(p, data, f, i, w):
    v = data.draw(st.integers(1, 4))
    m = data.draw(st.integers(p, 64))
    schedule, costs = looped_bfs(p, m, v), Costs(f, i, w)
    assert idle_time(schedule, costs, m * v * (f + i + w)) == (p - 1) * (f + i + w)
    assert simulate(schedule, costs).peak_activations == [m * v] * p


@settings(max_examples=20)
@given(RANKS, st.data(), COST, COST)
def test_zb_h1_idles_p_minus_1_times_f_plus_i_minus_w_and_keeps_p(p, data, f, i):
    w = data.draw(st.integers(1, f))
    m = data.draw(st.integers(p, 64))
    assert idle_time(zb_h1(p, m), Costs(f, i, w), m * (f + i + w)) == (p - 1) * (f + i - w)
    assert simulate(zb_h1(p, m)).peak_activations == [p] * p


@settings(max_examples=20)
@given(RANKS, st.data(), COST, COST)
def test_zb_h2_idles_p_minus_1_times_f_plus_i_minus_2w_and_keeps_2p_minus_1(p, data, f, i):
    w = data.draw(st.integers(1, min(f, i)))
    m = data.draw(st.integers(2 * p - 1, 64))
    assert idle_time(zb_h2(p, m), Costs(f, i, w), m * (f + i + w)) == (p - 1) * (f + i - 2 * w)
    assert simulate(zb_h2(p, m)).peak_activations == [2 * p - 1] * p


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 8), (4, 64), (8, 24), (16, 64)])
def test_small_transfers_cost_gpipe_2c_a_rank_and_1f1b_2c_a_group_of_p_microbatches(p, m):
    f, i, w, c = 1000, 700, 400, 1
    without = (m + p - 1) * (f + i + w)
    costs = Costs(f, i, w, c)
    assert simulate(gpipe(p, m), costs).makespan - without == 2 * c * (p - 1)
    assert simulate(one_f_one_b(p, m), costs).makespan - without == 2 * c * (p - 1 + (p - 1) * m // p - 1)


@pytest.mark.parametrize("p", [1, 2, 5])
@pytest.mark.parametrize("m", [1, 4])
def test_naive_runs_one_rank_at_a_time_and_keeps_1(p, m):
    timeline = simulate(naive(p, m), Costs(2, 3, 4))
    assert timeline.makespan == p * m * 9
    assert timeline.peak_activations == [1] * p


@settings(max_examples=20)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3))
def test_every_group_size_of_at_least_p_runs_and_keeps_its_warm_up_and_one(p, chunks, groups, more):
    group = p + more
    schedule = interleaved_one_f_one_b(p, group * groups, chunks, group)
    validate(schedule)
    most = [min(group * groups * chunks, 2 * (p - r - 1) + (chunks - 1) * group + 1) for r in range(p)]
    assert simulate(schedule).peak_activations == most


@pytest.mark.parametrize("make", [one_f_one_b, zb_h1, zb_h2, lambda p, m: looped_bfs(p, m, 3)])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 7])
def test_every_schedule_runs_any_number_of_microbatches_also_fewer_than_ranks(make, p):
    for m in range(1, 2 * p + 2):
        validate(make(p, m))


@pytest.mark.parametrize("p", [2, 4, 5])
def test_interleaving_takes_m_divided_by_the_whole_groups_of_p_as_pytorch_does(p):
    """p + 1 microbatches are one group, 2p + 2 are two; 2p + 1 make no two groups."""
    for m in range(1, 3 * p + 3):
        rounds = max(1, m // p)
        if m % rounds:
            with pytest.raises(ValueError, match="microbatches go in whole groups"):
                interleaved_one_f_one_b(p, m, 2)
            continue
        schedule = interleaved_one_f_one_b(p, m, 2)
        assert schedule == interleaved_one_f_one_b(p, m, 2, group=m // rounds)
        first = [action.microbatch for action in schedule.actions[0][: m // rounds + 1] if action.stage == 0]
        assert first == list(range(m // rounds))
        if m >= p:
            assert idle_time(schedule, Costs(3, 2, 1), 2 * m * 6) == (p - 1) * 6
        validate(schedule, memory_limit=[min(2 * m, m // rounds + 2 * (p - r) - 1) for r in range(p)])


# PyTorch's own listings


@pytest.mark.parametrize(
    ("name", "schedule", "chunks"),
    [
        ("GPipe", gpipe(4, 8), None),
        ("Interleaved1F1B", interleaved_one_f_one_b(4, 8, 2), 2),
        ("Interleaved1F1B", interleaved_one_f_one_b(2, 8, 4), 4),
        ("LoopedBFS", looped_bfs(4, 8, 2), 2),
        ("LoopedBFS", looped_bfs(3, 5, 3), 3),
    ],
)
def test_the_order_of_actions_is_pytorchs(name, schedule, chunks):
    visualizer = pytest.importorskip(
        "torch.distributed.pipelining._schedule_visualizer", reason="needs the extra peers: torch"
    )
    rows = visualizer.get_schedule_ops(name, schedule.num_ranks, schedule.num_microbatches, num_stages_per_rank=chunks)
    listed = [[str(a) for a in row if a is not None and "REDUCE_GRAD" not in str(a)] for row in rows]
    assert listed == [[str(action) for action in row] for row in schedule.actions]


@pytest.mark.parametrize(("group", "makespan", "kept"), [(4, 28.5, 11), (5, 29.5, 12), (7, 33.5, 14), (8, 28.5, 15)])
def test_a_last_group_of_fewer_than_p_4_makes_ranks_wait_and_each_more_in_a_row_keeps_a_chunk(group, makespan, kept):
    """8 microbatches, 2 chunks of half a forward each; 4 + 4 and 8 waste (p - 1)(F + B)/v = 4.5."""
    timeline = simulate(interleaved_one_f_one_b(4, 8, 2, group), Costs(0.5, 0.5, 0.5))
    assert (timeline.makespan, timeline.peak_activations[0]) == (makespan, kept)
