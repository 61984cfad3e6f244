"""The price tag's bars are the closed forms, and its headline names the stages that fit and wait least."""

import pytest

from parlab import views
from parlab.views.zero_redundancy.price_tag import GRADIENTS
from parlab.world import DGX_H100
from parlab.zero import MIXED, StateBytes, model_state_bytes, step_waiting, tokens_to_hide_a_gather
from tests.views.drawn import boxes, check_text, title

SLIDERS = views.explore_price_tag().controls
FLOAT32 = StateBytes(gradient=4)


def test_70_billion_on_64_a100s_with_8192_tokens_fit_in_stage_3_alone_which_waits_for_nothing():
    figure = views.price_tag()
    assert title(figure) == "Ψ = 70 billion on 64 A100s, 8192 tokens each: only stage 3 fits, and waits 0 s"
    check_text(figure)


@pytest.mark.parametrize(("tokens", "waits"), [(2048, True), (4096, False)])
def test_stage_3_waits_below_2275_tokens_and_not_above(tokens, waits):
    assert (" waits 0 s" in title(views.price_tag(tokens=tokens))) != waits


@pytest.mark.parametrize("state", [MIXED, FLOAT32], ids=str)
def test_with_1024_tokens_7_5_billion_wait_least_in_stages_1_and_2(state):
    figure = views.price_tag(7.5e9, 64, tokens=1024, state=state)
    assert title(figure).endswith("of the stages that fit, 1 and 2 wait least")
    check_text(figure)


def test_the_sliders_open_where_no_stage_waits_and_reach_the_1024_tokens_that_the_lesson_asks_about():
    explorer = views.explore_price_tag()
    assert "8192 tokens each: no stage that fits waits" in repr(explorer.figure)
    explorer.controls["tokens"].value = 1024
    assert "1024 tokens each: of the stages that fit, 1 and 2 wait least" in repr(explorer.figure)


def test_bars_are_bytes_of_the_parts_of_the_passes_and_the_waiting():
    """8 ranks in a node: a pass of 2 bytes a weight takes as long as a forward of 910 tokens."""
    bound = tokens_to_hide_a_gather(312e12, 300e9, 8)
    forward, gather = 2e9 * 512 / 312e12, 2e9 * bound / 312e12
    figure = views.price_tag(1e9, 8, tokens=512, state=FLOAT32)
    for stage, passes in enumerate(([4, 4], [4, 2], [4, 2], [2, 2, 4])):
        assert boxes(figure, f"held {stage}")[-1][1] == pytest.approx(model_state_bytes(1e9, 8, stage, state=FLOAT32))
        drawn = [right - left for left, right, *_ in boxes(figure, f"sent {stage}")]
        assert drawn == pytest.approx([nbytes * 1e9 * 7 / 8 for nbytes in passes])
        ((left, right, *_),) = boxes(figure, f"waiting {stage}")
        assert right - left == pytest.approx(step_waiting(stage, forward, 2 * forward, gather, 2 * gather))
        assert left == pytest.approx(3 * forward)


def test_4_microbatches_send_2_2_5_and_12_passes_and_leave_stage_1_alone_in_front():
    """1024 tokens, 0.45 of what hides a gather: stages 1 and 2 wait equally only while there is one microbatch."""
    figure = views.price_tag(7.5e9, 64, tokens=1024, microbatches=4)
    assert title(figure) == "Ψ = 7.5 billion on 64 A100s, 4 × 1024 tokens each: of the stages that fit, 1 waits least"
    for stage, passes in enumerate((2, 2, 5, 12)):
        assert len(boxes(figure, f"sent {stage}")) == passes
        assert boxes(figure, f"sent {stage}")[-1][1] == pytest.approx(passes * 2 * 7.5e9 * 63 / 64)
    ((left, _, *_),) = boxes(figure, "waiting 1")
    assert left == pytest.approx(4 * 6 * 7.5e9 * 1024 / 312e12)
    check_text(figure)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"params": 1e12, "P": 8}, "no stage fits 80 GB"),
        ({"params": 1e9, "tokens": 32768}, "no stage that fits waits"),
        ({"params": 1e9, "P": 1}, "no stage that fits waits"),
        ({"params": 7.5e9, "tokens": 256, "state": FLOAT32, "cluster": DGX_H100}, "1 and 2 wait least"),
    ],
)
def test_the_headline_names_the_stages_that_are_left(given, said):
    assert title(views.price_tag(**given)).endswith(said)


@pytest.mark.parametrize("ends", [0, -1])
def test_sliders_at_their_ends_draw_words_that_do_not_touch(ends):
    given = {name: list(control.options)[ends][1] for name, control in SLIDERS.items()}
    check_text(views.price_tag(**given))
    assert given["state"] in GRADIENTS.values()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"params": 0}, "params=0"),
        ({"tokens": 0}, "tokens=0"),
        ({"P": 12}, "12"),
        ({"microbatches": 0}, "microbatches=0"),
        ({"products": 1.5}, "products=1.5"),
        ({"state": 16}, "state=16"),
        ({"cluster": 8}, "cluster=8"),
    ],
)
def test_bad_input_is_refused_by_name(given, said):
    with pytest.raises(ValueError, match=said):
        views.price_tag(**given)


def test_a_first_screen_without_formulas_shows_the_bytes_alone():
    words = [
        text.get_text()
        for text in views.zero(70e9, 64, 0, formulas=False, end=320e9).findobj()
        if hasattr(text, "get_text")
    ]
    assert "155 GB\ndoes not fit" in words
    # a cut bar hides the part that stage 1 shards
    assert "1.12 TB, does not fit\n840 GB is optimizer state" in words
    assert "293 GB\ndoes not fit" in words
    assert not any("Ψ/P" in word for word in words)


def test_one_rank_has_nothing_to_send():
    words = [text.get_text() for text in views.price_tag(7.5e9, 1).findobj() if hasattr(text, "get_text")]
    assert words.count("nothing to send") == 4
    assert not any("passes" in word for word in words)
