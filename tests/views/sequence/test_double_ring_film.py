"""The film of a double ring: its tiles are the mask's, and its K/V are where they are attended."""

import pytest

from parlab import labs, run, views
from parlab.sequence import LAYOUTS, double_ring_attention
from parlab.views.sequence.double_ring_film import NODE, NOW, OTHER, double_ring_of
from tests.views.filmed import check_film, marks
from tests.views.sequence.ring_runs import check_tiles


def ran(layout="zigzag", **given):
    text = labs.tokens_on(gpus=4, each=14336, layout=layout)
    how = {"causal": True, "layout": layout, "ranks_per_node": 2, **given}
    return run(double_ring_attention, 4, text, text, text, cluster=labs.h100s(ranks_per_node=2), **how).timeline


def filmed():
    return views.double_ring_film(ran(), causal=True, layout="zigzag")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("crossing", ["early", "late"])
def test_every_rank_attends_every_tile_of_its_mask_once_and_only_k_and_v_that_came(layout, crossing):
    shown = ran(layout, crossing=crossing)
    ring = double_ring_of(shown, True, layout)
    came = {(message.t.dst, message.source): message.t.end for message in ring.messages}
    assert len(came) == 4 * 3
    check_tiles(ring.tiles, came, layout)
    check_film(views.double_ring_film(shown, True, layout))


def test_every_message_travels_to_the_place_of_its_way():
    film = filmed()
    ways = [numbers for kind in ("go", "go flow") for numbers, _ in marks(film, kind)]
    assert sorted((way["x"], abs(way["y"]) / 72) for way in ways) == [(NODE - NOW, 1)] * 8 + [(OTHER - NOW, 2)] * 4
