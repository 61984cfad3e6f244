"""Which layers make up which stage."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.pipeline import Costs, balance, one_f_one_b, partition, simulate


def sizes(stages: list[range]) -> list[int]:
    return [len(stage) for stage in stages]


def test_10_layers_on_3_stages_are_4_3_3():
    assert partition(10, 3) == [range(4), range(4, 7), range(7, 10)]


@given(st.integers(1, 200), st.integers(1, 64))
def test_stages_are_contiguous_complete_and_the_first_have_one_layer_more(layers, stages):
    if layers < stages:
        with pytest.raises(ValueError, match="each stage needs a layer"):
            partition(layers, stages)
        return
    found = partition(layers, stages)
    assert [layer for stage in found for layer in stage] == list(range(layers))
    assert sizes(found) == [layers // stages + 1] * (layers % stages) + [layers // stages] * (stages - layers % stages)


@pytest.mark.parametrize(("layers", "stages"), [(10, 3), (7, 7), (9, 2), (13, 5)])
def test_equal_costs_divide_as_no_costs_do(layers, stages):
    assert balance([2.5] * layers, stages) == partition(layers, stages)


def test_a_cheaper_bottleneck_of_5_comes_before_a_smaller_sum_of_squares():
    """[5, 5, 1] has 51, and [2, 3, 6] has 49."""
    assert sizes(balance([2, 3, 5, 1], 3)) == [2, 1, 1]


@settings(max_examples=60)
@given(st.data())
def test_no_other_division_has_a_cheaper_bottleneck_or_the_same_with_a_smaller_sum_of_squares(data):
    costs = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=8))
    stages = data.draw(st.integers(1, len(costs)))

    def value(cuts):
        sums = [sum(costs[a:b]) for a, b in pairwise(cuts)]
        return max(sums), sum(s * s for s in sums)

    best = min(value((0, *inner, len(costs))) for inner in combinations(range(1, len(costs)), stages - 1))
    found = balance(costs, stages)
    assert all(found)
    assert value((*(stage.start for stage in found), len(costs))) == best


@settings(max_examples=60)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 3), st.integers(1, 3))
def test_balance_leaves_the_slowest_of_pv_stages_as_fast_as_any_cut_does(costs, p, chunks):
    stages = p * chunks
    if len(costs) < stages:
        with pytest.raises(ValueError, match="each stage needs a layer"):
            balance(costs, p, chunks)
        return
    found = balance(costs, p, chunks)
    assert [layer for stage in found for layer in stage] == list(range(len(costs)))
    cuts = [(0, *cut, len(costs)) for cut in combinations(range(1, len(costs)), stages - 1)]
    slowest = min(max(sum(costs[a:b]) for a, b in pairwise(cut)) for cut in cuts)
    assert max(sum(costs[layer] for layer in stage) for stage in found) == slowest


def test_balanced_stages_p4_m8_with_a_head_of_three_layers_take_a_quarter_less_time_than_equal_numbers_of_layers():
    layers = [1] * 15 + [4]  # the last with the head
    spans = []
    for stages in (partition(16, 4), balance(layers, 4)):
        each = [sum(layers[layer] for layer in stage) for stage in stages]
        spans.append(simulate(one_f_one_b(4, 8), Costs(each, each, each)).makespan)
    assert spans[1] <= 0.8 * spans[0]
