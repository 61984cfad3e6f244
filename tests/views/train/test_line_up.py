"""A line-up draws what was given, names each curve at its end, and says nothing about which one is right."""

import math

import pytest

from parlab import views
from parlab.labs import seven_losses
from tests.views.drawn import artists, check_text, title


def names(figure):
    (axes,) = figure.axes
    return {text.get_text(): text.get_position()[1] for text in axes.texts}


def test_the_curves_are_the_losses_and_each_has_its_own_colour():
    losses = {str(number): [4.0, 3.0, 2.0 - number / 10] for number in range(8)}
    figure = views.line_up(losses, headline="Eight")
    lines = {name: artists(figure, f"losses {name}")[0] for name in losses}
    assert {name: list(line.get_ydata()) for name, line in lines.items()} == losses
    assert len({line.get_color() for line in lines.values()}) == 8
    assert title(figure) == "Eight"
    check_text(figure)


def test_the_lessons_seven_stand_from_the_highest_end_down_inside_the_picture_and_are_not_judged():
    figure = views.line_up(seven_losses())
    heights = names(figure)
    assert sorted(heights, key=heights.get)[::-1] == ["4", "5", "7", "2", "6", "1", "3"]
    assert min(heights.values()) > 0
    check_text(figure)
    assert repr(figure).splitlines()[0] == title(figure) == "7 trainings"
    assert "right" not in repr(figure)


@pytest.mark.parametrize("loss", [0.0, -1.0, math.nan, math.inf])
def test_a_loss_without_a_place_on_a_logarithmic_axis_is_refused(loss):
    with pytest.raises(ValueError, match=r"losses\['1'\]: each loss must be finite and above 0"):
        views.line_up({"1": [2.0, loss], "2": [2.0, 1.0]})


def test_one_training_nine_and_other_lengths_are_refused():
    for losses in ({"1": [1.0]}, {str(number): [1.0] for number in range(9)}):
        with pytest.raises(ValueError, match="2 to 8"):
            views.line_up(losses)
    with pytest.raises(ValueError, match="need the same number"):
        views.line_up({"1": [1.0], "2": [1.0, 2.0]})
