"""The price tag's bars are the closed forms, and its headline names the stages that fit and wait least."""

import pytest

from parlab import views
from parlab.views.zero.model_state import COLORS, decimal_bytes
from parlab.world import DGX_A100, DGX_H100
from parlab.zero import MIXED, StateBytes, model_state_bytes, step_waiting, tokens_to_hide_a_gather
from tests.views.drawn import boxes, title
from tests.views.engine.test_theme import NOTICEABLE, VISIONS, closest

SLIDERS = views.explore_price_tag().controls
FLOAT32 = StateBytes(gradient=4)


@pytest.mark.parametrize(
    ("P", "bandwidth", "bound"), [(64, 8 * DGX_A100.inter.bandwidth, 1497), (8, DGX_A100.intra.bandwidth, 887)]
)
def test_stage_3_waits_below_1497_tokens_and_887_in_one_node_where_products_reach_65_percent(P, bandwidth, bound):
    """The backward hides 2 bytes of a weight and 4 of a gradient beside twice the work: 1.5 times the forward."""
    assert round(1.5 * tokens_to_hide_a_gather(0.65 * 312e12, bandwidth, P)) == bound
    for tokens, waits in ((bound - 1, True), (bound + 1, False)):
        assert bool(boxes(views.price_tag(P=P, tokens=tokens), "waiting 3")) == waits


def test_at_the_peak_and_with_gradients_in_16_bits_the_64_wait_below_1536_tokens():
    """Eight rings, one through each card: 63/64 of a block over the eight cards of a node together."""
    for tokens, waits in ((1535, True), (1536, False)):
        figure = views.price_tag(tokens=tokens, state=MIXED, products=1.0)
        assert bool(boxes(figure, "waiting 3")) == waits


def test_the_picture_grows_by_a_stage_on_the_scales_of_all_four():
    whole = views.price_tag()
    for stages in (1, 2, 3):
        figure = views.price_tag(stages=stages)
        assert title(figure).endswith("none fits yet")
        assert [axes.get_xlim() for axes in figure.axes] == [axes.get_xlim() for axes in whole.axes]
        for stage in range(4):
            assert boxes(figure, f"sent {stage}") == (boxes(whole, f"sent {stage}") if stage < stages else [])
        assert len(repr(figure).splitlines()) == 2 + stages


def test_the_optimizer_stands_between_the_halves_of_the_all_reduce_in_stage_1_and_behind_the_last_gradient():
    figure = views.price_tag()
    passes = sum(right - left for left, right, *_ in boxes(figure, "sent 3"))  # the longest strip
    mark = 0.02 * passes
    for stage, passes_before in enumerate((2, 1, 4, 12)):
        sent, ((left, right, *_),) = boxes(figure, f"sent {stage}"), boxes(figure, f"optimizer {stage}")
        assert left == pytest.approx(sent[passes_before - 1][1])
        assert right == pytest.approx(left + mark)
        for start, *_ in sent[passes_before:]:
            assert start == pytest.approx(right)


def test_a_fifth_of_the_80_gb_is_left_to_activations():
    """18Ψ bytes of stage 3 on one rank: 64 GB is 3.555 billion parameters."""
    assert title(views.price_tag(3.55e9, 1)).endswith("no stage that fits waits")
    assert title(views.price_tag(3.56e9, 1)).endswith("no stage fits")


def test_the_three_controls_open_at_4_times_1024_tokens_and_reach_what_the_lesson_asks_about():
    explorer = views.explore_price_tag()
    assert list(explorer.controls) == ["params", "tokens", "cluster"]
    assert "4 × 1024 tokens each: only stage 3 fits" in repr(explorer.figure)
    explorer.controls["params"].value, explorer.controls["tokens"].value = 7.5e9, 512
    assert "4 × 512 tokens each: of the stages that fit, 1 waits least" in repr(explorer.figure)


@pytest.mark.parametrize(("cluster", "first"), [(DGX_A100, 1536), (DGX_H100, 2560)])
@pytest.mark.parametrize("params", [1e9, 1e12])
def test_stage_3_waits_for_nothing_from_the_same_stop_on_for_models_of_every_size(params, cluster, first):
    """1 497 tokens on A100s, 2 373 on H100s."""
    stops = [tokens for _, tokens in SLIDERS["tokens"].options]
    for tokens in (stops[stops.index(first) - 1], first):
        figure = views.price_tag(params, tokens=tokens, cluster=cluster)
        assert bool(boxes(figure, "waiting 3")) == (tokens < first)


