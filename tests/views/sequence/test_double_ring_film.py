"""The film of a double ring: its tiles are the mask's, and its K/V are where they are attended."""

import pytest

from parlab import labs, run, views
from parlab.sequence import LAYOUTS, RingSchedule, double_ring_attention, ring_attention
from parlab.views.sequence.double_ring_film import NODE, NOW, OTHER, double_ring_of
from parlab.views.sequence.ring_film import LENGTH
from tests.views.filmed import check_film, marks, tree_of


def ran(layout="zigzag", causal=True, size=4, ranks_per_node=2, **given):
    text = labs.tokens_on(gpus=size, each=14336, layout=layout)
    how = {"causal": causal, "layout": layout, "ranks_per_node": ranks_per_node, **given}
    return run(double_ring_attention, size, text, text, text, cluster=labs.h100s(ranks_per_node=2), **how).timeline


def filmed():
    return views.double_ring_film(ran(), causal=True, layout="zigzag")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("crossing", ["early", "late"])
def test_every_rank_attends_every_tile_of_its_mask_once_and_only_k_and_v_that_came(layout, crossing):
    shown = ran(layout, crossing=crossing)
    ring = double_ring_of(shown, True, layout)
    came = {(message.t.dst, message.source): message.t.end for message in ring.messages}
    assert len(came) == 4 * 3
    for rank, tiles in enumerate(ring.tiles):
        wanted = {s: RingSchedule(rank, 4).tile(s, LENGTH, layout, causal=True) for s in range(4)}
        assert {source: tile for _, source, tile in tiles} == {s: tile for s, tile in wanted.items() if tile}
        for span, source, _ in tiles:
            assert source == rank or came[rank, source] <= span.start
    check_film(views.double_ring_film(shown, True, layout))


def test_with_14_336_tokens_a_rank_a_double_ring_waits_for_nothing_and_one_ring_for_6_2_of_16_7_ms():
    text = labs.tokens_on(gpus=4, each=14336, layout="zigzag")
    how = {"causal": True, "layout": "zigzag", "cluster": labs.h100s(ranks_per_node=2)}
    one, double = run(ring_attention, 4, text, text, text, **how).timeline, ran()
    assert double.makespan == double.busy(0)
    waits = one.makespan - one.busy(0)
    assert (round(one.makespan / 1e9, 1), round(waits / 1e9, 1), round(double.makespan / 1e9, 1)) == (16.7, 6.2, 10.5)


def test_the_story_says_what_goes_inside_the_node_and_what_to_the_other():
    assert repr(filmed()).splitlines() == [
        "Double ring forward, 2 nodes of 2 ranks: 10.5 ms",
        "0 s: each rank attends its own K/V; K/V go inside the node and to the other node",
        "2.63 ms: rank 0 attends K/V 1, rank 1 K/V 0, rank 2 K/V 3, rank 3 K/V 2; "
        "those of the other node are on their way",
        "5.25 ms: rank 0 attends K/V 2, rank 1 K/V 3, rank 2 K/V 0, rank 3 K/V 1; K/V go inside the node",
        "7.87 ms: rank 0 attends K/V 3, rank 1 K/V 2, rank 2 K/V 1, rank 3 K/V 0",
        "10.5 ms: all ranks are done, 100% of the time was work",
    ]


def test_every_message_travels_to_the_place_of_its_way():
    film = filmed()
    ways = [numbers for kind in ("go", "go flow") for numbers, _ in marks(film, kind)]
    assert sorted((way["x"], abs(way["y"]) / 72) for way in ways) == [(NODE - NOW, 1)] * 8 + [(OTHER - NOW, 2)] * 4


def test_the_k_and_v_of_the_other_node_wait_at_a_place_of_their_own():
    boxes = [part for part in tree_of(filmed()).iter("rect") if part.get("x") == f"{OTHER}"]
    assert len(boxes) == 4


def test_without_a_mask_every_layout_fills_all_16_tiles():
    for layout in LAYOUTS:
        film = views.double_ring_film(ran(layout, causal=False), layout=layout)
        assert len(double_ring_of(ran(layout, causal=False), False, layout).tiles[0]) == 4
        assert film.headline.startswith("Double ring forward, 2 nodes of 2 ranks")
