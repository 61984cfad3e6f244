"""Every pixel of a mask is a pair of tokens, and every bar a count of pairs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex, to_rgb

from parlab import views
from parlab.sequence import LAYOUTS, unmasked_pairs
from parlab.views.engine import theme
from parlab.views.sequence.ring_masks import MASKED, SKIPPED
from tests.views.drawn import artists, boxes, texts, title
from tests.views.sequence.ring_runs import SIZES


def causal_mask(S):
    """Who sees whom among all tokens of the sequence, whichever rank has them: `[S, S]`."""
    return np.tril(np.ones((S, S), dtype=bool))


def dealt(S, size, layout):
    """Token positions in each rank's shard, dealt out by hand: `[P, S/P]`."""
    if layout == "striped":
        return np.arange(S).reshape(-1, size).T
    if layout == "contiguous":
        return np.arange(S).reshape(size, -1)
    chunks = np.arange(S).reshape(2 * size, -1)
    return np.concatenate([chunks[:size], chunks[::-1][:size]], axis=1)


def pixels(figure):
    (image,) = figure.axes[0].get_images()
    return np.asarray(image.get_array())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_the_causal_mask_between_the_tokens_of_both_ranks(size, layout, causal):
    S = 4 * size
    image, owned = pixels(views.ring_masks(S, size, layout, causal=causal)), dealt(S, size, layout)
    mask = causal_mask(S) if causal else np.ones((S, S), dtype=bool)
    for rank in range(size):
        for step in range(size):
            source = (rank - step) % size
            block = image[4 * rank : 4 * rank + 4, 4 * step : 4 * step + 4]
            seen = mask[np.ix_(owned[rank], owned[source])]
            assert (block[seen] == to_rgb(theme.rank_color(source))).all()
            hidden = {to_hex(color).upper() for color in block[~seen]}
            assert hidden <= {MASKED, SKIPPED}
            assert seen.any() or hidden == {SKIPPED}


@settings(max_examples=8)
@given(size=st.integers(1, 8), chunk=st.integers(1, 4), layout=st.sampled_from(LAYOUTS))
def test_bars_and_numbers_are_the_pairs_that_are_attended_and_a_line_their_mean(size, chunk, layout):
    S = 2 * size * chunk
    figure = views.ring_masks(S, size, layout)
    load = unmasked_pairs(S, size, layout)
    assert [box[:2] for box in boxes(figure, "load")] == [(0, pairs) for pairs in load]
    assert artists(figure, "mean")[0].get_xdata() == [sum(load) / size] * 2
    shown = [text for text, _ in texts(figure)]
    assert all(f"{pairs}" in shown for pairs in load)
    assert all(f"rank {rank}: {pairs} pairs" in repr(figure) for rank, pairs in enumerate(load))


def test_the_text_says_what_is_attended_in_each_step():
    assert repr(views.ring_masks(12, 3, "zigzag")).splitlines()[1:] == [
        "rank 0: 26 pairs; causal, full (late queries), full (late queries)",
        "rank 1: 26 pairs; causal, full (early keys), full (late queries)",
        "rank 2: 26 pairs; causal, full (early keys), full (early keys)",
    ]
    assert repr(views.ring_masks(6, 2)).splitlines()[1:] == [
        "rank 0: 6 pairs; causal, none",
        "rank 1: 15 pairs; causal, full",
    ]
    assert "rank 0: 9 pairs; causal, strict" in repr(views.ring_masks(6, 2, "striped"))
    assert "rank 0: 18 pairs; full, full" in repr(views.ring_masks(6, 2, causal=False))


def own_style(rank, source, length):
    """The rule of zigzag as a student may write it."""
    early = rank > source
    return (
        slice(0 if early or rank == source else -(length // 2), None),
        slice(length // 2 if early else length),
        np.bool_(rank == source),
    )


@pytest.mark.parametrize(("S", "size"), [(4, 1), (48, 3)])
def test_a_learners_right_rule_draws_the_same_pixels_pairs_and_words_as_the_library(S, size):
    mine, ours = views.ring_masks(S, size, "zigzag", rule=own_style), views.ring_masks(S, size, "zigzag")
    assert (pixels(mine) == pixels(ours)).all()
    assert repr(mine) == repr(ours)
    assert boxes(mine, "load") == boxes(ours, "load")


def test_a_learners_wrong_rule_is_drawn_as_it_is():
    """All queries see all early keys of every other rank, and the own tile has no mask."""

    def wrong(rank, source, length):
        return slice(0, length), slice(0, length if rank == source else length // 2), False

    figure = views.ring_masks(16, 2, "zigzag", rule=wrong)
    assert repr(figure).splitlines() == [
        "All ranks have the same work: zigzag, causal, 2 ranks, 16 tokens",
        "rank 0: 96 pairs; full, full (early keys)",
        "rank 1: 96 pairs; full, full (early keys)",
    ]
    tile = pixels(figure)[:8, 8:]  # of rank 0, the keys of rank 1
    assert (tile[:, :4] == to_rgb(theme.rank_color(1))).all()
    assert (tile[:, 4:] == to_rgb(SKIPPED)).all()


def test_a_rule_that_gives_rank_1_no_work_has_a_slowest_rank_of_twice_the_mean():
    lazy = views.ring_masks(8, 2, "zigzag", rule=lambda rank, source, c: (slice(c - c * rank), slice(c), False))
    assert title(lazy) == "The slowest rank works 2 times the mean: zigzag, causal, 2 ranks, 8 tokens"
    assert repr(lazy).endswith("rank 1: 0 pairs; none, none")


def test_the_halves_of_zigzag_shards_are_named_where_there_is_room_and_those_of_others_are_not():
    for size, layout, count in ((4, "zigzag", 8), (6, "zigzag", 12), (16, "zigzag", 0), (4, "contiguous", 0)):
        figure = views.ring_masks(2 * size, size, layout)
        said = [text for text, _ in texts(figure)]
        assert (said.count("early"), said.count("late")) == (count, count)
