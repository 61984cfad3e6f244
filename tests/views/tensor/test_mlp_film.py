"""The film of an MLP cut among ranks: whole arrays, shards and partial sums, and the messages between ranks."""

import re
from functools import cache

import numpy as np
import pytest

from parlab import Cluster, views
from parlab.labs import mlp_run, mlp_step
from parlab.views.engine import theme
from parlab.views.tensor.mlp_film import GREY, HIGH, STEPS, WIDE
from tests.views.filmed import check_film, marks, parts, tree_of

SLOW = Cluster.uniform(latency=1e-6, bandwidth=1e9, flops=1e9)


@cache
def ran_by_tokens(size):
    return mlp_run(mlp_step, size, by_tokens=True, cluster=SLOW)


@cache
def ran(size, **options):
    return mlp_run(mlp_step, size, **options)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_4_t_times_t_minus_1_pieces_travel_in_two_all_reduces(size):
    film = views.mlp_film(ran(size))
    check_film(film)
    assert len(marks(film, "go")) == 4 * size * (size - 1)
    assert film.headline.startswith(f"An MLP on {size} ranks, forward and backward: ")


def rectangle(part):
    left, top, width, height = (float(part.get(side)) for side in ("x", "y", "width", "height"))
    return left, left + width, top, top + height


def overlap(one, two):
    return min(one[1], two[1]) > max(one[0], two[0]) and min(one[3], two[3]) > max(one[2], two[2])


@pytest.mark.parametrize("made", [ran, ran_by_tokens])
def test_a_message_between_2_ranks_covers_no_array_but_its_own_two_and_no_other_message(made):
    film = views.mlp_film(made(2))
    arrays = [rectangle(part) for part in tree_of(film).iter("rect") if part.get("width") == str(WIDE)]
    ways = {}
    for numbers, part in parts(film, "go"):
        frame = rectangle(part.find("rect"))
        own = {array for array in arrays for by in (0, numbers["y"]) if overlap(moved(frame, 0, by), array)}
        for share in np.linspace(0, 1, 41):
            bow = 4 * share * (1 - share)
            here = moved(frame, numbers.get("v", 0) * bow, numbers["y"] * share)
            assert {array for array in arrays if overlap(here, array)} <= own
            assert here[0] >= 0
            assert here[1] <= 640
            if share == 0.5:
                ways.setdefault(numbers["a"], []).append(here)
    assert ways
    assert not any(overlap(*pair) for pair in ways.values())  # two leave at a time, and meet half-way


def moved(frame, x, y):
    return frame[0] + x, frame[1] + x, frame[2] + y, frame[3] + y


def kinds(film):
    """Of each place of an array, and of the key's three: its size and its fill, or "stripes" where a line is broken."""
    found = []
    for part in tree_of(film).iter():
        if part.tag.endswith("path") and part.get("stroke-dasharray"):
            found.append((float(part.get("d").partition("h")[2]), float(part.get("stroke-width")), "stripes"))
        elif part.tag.endswith("rect") and part.get("fill"):
            found.append((float(part.get("width")), float(part.get("height")), part.get("fill")))
    return found


def test_what_goes_backward_stands_below_all_that_goes_forward():
    names = re.findall(r'<text x="\d+" y="(\d+)"[^>]*>(x|y|dx|dy)</text>', views.mlp_film(ran(2)).html)
    forward, backward = ([int(y) for y, name in names if (name[0] == "d") == back] for back in (False, True))
    assert max(forward) < min(backward)


def test_a_partial_sum_is_striped_and_as_large_as_the_whole_which_is_grey_and_a_shard_is_neither():
    drawn = kinds(views.mlp_film(ran(2)))
    assert drawn.count((WIDE, HIGH, "stripes")) == 2 * 2  # on each rank: of y and of dx
    assert drawn.count((WIDE, HIGH, GREY)) == 2 * 4  # on each rank: x, dy, and when all are added y and dx
    assert not [
        kind for wide, high, kind in drawn if (wide, high) == (WIDE / 2 - 1, HIGH) and kind in (GREY, "stripes")
    ]


