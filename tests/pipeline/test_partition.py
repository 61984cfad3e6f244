"""Which layers make up which stage."""

from itertools import combinations, pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from parlab.pipeline import balance, partition


@given(st.integers(1, 64), st.integers(0, 136))
def test_stages_are_contiguous_complete_and_the_first_have_one_layer_more(stages, more):
    layers = stages + more
    found = partition(layers, stages)
    assert [layer for stage in found for layer in stage] == list(range(layers))
    sizes = [layers // stages + 1] * (layers % stages) + [layers // stages] * (stages - layers % stages)
    assert [len(stage) for stage in found] == sizes


@settings(max_examples=60)
@example([2, 3, 5, 1], 3, 1)  # 5, 5, 1 and not 2, 3, 6, whose sum of squares is smaller
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 8), st.integers(1, 3))
def test_no_other_division_has_a_cheaper_bottleneck_or_the_same_with_a_smaller_sum_of_squares(costs, p, chunks):
    p = min(p, len(costs))
    chunks = min(chunks, len(costs) // p)
    stages = p * chunks

    def value(cuts):
        sums = [sum(costs[a:b]) for a, b in pairwise(cuts)]
        return max(sums), sum(s * s for s in sums)

    best = min(value((0, *inner, len(costs))) for inner in combinations(range(1, len(costs)), stages - 1))
    found = balance(costs, stages)
    assert all(found)
    assert value((*(stage.start for stage in found), len(costs))) == best
    assert balance(costs, p, chunks) == found
