"""The yardstick: bound ≤ best possible ≤ every schedule, and the best possible against all orders tried."""

import math
from itertools import chain, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.labs import on_rank_0, three_arguments
from parlab.pipeline import (
    Action,
    Costs,
    MemoryLimit,
    Schedule,
    best_schedule,
    dualpipe,
    dualpipe_v,
    interleaved_one_f_one_b,
    looped_bfs,
    lower_bound,
    one_f_one_b,
    one_f_one_b_v,
    simulate,
    v_half,
    v_min,
    validate,
    zb_auto,
    zb_h1,
    zb_v,
)
from parlab.pipeline.search import exact
from parlab.pipeline.search.bounds import rank_tasks

COST = st.integers(0, 9)


@st.composite
def small_cases(draw, most_ranks=3, most_microbatches=4):
    p, m = draw(st.integers(1, most_ranks)), draw(st.integers(1, most_microbatches))
    f, i, w = (draw(COST | st.lists(COST, min_size=p, max_size=p)) for _ in range(3))
    limit = draw(
        st.none() | st.integers(1, 5) | st.builds(MemoryLimit, st.integers(3, 12), st.integers(2, 3), st.integers(0, 2))
    )
    return p, m, Costs(f, i, w, draw(st.integers(0, 4))), limit


@settings(max_examples=120)
@given(small_cases())
def test_the_bound_is_at_most_the_best_possible_on_120_small_cases(case):
    best = best_schedule(*case)
    validate(best, case[3])
    assert lower_bound(*case) <= simulate(best, case[2]).makespan


def shortest_by_hand(p, m, costs, within):
    """The least makespan of all orders, each timed here: no function of the room is used. `within`: one a rank."""
    chosen_from = [list(orders_of_a_rank(m, of_rank)) for of_rank in within]
    return min(makespan_by_hand(p, rows, costs) for rows in product(*chosen_from))


def orders_of_a_rank(m, within, row=()):
    """Each order of F, I and W of m microbatches, in turn, within (limit, kept from F on, kept from I on)."""
    limit, whole, rest = within
    f, i, w = (sum(kind == one for one, _ in row) for kind in "FIW")
    if w == m:
        yield row
    if f < m and (f - i + 1) * whole + (i - w) * rest <= limit:
        yield from orders_of_a_rank(m, within, (*row, ("F", f)))
    if i < f:
        yield from orders_of_a_rank(m, within, (*row, ("I", i)))
    if w < i:
        yield from orders_of_a_rank(m, within, (*row, ("W", w)))


def makespan_by_hand(p, rows, costs):
    """By sweeps over the ranks until nothing moves; infinite if ranks wait for each other."""
    took = {"F": costs.forward, "I": costs.backward_input, "W": costs.backward_weight}
    left, free, ended = [list(row) for row in rows], [0] * p, {}
    moved = True
    while moved:
        moved = False
        for r in range(p):
            while left[r]:
                kind, i = left[r][0]
                source = {"F": r - 1, "I": r + 1, "W": -1}[kind]
                arrival = 0
                if 0 <= source < p:
                    arrival = ended.get((kind, source, i), math.inf) + costs.transfer[source]
                if arrival == math.inf:
                    break
                free[r] = ended[kind, r, i] = max(free[r], arrival) + took[kind][r]
                left[r].pop(0)
                moved = True
    return math.inf if any(left) else max(free)


def one_by_one(p, m, *_, **__):
    """The slowest schedule: what `best_schedule` finds from here, its own search has found."""
    return Schedule([[Action(kind, r, i) for i in range(m) for kind in "FIW"] for r in range(p)])


KEPT = [(1, 1), (2, 1), (3, 1), (2, 0)]  # by a chunk, before and after its I


@pytest.mark.parametrize(("p", "m"), [(3, 2), (2, 3)])
def test_exact_is_the_shortest_of_all_orders_on_60_uneven_costs_transfers_and_limits_by_rank_from_the_worst_start(
    p, m, monkeypatch
):
    monkeypatch.setattr(exact, "zb_auto", one_by_one)
    rng = np.random.default_rng(1)
    for _ in range(60):
        most = rng.choice([2, 10])  # where it is 2, half of all actions take no time
        costs = Costs(*(rng.integers(0, most, p) * rng.integers(1, 6, p) for _ in range(3)), rng.integers(0, 5, p))
        of_chunk = KEPT[rng.integers(len(KEPT))]
        within = [(most, *of_chunk) for most in (of_chunk[0] * rng.integers(1, 4, p) + rng.integers(0, 2, p)).tolist()]
        limit = MemoryLimit([most for most, *_ in within], *of_chunk)
        found = simulate(best_schedule(p, m, costs, limit), costs).makespan
        assert found == shortest_by_hand(p, m, costs, within) >= lower_bound(p, m, costs, limit), (costs, within)


