"""The strips are cut where the owner changes; an element left over is marked."""

import numpy as np
import pytest

from parlab import views
from parlab.views.drawing import theme
from parlab.views.zero_redundancy.owners import THICK
from parlab.zero import ShardMap, cut
from tests.views.drawn import artists, boxes, title


def owned(sizes, ranks, shard_map=None):
    return dict(zip("abcdefgh", cut(sizes, ranks, shard_map), strict=False))


def colors(figure):
    faces = [color for strip in artists(figure, "strips") for color in strip.get_facecolors()]
    return [tuple(round(255 * channel) for channel in color[:3]) for color in faces]


def rgb(code):
    return tuple(int(code[start : start + 2], 16) for start in (1, 3, 5))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 16, 33])
@pytest.mark.parametrize("sizes", [[12, 7], [5, 1000, 64, 1]])
def test_a_strip_is_as_long_as_its_block_and_cut_at_the_counts_in_the_owners_colours(sizes, ranks):
    counts = owned(sizes, ranks)
    figure = views.shard_owners(counts)
    drawn = [(*box, *color) for box, color in zip(boxes(figure, "strips"), colors(figure), strict=True)]
    expected = []
    for lane, of_block in enumerate(counts.values()):
        ends = np.cumsum(of_block)
        expected += [
            (end - count, end, lane - THICK, lane + THICK, *rgb(theme.rank_color(rank)))
            for rank, (end, count) in enumerate(zip(ends, of_block, strict=True))
            if count
        ]
    assert np.allclose(drawn, expected)


def test_10_elements_on_3_ranks_leave_one_over_and_rank_0_has_the_line_above():
    figure = views.shard_owners({"block": [4, 3, 3]})
    assert title(figure) == "10 elements on 3 ranks: 3 each, and 1 of them one more"
    ((left, right, _, roof),) = boxes(figure, "one more")
    assert (left, right) == (0, 4)
    assert roof < -THICK  # the axis points downwards: above the strip
    assert "+1" in figure.axes[0].get_xlabel()


def test_1606_elements_in_5_blocks_on_4_ranks_are_dealt_out_to_401_or_402_with_11_lines():
    counts = owned([153, 431, 431, 431, 160], 4)
    figure = views.shard_owners(counts)
    assert title(figure) == "1606 elements on 4 ranks: 401 each, and 2 of them one more"
    assert len(boxes(figure, "one more")) == 1 + 3 + 3 + 3 == sum(size % 4 for size in (153, 431, 431, 431, 160))
    assert repr(figure).splitlines()[-1].split() == ["all", "1606", "402", "402", "401", "401"]


@pytest.mark.parametrize("counts", [{"even": [4, 4]}, {"whole": [0, 8]}, {"a": [1, 0], "b": [0, 1]}])
def test_even_cuts_and_whole_blocks_have_nothing_left_over(counts):
    figure = views.shard_owners(counts)
    assert not artists(figure, "one more")
    assert figure.axes[0].get_xlabel() == "elements of a block"


def test_a_map_of_whole_blocks_is_drawn_with_one_colour_a_block():
    figure = views.shard_owners(ShardMap.round_robin(5, 4).with_ends())
    assert title(figure) == "7 blocks on 4 ranks: 1 to 4 a rank"
    assert [box[:2] for box in boxes(figure, "strips")] == [(0, 1)] * 7
    assert colors(figure) == [rgb(theme.rank_color(rank)) for rank in (0, 0, 1, 2, 3, 0, 0)]


def test_the_text_lists_8_ranks_and_says_that_there_are_more():
    rows = repr(views.shard_owners({"block": [2] * 9})).splitlines()
    assert rows[1].split()[-2:] == ["rank", "7"]
    assert rows[2].endswith("2 ...")


def test_a_title_of_ones_own():
    assert title(views.shard_owners({"block": [1]}, title="mine")) == "mine"
    assert repr(views.shard_owners({"block": [1]}, title="mine")).startswith("1 elements on 1 rank: 1 each")
