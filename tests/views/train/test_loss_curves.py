"""Loss curves say where the trainings end, and where they part; what is drawn is what was given."""

import math

import numpy as np
import pytest

from parlab import views
from parlab.views.engine.picture import png
from tests.views.drawn import artists, title

RIGHT = [4 / step for step in range(1, 41)]


def test_20_percent_more_loss_is_the_title_and_the_step_where_they_part_is_said():
    wrong = [*RIGHT[:9], *(1.2 * loss for loss in RIGHT[9:])]
    figure = views.loss_curves({"right": RIGHT, "no scale": wrong})
    assert title(figure) == "no scale ends at a loss of 0.12, right at 0.1: 20 % higher"
    assert repr(figure).splitlines()[-1] == "no scale and right part at step 10, by more than 1 %"


def test_the_curves_are_the_losses():
    figure = views.loss_curves({"right": RIGHT, "wrong": RIGHT[::-1], "other": [1.0] * 40})
    for name, losses in {"right": RIGHT, "wrong": RIGHT[::-1], "other": [1.0] * 40}.items():
        (line,) = artists(figure, f"losses {name}")
        assert list(line.get_xdata()) == list(range(1, 41))
        assert list(line.get_ydata()) == losses


def test_a_loss_that_differs_by_1e_12_is_told_by_the_same_text_and_as_no_difference():
    close = np.array(RIGHT) * (1 + 1e-12)
    assert repr(views.loss_curves({"right": RIGHT, "wrong": close})) == repr(
        views.loss_curves({"right": close, "wrong": RIGHT})
    )
    assert "does not tell them apart" in title(views.loss_curves({"right": RIGHT, "wrong": close}))


@pytest.mark.parametrize("end", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_lost(end):
    figure = views.loss_curves({"right": [2.0, 1.0, 0.5], "wrong": [2.0, end, end]})
    assert title(figure) == f"wrong is lost: its loss ends as {end}, that of right at 0.5"
    assert "part at step 2" in repr(figure)
    assert png(figure)


def test_of_losses_near_zero_the_ratio_is_said():
    assert title(views.loss_curves({"right": [1.0, 0.01], "wrong": [1.0, 0.5]})).endswith("50 ×")
    assert title(views.loss_curves({"right": [0.0], "wrong": [1.0]})).endswith("loss of 1, right at 0")


def test_a_logarithmic_axis_is_one_where_equal_ratios_are_equal_distances():
    figure = views.loss_curves({"right": [4.0, 2.0, 1.0], "wrong": [4.0, 3.0, 2.0]}, log=True)
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    assert views.loss_curves({"right": RIGHT, "wrong": RIGHT}).axes[0].get_yscale() == "linear"
