"""The film of ring attention: its tiles are the mask's, its K/V are where they are attended, its messages the run's."""

from functools import cache
from itertools import product

import numpy as np
import pytest

from parlab import Cluster, per_rank, run, views
from parlab.sequence import LAYOUTS, ring_attention, ring_attention_backward, shard
from parlab.views.engine import theme
from parlab.views.sequence.ring_film import CHIP, HERE, ROW, TOP, ring_of
from tests.views.filmed import check_film, parts, tree_of
from tests.views.sequence.ring_runs import check_tiles, learners_ring

LINK = Cluster.uniform(latency=0, bandwidth=50e9, flops=1e12)


@cache
def ran(size=4, layout="zigzag", causal=True, backward=False, c=64, cluster=LINK, dtype="float32"):
    x = per_rank(shard(np.zeros((1, 4, c * size, 8), dtype), size, layout))
    lse = per_rank(shard(np.zeros((1, 4, c * size), np.float32), size, layout, axis=2))
    how = {"causal": causal, "layout": layout, "cluster": cluster}
    if backward:
        return run(ring_attention_backward, size, x, x, x, x, x, lse, **how)
    return run(ring_attention, size, x, x, x, **how)


def filmed(size=4, layout="zigzag", causal=True, backward=False):
    return views.ring_film(ran(size, layout, causal, backward), causal, layout, backward=backward)


CASES = [(size, layout, True, backward) for size in (2, 3, 4) for layout in LAYOUTS for backward in (False, True)]
CASES += [(3, "contiguous", False, False), (4, "contiguous", False, True)]


@pytest.mark.parametrize(("size", "layout", "causal", "backward"), CASES)
def test_every_rank_attends_every_tile_of_its_mask_once_and_only_k_and_v_that_came(size, layout, causal, backward):
    shown = ran(size, layout, causal, backward).timeline
    ring = ring_of(shown, causal, layout, backward=backward)
    came = {(hop.t.dst, hop.source): hop.t.end for hop in ring.hops if not hop.gradients}
    check_tiles(ring.tiles, came, layout, causal)
    check_film(views.ring_film(shown, causal, layout, backward=backward))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_gradient_leaves_a_rank_after_its_share_was_made_there_and_ends_at_home(layout):
    ring = ring_of(ran(4, layout, backward=True).timeline, True, layout, backward=True)
    worked = {(rank, source): span.end for rank, tiles in enumerate(ring.tiles) for span, source, _ in tiles}
    gradients = [hop for hop in ring.hops if hop.gradients]
    assert len(gradients) == 4 * 4
    assert sum(hop.t.dst == hop.source for hop in gradients) == 4
    for hop in gradients:
        assert worked.get((hop.t.src, hop.source), 0) <= hop.t.start
    assert {hop.t.nbytes for hop in ring.hops} == {64 * 2 * 4 * 8 * 4}  # both in float32


def test_a_k_and_v_and_its_gradient_are_told_apart_by_their_bytes():
    """K/V in float16 have half of the bytes of their gradients, which are float32."""
    for ports in (1, None):
        cluster = Cluster.uniform(0, 50e9, flops=1e12, ports=ports)
        shown = ran(backward=True, cluster=cluster, dtype="float16").timeline
        sizes = {(hop.gradients, hop.t.nbytes) for hop in ring_of(shown, True, "zigzag", backward=True).hops}
        assert sizes == {(False, 64 * 2 * 4 * 8 * 2), (True, 64 * 2 * 4 * 8 * 4)}


def test_the_bars_of_the_lanes_are_the_work_and_the_messages_of_both_ports_in_the_colours_of_their_k_and_v():
    bars = [rect.attrib for rect in tree_of(filmed(4, "contiguous")).findall(".//g[@class='bare']/rect")]
    for rank in range(4):
        own, came = ([(start - hop) % 4 for hop in range(3)] for start in (rank, rank - 1))
        for below, sources in ((0, came), (11, range(rank, -1, -1)), (34, own)):  # in-port, work, out-port
            lane = [(float(bar["x"]), bar["fill"]) for bar in bars if float(bar["y"]) == TOP + ROW * rank + below]
            assert [fill for _, fill in sorted(lane)] == [theme.rank_color(source) for source in sources]


def test_k_and_v_that_come_while_a_rank_works_wait_beside_those_that_it_attends():
    """Ranks 1, 2 and 3 work when the second hop ends, ranks 2 and 3 when the third does."""
    seen = [part.find("rect") for _, part in parts(filmed(4, "contiguous"), "see")]
    places = [float(rect.get("x")) for rect in seen if rect is not None and rect.get("width") == str(CHIP)]
    assert places.count(HERE[1]) == 3 + 2


