"""The film of an MLP cut among ranks, and the arrays that a rank keeps."""

import re

import numpy as np
import pytest

from parlab import Cluster, per_rank, run, views
from parlab.views.sharding.film import GREY, HIGH, STEPS, WIDE, cut_mlp
from tests.views.filmed import check_film, marks, tree_of


def relu(z):
    return np.maximum(z, 0)


def mlp_step(comm, x, A, C, dy, names=STEPS):
    def work(step):
        return comm.compute(names[step], flops=2 * x.shape[0] * A.size)

    with work(0):
        before = x @ A
    with work(1):
        share = relu(before) @ C
    y = comm.all_reduce(share)
    with work(2):
        dbefore = (dy @ C.T) * (before > 0)
    with work(3):
        dshare = dbefore @ A.T
    dx = comm.all_reduce(dshare)
    with work(4):
        return y, dx, x.T @ dbefore, relu(before).T @ dy


def step_by_tokens(comm, x, A, C, dy):
    def work(step):
        return comm.compute(STEPS[step], flops=2 * comm.size * x.shape[0] * A.size)

    whole = comm.all_gather(x)
    with work(0):
        before = whole @ A
    with work(1):
        share = relu(before) @ C
    y, dy = comm.reduce_scatter(share), comm.all_gather(dy)
    with work(2):
        dbefore = (dy @ C.T) * (before > 0)
    with work(3):
        dshare = dbefore @ A.T
    dx, whole = comm.reduce_scatter(dshare), comm.all_gather(x)
    with work(4):
        return y, dx, whole.T @ dbefore, relu(before).T @ dy


SLOW = Cluster.uniform(latency=1e-6, bandwidth=1e9, flops=1e9)


def ran_by_tokens(size):
    x, A, C, dy = (np.ones(shape) for shape in ((24, 8), (8, 24), (24, 8), (24, 8)))
    cut = (per_rank(np.split(array, size, axis)) for array, axis in ((x, 0), (A, 1), (C, 0), (dy, 0)))
    return run(step_by_tokens, size, *cut, cluster=SLOW)


def ran(size, **options):
    x, A, C, dy = (np.ones(shape) for shape in ((6, 8), (8, 24), (24, 8), (6, 8)))
    return run(mlp_step, size, x, per_rank(np.split(A, size, 1)), per_rank(np.split(C, size)), dy, **options)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_4_t_times_t_minus_1_pieces_travel_in_two_all_reduces(size):
    film = views.film(ran(size))
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
    tree = tree_of(views.film(made(2)))
    arrays = [rectangle(part) for part in tree.iter("rect") if part.get("width") == str(WIDE)]
    ways = {}
    for part in tree.iter("g"):
        if part.get("class") == "go":
            numbers = {name: float(n) for name, n in re.findall(r"--(\w+):([-\d.e]+)", part.get("style"))}
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


def test_a_share_of_a_sum_is_drawn_as_large_as_the_whole_and_not_as_its_rank_s_columns():
    drawn = views.film(ran(2)).html
    whole = f'width="{WIDE}" height="{HIGH}" fill="{GREY}"'
    assert drawn.count(whole) == 2 * 4  # on each rank x and dy, and its shares of y and of dx
    assert f'width="{WIDE / 2 - 1:g}" height="{HIGH / 2 - 1:g}"' not in drawn


def test_shares_appear_when_they_are_computed_and_all_steps_are_told():
    film = views.film(ran(2))
    assert [line.partition(": ")[2][:24] for line in film.lines] == [
        "each rank multiplies all",
        "they meet C's rows of th",
        "reduce: a piece of each ",
        "reduce: each rank hands ",
        "backward: dy is whole on",
        "times its rows of Aᵀ: a ",
        "copy, backward: a piece ",
        "copy, backward: each ran",
        "dA and dC: all of a rank",
    ]


def grown(film):
    """From which second of the film to which each product is laid bare."""
    found = re.findall(r"inset\(0 0 clamp\(0%,\(([\d.]+) - var\(--t\)\)\*([\d.]+)%,100%\)\)", film.html)
    return [(round(float(ready) - 100 / float(pace), 1), float(ready)) for ready, pace in found]


def test_what_a_product_makes_grows_while_it_is_computed_and_dy_comes_when_y_is_whole():
    film = views.film(done := ran(2, cluster=SLOW))
    computes = [(span.start, span.end) for span in done.timeline.computes if span.rank == 0]
    expected = {(round(film.second(start, leaves=True), 1), film.second(end)) for start, end in computes}
    assert set(grown(film)) == expected
    assert len(grown(film)) == 2 * len(STEPS)
    y_whole = max(t.end for t in done.timeline.transfers if t.end <= computes[2][0])
    dy = [numbers["a"] for numbers, words in marks(film, "see") if words == ["dy"]]
    assert dy == [film.second(y_whole)] * 2


