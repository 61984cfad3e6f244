"""Points of runs lie on the formula's lines; the crossing is where computing lasts as long as a gather."""

import math
from itertools import pairwise

import pytest

from parlab import views
from parlab.nn.llama import LlamaConfig
from parlab.world import Cluster, Device, Link
from parlab.zero import tokens_to_hide_a_gather
from tests.views.drawn import artists, title
from tests.views.zero_redundancy.zero_runs import CONFIG, WEIGHTS, S, step

ROWS = (1, 4, 8, 9, 12)  # of a rank, 8 tokens each
RUNS = {prefetch: {S * rows: step(3, rows=rows, prefetch=prefetch) for rows in ROWS} for prefetch in (0, 1)}
LAYER = sum(weight.size for name, weight in WEIGHTS.items() if ".layers.0." in name)
GATHER = 3 * (LAYER // 4) * 2 * 1000  # picoseconds: 3 messages of a quarter, 2 bytes a weight, 1000 ps a byte
FORWARD = 10 * (2 * LAYER + 4 * S * 16 - 4 * 16)  # ps a token: 10 a FLOP; 2 a weight but for 2 norms, and attention


def points(figure, prefetch):
    (line,) = artists(figure, f"computed {prefetch}")
    return dict(zip(*line.get_data(), strict=True))


def test_without_prefetch_3_gathers_of_a_layer_are_waited_for_at_any_length():
    assert points(views.gather_overlap(RUNS, CONFIG, S), 0) == {S * rows: 3 * GATHER for rows in ROWS}


def test_with_prefetch_what_computing_leaves_of_3_gathers_is_waited_for():
    found = points(views.gather_overlap(RUNS, CONFIG, S), 1)
    assert LAYER % 4 == 0
    for tokens, waited in found.items():
        forward = max(0, GATHER - tokens * FORWARD)
        backward = tokens * (2 * FORWARD + 10 * 2 * S * 16)  # attention's backward has 5 products, its forward 2
        assert waited == pytest.approx(forward + max(0, 2 * GATHER - backward), abs=10)  # rounding to picoseconds
    assert found[64] > 0
    assert found[72] == found[96] == 0


@pytest.mark.parametrize("prefetch", [0, 1])
def test_the_points_lie_on_the_lines(prefetch):
    figure = views.gather_overlap(RUNS, CONFIG, S)
    (line,) = artists(figure, f"formula {prefetch}")
    corners = list(zip(*line.get_data(), strict=True))
    for tokens, waited in points(figure, prefetch).items():
        (left, low), (right, high) = next(pair for pair in pairwise(corners) if pair[0][0] <= tokens <= pair[1][0])
        on_line = low + (high - low) * (tokens - left) / max(right - left, 1e-9)
        assert waited == pytest.approx(on_line, abs=1e-3 * GATHER)
    assert repr(figure).endswith("on the clock = formula at every point: True")


def test_the_dotted_line_is_at_75_tokens_and_attention_hides_the_rest_from_69_on():
    figure = views.gather_overlap(RUNS, CONFIG, S)
    (line,) = artists(figure, "crossing")
    assert line.get_xdata()[0] == tokens_to_hide_a_gather(1e11, 1e9, 4) == 75
    assert title(figure).endswith(f"hidden from {math.ceil(GATHER / FORWARD)} tokens a rank on")
    assert math.ceil(GATHER / FORWARD) == 69


def test_runs_that_reduce_more_than_the_formula_knows_are_not_on_it():
    kept = {1: {S * rows: step(3, rows=rows, keep_after_forward=True) for rows in ROWS}}
    assert repr(views.gather_overlap(kept, CONFIG, S)).endswith("on the clock = formula at every point: False")


def test_a_model_of_other_layers_is_refused():
    other = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=5, num_attention_heads=2
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"did not compute .* 'forward layers.4'"):
        views.gather_overlap(RUNS, other, S)


def test_across_nodes_a_gather_in_two_levels_is_the_formulas_and_in_one_level_the_slow_links():
    nodes = Cluster("nodes", Device("d", 1e11, 1e12), 2, Link(0, 4e9), Link(0, 1e9))
    for per_node, part in ((2, 1 / 2), (None, 1)):  # in quarters: 1 at 1 GB/s and 2 at 4 GB/s, of 3 at 1 GB/s
        told = {} if per_node is None else {"ranks_per_node": per_node}
        runs = {
            at: {S * rows: step(3, rows=rows, prefetch=at, cluster=nodes, **told) for rows in ROWS} for at in (0, 1)
        }
        figure = views.gather_overlap(runs, CONFIG, S, per_node)
        waited = points(figure, 0)[S]
        assert repr(figure).endswith("on the clock = formula at every point: True"), per_node
        assert waited == pytest.approx(3 * GATHER * part, rel=1e-3)