@pytest.mark.parametrize(("layout", "triangles"), [("contiguous", 4), ("zigzag", 4), ("striped", 16)])
def test_grey_is_masked_in_a_tile_that_is_attended_and_nothing_else(layout, triangles):
    tree = tree_of(filmed(4, layout))
    grey = [group for group in tree.iter("g") if any(part.get("class") == "empty" for part in group.findall("rect"))]
    hidden = [group for group in grey if group.get("class") == "see"]
    assert len(hidden) == triangles
    assert all(group.find("path") is not None for group in hidden)  # the coloured triangle over it
    places = [part for part in tree.iter("rect") if part.get("stroke-opacity")]
    assert len(places) == 16
    assert all(part.get("fill") == "none" for part in places)


def test_the_story_of_a_contiguous_ring_says_which_ranks_see_nothing():
    assert repr(filmed(4, "contiguous")).splitlines() == [
        "Ring attention forward, 4 ranks: 1.90 µs",
        "0 s: each rank attends its own K/V; all K/V go to the next rank",
        "328 ns: rank 1 attends K/V 0, rank 2 K/V 1, rank 3 K/V 2; all K/V go to the next rank; "
        "ranks 0, 1 may see nothing of what came",
        "852 ns: rank 2 attends K/V 0, rank 3 K/V 1; all K/V go to the next rank; "
        "ranks 0, 1, 2 may see nothing of what came",
        "1.38 µs: rank 3 attends K/V 0",
        "1.90 µs: all ranks are done, 55% of the time was work",
    ]


@pytest.mark.parametrize("name", ["my ring", "ring", "ring, causal=True, layout=zigzag"])
def test_a_learners_program_is_filmed_whatever_its_work_is_called(name):
    assert "Ring attention forward, 4 ranks" in repr(views.ring_film(run(learners_ring, 4, np.zeros(4), name=name)))


@pytest.mark.parametrize("size", [3, 4])
def test_no_letter_that_goes_back_to_rank_0_covers_one_that_goes_down_or_kv_attended_now(size):
    ways = {}
    for numbers, part in parts(filmed(size, backward=True), "go"):
        frame = part.find("rect")  # the first is the letter's
        x, y = float(frame.get("x")), float(frame.get("y"))
        ways.setdefault(numbers["a"], []).append((x, y, *(numbers.get(name, 0) for name in "xyv")))
    assert len(ways) == 2 * size - 1  # hops
    for letters in ways.values():
        (up,), downs = ([one for one in letters if (one[3] < 0) == way] for way in (True, False))
        assert len(downs) == size - 1
        for part, down in product(np.linspace(0, 1, 101), downs):
            (left, top), (x, y) = (place(one, part) for one in (up, down))
            assert max(abs(left - x), abs(top - y)) >= CHIP, (part, up, down)
        if up[0] + 3 == HERE[0]:  # K/V: the rows above have K/V of their own, which they attend now
            for part, row in product(np.linspace(0, 1, 101), range(1, size)):
                left, top = place(up, part)
                assert max(abs(left - up[0]), abs(top - (up[1] - ROW * row))) >= CHIP, (part, row)


def place(way, part):
    x, y, dx, dy, aside = way
    return x + dx * part + 4 * part * (1 - part) * aside, y + dy * part


def test_gradients_rest_at_a_rank_until_they_leave_and_stand_framed_at_home():
    seen = parts(filmed(3, backward=True), "see")
    rests = [(at, part) for at, part in seen if part.find("rect") is not None and part.find("rect").get("stroke")]
    assert len(rests) == 3 * 4  # where it is made, and after each of 3 hops
    home = [part.find("text") for at, part in rests if len(part.findall("rect")) == 2]
    assert [text.text for text in sorted(home, key=lambda text: float(text.get("y")))] == ["0", "1", "2"]
    assert all(("b" in at) == (len(part.findall("rect")) == 1) for at, part in rests)  # those at home stay


def test_the_story_of_a_backward_ends_when_all_gradients_come_home():
    assert repr(filmed(4, backward=True)).splitlines()[-4:-1] == [
        "1.65 µs: all K/V go to the next rank while all ranks still work",
        "1.98 µs: rank 0 attends K/V 1, rank 1 K/V 2, rank 2 K/V 3, rank 3 K/V 0; all dK/dV go to the next rank",
        "2.63 µs: all dK/dV come home",
    ]