def test_by_tokens_x_and_dy_are_shards_until_all_tokens_are_here_and_y_and_dx_end_as_shards():
    drawn = kinds(views.mlp_film(ran_by_tokens(2)))
    assert drawn.count((WIDE, HIGH, GREY)) == 2 * 3  # on each rank: x, dy, and x again
    assert (WIDE, HIGH / 2 - 1, GREY) not in drawn
    for rank in (0, 1):  # x, dy, y and dx, and the row matrices C and dC; and tokens that travel and arrive
        assert drawn.count((WIDE, HIGH / 2 - 1, theme.rank_color(rank))) >= 4


def grown(film):
    """From which second of the film to which each product is laid bare."""
    found = re.findall(r"inset\(0 0 clamp\(0%,\(([\d.]+) - var\(--t\)\)\*([\d.]+)%,100%\)\)", film.html)
    return [(round(float(ready) - 100 / float(pace), 1), float(ready)) for ready, pace in found]


def test_what_a_product_makes_grows_while_it_is_computed_and_dy_comes_when_y_is_whole():
    film = views.mlp_film(done := ran(2, cluster=SLOW))
    computes = [(span.start, span.end) for span in done.timeline.computes if span.rank == 0]
    expected = {(round(film.second(start, leaves=True), 1), film.second(end)) for start, end in computes}
    assert set(grown(film)) == expected
    assert len(grown(film)) == 2 * len(STEPS)
    y_whole = max(t.end for t in done.timeline.transfers if t.end <= computes[2][0])
    dy = [numbers["a"] for numbers, words in marks(film, "see") if words == ["dy"]]
    assert dy == [film.second(y_whole)] * 2


@pytest.mark.parametrize("made", [ran, ran_by_tokens])
def test_backward_c_stands_in_its_place_from_the_first_product_a_from_the_second_and_both_until_their_gradients(made):
    film = views.mlp_film(done := made(2))
    starts = [film.second(span.start, leaves=True) for span in done.timeline.computes if span.rank == 0]
    for name, start in (("C", starts[2]), ("A", starts[3])):
        shown = [numbers for numbers, words in marks(film, "see") if words == [name]]
        assert len(shown) == 2  # one on each rank
        assert {numbers["b"] for numbers in shown} == {starts[4]}
        assert all(start - 1 <= numbers["a"] <= start for numbers in shown)  # seen while the film stands still


def test_a_matrix_is_named_where_a_slice_has_room():
    words = [[part.text for part in tree_of(views.mlp_film(ran(size))).iter("text")] for size in (2, 3, 4)]
    counted = [[texts.count(name) for name in ("A", "dA", "C", "dC")] for texts in words]
    assert counted == [[4, 2] * 2, [6, 3] * 2, [0] * 4]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_by_tokens_5_t_times_t_minus_1_pieces_travel_a_quarter_more_than_in_two_all_reduces(size):
    film = views.mlp_film(ran_by_tokens(size))
    check_film(film)
    assert len(marks(film, "go")) == 5 * size * (size - 1)
    assert film.headline.startswith(f"An MLP on {size} ranks, cut by tokens too: ")


def test_by_tokens_a_rank_keeps_its_own_part_of_x_and_of_both_sums():
    done = ran_by_tokens(2)
    film = views.mlp_film(done)
    of_rank_0 = [(span.start, span.end) for span in done.timeline.computes if span.rank == 0]
    shown = [mark for mark in marks(film, "see") if " " not in "".join(mark[1])]  # captions have spaces
    shown = [mark for mark in shown if mark[1] not in (["A"], ["C"])]  # the matrices that the backward reads
    columns = film.second(of_rank_0[0][1], leaves=True)
    scattered = [film.second(start + (end - start) // 2, leaves=True) for start, end in gaps(of_rank_0)]
    ends = sorted(numbers["b"] for numbers, _ in shown if "b" in numbers)
    assert ends == sorted([columns] * 4 + scattered * 2)  # x: the other rank's and whole; the other's part of y and dx
    own = [numbers["a"] for numbers, words in shown if words == ["dy"]]
    whole = film.second(of_rank_0[2][0])
    assert own == [film.second(of_rank_0[1][1] + (of_rank_0[2][0] - of_rank_0[1][1]) // 2)] * 2 + [whole] * 2


def gaps(computes):
    """The times between rows and rows, back, and between columns, back and gradients: of two messages each."""
    return [(computes[1][1], computes[2][0]), (computes[3][1], computes[4][0])]
