"""What lesson 04b's search finds is the best possible: a constraint solver excludes every schedule that is shorter."""

from __future__ import annotations

import importlib.util
import random
from fractions import Fraction
from math import lcm

import pytest

from parlab.pipeline import Costs, best_schedule, simulate, zb_auto

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ortools") is None, reason="not installed: ortools (pip install -e '.[peers]')"
)
SECONDS = 60  # a proof takes less than one


def runs_within(units, p, m, limit, f=1, i=1, w=1, c=0):
    """Whether some schedule of straight stages ends within so many units: True or False, both proved.

    Its unknowns are the starts of all F's, I's and W's, in whole steps: F, I, W and transfers are whole numbers of
    steps, so a schedule in which everything starts as early as it can has no other starts. Microbatches are alike and
    may be renamed: so those of a rank keep their order, and the k-th F needs the place that W number k - limit frees.
    """
    from ortools.sat.python import cp_model

    steps = lcm(*(Fraction(x).denominator for x in (f, i, w, c)))  # of a unit
    f, i, w, c, last = (int(steps * x) for x in (f, i, w, c, units))
    takes = {"F": f, "I": i, "W": w}
    model = cp_model.CpModel()
    start = {
        (kind, rank, k): model.new_int_var(0, last - takes[kind], f"{rank}{kind}{k}")
        for kind in takes
        for rank in range(p)
        for k in range(m)
    }

    def after(later, kind, rank, k, wait=0):
        model.add(start[later] >= start[kind, rank, k] + takes[kind] + wait)

    for rank in range(p):
        for k in range(m):
            after(("I", rank, k), "F", rank, k)
            after(("W", rank, k), "I", rank, k)
            if rank > 0:
                after(("F", rank, k), "F", rank - 1, k, c)
                after(("I", rank - 1, k), "I", rank, k, c)
            for kind in takes if k > 0 else ():
                after((kind, rank, k), kind, rank, k - 1)
            if k >= limit:
                after(("F", rank, k), "W", rank, k - limit)
        model.add_no_overlap(
            model.new_fixed_size_interval_var(start[kind, rank, k], takes[kind], "") for kind in takes for k in range(m)
        )
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 2
    solver.parameters.max_time_in_seconds = SECONDS
    found = solver.solve(model)
    assert found in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.INFEASIBLE), solver.status_name(found)
    return found != cp_model.INFEASIBLE


@pytest.mark.parametrize("seed", range(12))
def test_the_model_is_settled_where_all_orders_are_tried(seed):
    draw = random.Random(seed)
    p, m = draw.randint(1, 3), draw.randint(1, 4)
    f, i, w, c = (draw.randint(1, 4) for _ in range(4))
    for limit in range(1, m + 1):
        shortest = simulate(best_schedule(p, m, Costs(f, i, w, c), limit), Costs(f, i, w, c)).makespan
        assert runs_within(shortest, p, m, limit, f, i, w, c)
        assert not runs_within(shortest - 1, p, m, limit, f, i, w, c)


@pytest.mark.parametrize(
    ("c", "units"),
    [(0, [72, 41, 31, 27, 27, 27, 27, 27]), (1, [120, 63, 48, 39, 36, 33, 30, 30])],
)
def test_no_schedule_of_4_ranks_and_8_microbatches_is_shorter_than_what_the_search_finds(c, units):
    for limit, shortest in enumerate(units, 1):
        costs = Costs(transfer=c)
        assert simulate(zb_auto(4, 8, costs, limit, metric="makespan"), costs).makespan == shortest
        assert runs_within(shortest, 4, 8, limit, c=c)
        assert not runs_within(shortest - 1, 4, 8, limit, c=c)


@pytest.mark.parametrize(
    ("p", "m", "limit", "units"),
    [(4, 12, 3, 44), (6, 12, 3, 60), (6, 12, 4, 49), (8, 16, 4, 79), (8, 16, 5, 68), (8, 16, 6, 61)],
)
def test_the_best_straight_schedule_of_six_sizes_of_which_the_search_finds_none(p, m, limit, units):
    assert runs_within(units, p, m, limit)
    assert not runs_within(units - 1, p, m, limit)


@pytest.mark.parametrize(
    ("limit", "units"),
    [(2, {0: 41, 0.25: 46, 0.5: 51, 0.75: 57, 1: 63}), (4, {0: 27, 0.25: 30, 0.5: 33, 0.75: 36, 1: 39})],
)
def test_what_stands_beside_v_min_and_zb_v_is_the_best_of_straight_stages_to_a_quarter(limit, units):
    for c, shortest in units.items():
        costs = Costs(transfer=c)
        assert simulate(zb_auto(4, 8, costs, limit, metric="makespan"), costs).makespan == shortest
        assert not runs_within(shortest - 0.25, 4, 8, limit, c=c)
