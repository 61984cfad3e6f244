"""A line-up draws what was given, names each curve at its end, and says nothing about which one is right."""

import pytest

from parlab import views
from parlab.labs import seven_losses
from parlab.views.engine import theme
from parlab.views.train.line_up import BOTTOM, TOP
from tests.views.filmed import check_film, marks, tree_of


def drawn(film):
    """The points of each curve."""
    lines = [part.get("points") for part in tree_of(film).iter("polyline")]
    return [[tuple(map(float, point.split(","))) for point in line.split()] for line in lines]


def test_equal_ratios_of_losses_are_equal_heights_and_equal_steps_equally_far_apart():
    film = views.line_up({"a": [8.0, 4.0, 2.0], "b": [8.0, 2.0, 1.0]})
    check_film(film)
    x, y = zip(*drawn(film)[0], strict=True)
    assert x[1] - x[0] == x[2] - x[1]
    assert y[1] - y[0] == pytest.approx(y[2] - y[1], abs=0.11)
    _, lower = zip(*drawn(film)[1], strict=True)
    assert lower[1] == y[2]
    assert lower[2] - lower[1] == pytest.approx(y[1] - y[0], abs=0.11)


def test_each_of_eight_curves_has_its_own_colour_and_grows_from_the_left():
    film = views.line_up({str(number): [4.0, 3.0, 2.0 - number / 10] for number in range(8)})
    colors = [part.get("stroke") for part in tree_of(film).iter("polyline")]
    assert colors == list(theme.RANKS[:8])
    assert len(marks(film, "bare")) == 8 + 1  # and the clock


def test_the_lessons_seven_are_named_from_the_highest_end_down_when_all_steps_are_made_and_are_not_judged():
    film = views.line_up(seven_losses())
    check_film(film)
    ((when, names),) = [(numbers, said) for numbers, said in marks(film, "see") if said[:1] == ["1"]]
    assert when["a"] == pytest.approx(film.second(10))
    assert sorted(names) == list("1234567")
    (group,) = [part for part in tree_of(film).iter("g") if [text.text for text in part.iter("text")] == names]
    heights = {text.text: float(text.get("y")) for text in group.iter("text")}
    assert sorted(heights, key=heights.get) == ["4", "5", "7", "2", "6", "1", "3"]
    assert TOP < min(heights.values()) < max(heights.values()) <= BOTTOM
    assert repr(film).splitlines()[0] == "7 trainings"
    assert "right" not in repr(film)