@pytest.mark.parametrize("made", [ran, ran_by_tokens])
def test_backward_c_stands_in_its_place_from_the_first_product_a_from_the_second_and_both_until_their_gradients(made):
    film = views.film(done := made(2))
    starts = [film.second(span.start, leaves=True) for span in done.timeline.computes if span.rank == 0]
    for name, start in (("C", starts[2]), ("A", starts[3])):
        shown = [numbers for numbers, words in marks(film, "see") if words == [name]]
        assert len(shown) == 2  # one on each rank
        assert {numbers["b"] for numbers in shown} == {starts[4]}
        assert all(start - 1 <= numbers["a"] <= start for numbers in shown)  # seen while the film stands still


def test_a_matrix_is_named_where_a_slice_has_room():
    words = [[part.text for part in tree_of(views.film(ran(size))).iter("text")] for size in (2, 3, 4)]
    assert [[texts.count(name) for name in ("A", "dA", "C", "dC")] for texts in words] == [
        [4, 2] * 2,
        [6, 3] * 2,
        [0] * 4,
    ]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_by_tokens_5_t_times_t_minus_1_pieces_travel_a_quarter_more_than_in_two_all_reduces(size):
    film = views.film(ran_by_tokens(size))
    check_film(film)
    assert len(marks(film, "go")) == 5 * size * (size - 1)
    assert film.headline.startswith(f"An MLP on {size} ranks, cut by tokens too: ")


def test_by_tokens_a_rank_keeps_its_own_part_of_x_and_of_both_sums():
    done = ran_by_tokens(2)
    film = views.film(done)
    of_rank_0 = [(span.start, span.end) for span in done.timeline.computes if span.rank == 0]
    shown = [mark for mark in marks(film, "see") if " " not in "".join(mark[1])]  # captions have spaces
    shown = [mark for mark in shown if mark[1] not in (["A"], ["C"])]  # the matrices that the backward reads
    columns = film.second(of_rank_0[0][1], leaves=True)
    scattered = [film.second(start + (end - start) // 2, leaves=True) for start, end in gaps(of_rank_0)]
    ends = sorted(numbers["b"] for numbers, _ in shown if "b" in numbers)
    assert ends == sorted([columns] * 2 + scattered * 2)  # x of the other rank, and the other's part of y and of dx
    own = [numbers["a"] for numbers, words in shown if words == ["dy"]]
    assert own == [film.second(of_rank_0[1][1] + (of_rank_0[2][0] - of_rank_0[1][1]) // 2)] * 2


def gaps(computes):
    """The times between rows and rows, back, and between columns, back and gradients: of two messages each."""
    return [(computes[1][1], computes[2][0]), (computes[3][1], computes[4][0])]


def test_by_tokens_the_story_says_what_is_gathered_scattered_and_gathered_again():
    assert [line.partition(": ")[2].partition(":")[0] for line in views.film(ran_by_tokens(2)).lines] == [
        "gather",
        "each rank multiplies all of x with its columns of A, and applies relu",
        "they meet C's rows of the same numbers",
        "scatter",
        "scatter, backward",
        "dy times its columns of Cᵀ is the gradient of x A, finished",
        "times its rows of Aᵀ",
        "gather, backward",
        "x travels again",
        "dA and dC",
    ]


def test_a_run_with_other_names_or_too_many_ranks_is_no_mlp():
    assert cut_mlp(ran(2).timeline)
    assert not cut_mlp(ran(2, names=STEPS[::-1]).timeline)
    assert not cut_mlp(ran(6).timeline)


WAYS = {"one": {"norm.x": 600, "mlp.gate": 400, "mlp.lse": 1}, "two": {"norm.x": 600, "mlp.gate": 200, "mlp.lse": 1}}


def test_arrays_that_stay_whole_stand_first_and_grey_and_small_ones_are_one():
    figure = views.kept_arrays(WAYS)
    assert repr(figure).splitlines() == [
        "one: 1001 B, two: 801 B",
        "one: 1001 B, of these 601 B in mlp.lse, norm.x",
        "two: 801 B, of these 601 B in mlp.lse, norm.x",
    ]
    ends = {
        bars.get_gid(): [path.get_extents().x1 for path in bars.get_paths()]
        for bars in figure.axes[0].collections
        if (bars.get_gid() or "").startswith("arrays")
    }
    assert ends == {"arrays one": [600, 1000, 1001], "arrays two": [600, 800, 801]}


def test_each_name_of_an_array_stands_once_below_whole_and_cut_apart():
    said = [text.get_text() for text in views.kept_arrays(WAYS).texts]
    assert "whole: norm.x" in said
    assert "cut: mlp.gate and smaller ones" in said


def test_the_bytes_of_all_ways_have_the_unit_of_the_most():
    figure = views.kept_arrays({"one": {"a": 4 * 2**30}, "two": {"a": 2**29}})
    assert repr(figure).splitlines()[0] == "one: 4.00 GiB, two: 0.50 GiB"


@pytest.mark.parametrize(
    ("ways", "said"),
    [
        ({}, "must have one value or more"),
        ({"one": {"a": 1}, "two": {"b": 1}}, "each of one, two must have the same arrays"),
        ({"one": {"a": -1}}, "must be a whole number, at least 0"),
    ],
)
def test_arrays_that_cannot_be_compared_are_refused(ways, said):
    with pytest.raises(ValueError, match=said):
        views.kept_arrays(ways)