@settings(max_examples=40)
@given(
    st.sampled_from(
        [
            lambda: looped_bfs(3, 4, 2),
            lambda: interleaved_one_f_one_b(3, 6, 2),
            lambda: zb_v(3, 6),
            lambda: v_half(4, 5),
            lambda: v_min(4, 6),
            lambda: one_f_one_b_v(3, 7),
            lambda: dualpipe(4, 8),
            lambda: dualpipe_v(3, 7),
        ]
    ),
    st.lists(COST, min_size=8, max_size=8),
    COST,
    COST,
    st.integers(0, 3),
)
def test_no_schedule_on_several_chunks_or_from_both_ends_is_below_the_bound_of_its_ranks(make, f, i, w, c):
    schedule = make()
    costs = Costs(f[: schedule.num_stages], i, w, c)
    timeline = simulate(schedule, costs)
    peaks = timeline.peak_activations
    sizes = schedule.num_ranks, schedule.num_microbatches, costs, peaks
    assert timeline.makespan >= lower_bound(*sizes, like=schedule)
    assert timeline.longest_stage >= lower_bound(*sizes, like=schedule, metric="longest_stage")


PUBLISHED = 18.522, 18.086, 9.337, 0.601  # ms of F, I, W and a transfer: Qi et al. 2024, table 9, 1.5B


@pytest.mark.parametrize("limit", [9, 16, 24])
def test_at_published_costs_the_last_i_bounds_a_step_in_a_row_and_the_search_meets_it_from_9_to_24(limit):
    found = simulate(zb_auto(8, 24, Costs(*PUBLISHED), limit), Costs(*PUBLISHED))
    assert max(found.peak_activations) == limit
    least = lower_bound(8, 24, Costs(*PUBLISHED), limit, metric="longest_stage")
    assert found.longest_stage == pytest.approx(on_rank_0(8, 24, limit, *PUBLISHED), abs=0.01)
    assert least == pytest.approx(on_rank_0(8, 24, limit, *PUBLISHED), abs=0.01)


@settings(max_examples=100)
@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 10), COST, COST, COST, st.integers(0, 4))
def test_the_three_times_of_alike_stages_are_never_above_the_bound(p, m, limit, f, i, w, c):
    case, costs = (p, m, limit, f, i, w, c), Costs(f, i, w, c)
    assert on_rank_0(*case) <= lower_bound(p, m, costs, limit, metric="longest_stage")
    assert three_arguments(*case) <= lower_bound(p, m, costs, limit)


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), COST, COST, COST, st.integers(0, 4))
def test_two_arguments_are_never_above_what_rank_0_takes_in_the_best_schedule(p, m, limit, f, i, w, c):
    row = simulate(best_schedule(p, m, Costs(f, i, w, c), limit), Costs(f, i, w, c)).steps(0)
    assert on_rank_0(p, m, limit, f, i, w, c) <= row[-1].end - row[0].start


def test_where_microbatches_enter_at_both_ends_no_rank_need_start_at_0_and_the_longest_takes_70():
    """Rank 0 starts at 10 with what comes from rank 1, so that its first transfer is no idle time of its own."""
    rows = ["1F2 1I2 0F0 0F1 1W2 0I0 0I1 0W0 0W1", "0F2 1F0 1I0 1F1 1I1 1W0 1W1 0I2 0W2"]
    both_ends = Schedule([[Action(a[1], int(a[0]), int(a[2])) for a in row.split()] for row in rows])
    costs = Costs(0, 0, [30, 10], [10, 0])
    assert simulate(both_ends, costs).longest_stage == 70
    assert lower_bound(2, 3, costs, like=both_ends, metric="longest_stage") <= 70


def test_tails_that_end_on_a_rank_count_the_w_of_each_of_its_stages():
    only_stage_2, around = Costs(0, 0, [0, 0, 5, 0]), looped_bfs(2, 1, 2)
    of_ranks = [chain(*rank_tasks(2, 1, only_stage_2, like=around, ends_on=rank)) for rank in (0, 1)]
    assert [max(task.tail for task in tasks) for tasks in of_ranks] == [5, 0]


def test_the_bound_counts_the_w_that_must_free_memory_53_where_the_best_is_54():
    case = 3, 4, Costs([1, 4, 2], [4, 3, 2], [3, 1, 1], [0, 1, 2]), MemoryLimit(4, 2, 2)
    assert simulate(best_schedule(*case), case[2]).makespan == 54
    assert 53 <= lower_bound(*case) <= 54


@pytest.mark.parametrize(
    ("p", "m", "costs", "within", "best"),
    [
        (2, 2, Costs([3, 4], [0, 4], [1, 0], [1, 3]), (1, 1, 0), 31),  # an F waits for the I that frees memory
        (2, 3, Costs([4, 2], [4, 2], [3, 0], [2, 2]), (1, 1, 1), 57),  # and for the W
        (2, 3, Costs([3, 4], [1, 3], [1, 1], [1, 1]), (2, 1, 1), 29),  # an I waits for the W's before its F
        (2, 3, Costs([5, 1], [1, 1], [0, 1], [2, 0]), (4, 2, 0), 21),  # an F waits for the work of its rank
    ],
)
def test_the_bound_is_the_best_itself_where_memory_orders_all(p, m, costs, within, best):
    assert shortest_by_hand(p, m, costs, [within] * p) == best
    assert lower_bound(p, m, costs, MemoryLimit(*within)) == best


def test_the_gap_of_unit_costs_p4_m8_1f1b_6_of_27_zb_h1_0_v_min_8_of_51():
    made = [make(4, 8) for make in (one_f_one_b, zb_h1, v_min)]
    bounds = [lower_bound(4, 8, like=schedule) for schedule in made]
    assert bounds == [27, 27, 51]
    assert [simulate(schedule).makespan - bound for schedule, bound in zip(made, bounds, strict=True)] == [6, 0, 8]