@pytest.mark.parametrize(
    ("params", "layers", "cluster", "ranks", "bound"),
    [
        (70e9, 80, DGX_A100, 64, 1527),
        (70e9, 80, DGX_H100, 64, 2468),
        (7.5e9, 32, DGX_H100, 64, 2726),
        (1e9, 16, DGX_H100, 64, 3698),  # so the lesson asks 7.5 billion, not 1
        (70e9, 80, DGX_H100, 1024, 3975),
    ],
)
def test_with_the_published_latency_64_h100s_need_2468_tokens_and_1024_of_them_3975(
    params, layers, cluster, ranks, bound
):
    """One ring through all nodes for a gather and one for a reduction, P − 1 hops each, beside a layer's backward."""
    flops, nodes = 0.65 * cluster.device.flops, ranks // 8
    ring = (ranks - nodes) * cluster.intra.latency + (nodes - 1) * cluster.inter.latency
    tokens = 1.5 * tokens_to_hide_a_gather(flops, 8 * cluster.inter.bandwidth, ranks)
    assert tokens + 2 * ring * flops / (4 * params / layers) == pytest.approx(bound, abs=0.5)


def test_bars_are_bytes_of_the_parts_of_the_passes_and_the_waiting():
    """8 ranks in a node, at the peak: a pass of 2 bytes a weight takes as long as a forward of 910 tokens."""
    bound = tokens_to_hide_a_gather(312e12, 300e9, 8)
    forward, gather = 2e9 * 512 / 312e12, 2e9 * bound / 312e12
    figure = views.price_tag(1e9, 8, tokens=512, products=1.0, microbatches=1)
    for stage, passes in enumerate(([4, 4], [4, 2], [4, 2], [2, 2, 4])):
        assert boxes(figure, f"held {stage}")[-1][1] == pytest.approx(model_state_bytes(1e9, 8, stage, state=FLOAT32))
        drawn = [right - left for left, right, *_ in boxes(figure, f"sent {stage}")]
        assert drawn == pytest.approx([nbytes * 1e9 * 7 / 8 for nbytes in passes])
        ((left, right, *_),) = boxes(figure, f"waiting {stage}")
        assert right - left == pytest.approx(step_waiting(stage, forward, 2 * forward, gather, 2 * gather))
        assert left == pytest.approx(3 * forward)


def test_4_microbatches_send_2_2_5_and_12_passes_and_leave_stage_1_alone_in_front():
    """512 tokens, half of what hides a gather: stages 1 and 2 wait equally only while there is one microbatch."""
    figure = views.price_tag(7.5e9, 64, tokens=512)
    for stage, passes in enumerate(("GG", "GW", "GGGGW", "WWG" * 4)):
        drawn = [right - left for left, right, *_ in boxes(figure, f"sent {stage}")]
        assert drawn == pytest.approx([{"G": 4, "W": 2}[name] * 7.5e9 * 63 / 64 for name in passes])
    ((left, _, *_),) = boxes(figure, "waiting 1")
    assert left == pytest.approx(4 * 6 * 7.5e9 * 512 / (0.65 * 312e12))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"params": 1e12, "P": 8}, "no stage fits"),
        ({"params": 1e9, "tokens": 32768}, "no stage that fits waits"),
        ({"params": 7.5e9, "tokens": 256, "cluster": DGX_H100, "microbatches": 1}, "1 and 2 wait least"),
    ],
)
def test_the_headline_names_the_stages_that_are_left(given, said):
    assert title(views.price_tag(**given)).endswith(said)


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [(0, "0 B"), (999, "999 B"), (999.6, "1 KB"), (41.25e9, "41.3 GB"), (999.4e9, "999 GB"), (2e15, "2 PB")],
)
def test_bytes_in_powers_of_1000_to_three_digits(nbytes, said):
    assert decimal_bytes(nbytes) == said


@pytest.mark.parametrize("vision", VISIONS)
def test_the_parts_differ_by_more_than_15(vision):
    assert closest(list(COLORS.values()), vision) > NOTICEABLE


def test_one_rank_has_nothing_to_send():
    words = [text.get_text() for text in views.price_tag(7.5e9, 1).findobj() if hasattr(text, "get_text")]
    assert words.count("nothing to send") == 4
    assert not any("passes" in word for word in words)
