"""Loss curves say where the trainings end, and where they part; what is drawn is what was given."""

import math

import numpy as np
import pytest

from parlab import views
from parlab.views.engine.picture import png
from tests.views.drawn import artists, check_refused, check_text, texts, title

RIGHT = [4 / step for step in range(1, 41)]


def test_20_percent_more_loss_is_the_title_and_the_step_where_they_part_is_said():
    wrong = [*RIGHT[:9], *(1.2 * loss for loss in RIGHT[9:])]
    figure = views.loss_curves({"right": RIGHT, "no scale": wrong})
    assert title(figure) == "no scale ends at a loss of 0.12, right at 0.1: 20 % higher"
    assert repr(figure).splitlines()[-1] == "no scale and right part at step 10, by more than 1 %"
    check_text(figure)


def test_the_curves_are_the_losses():
    figure = views.loss_curves({"right": RIGHT, "wrong": RIGHT[::-1], "other": [1.0] * 40})
    for name, losses in {"right": RIGHT, "wrong": RIGHT[::-1], "other": [1.0] * 40}.items():
        (line,) = artists(figure, f"losses {name}")
        assert list(line.get_xdata()) == list(range(1, 41))
        assert list(line.get_ydata()) == losses
    check_text(figure)


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


def test_losses_that_hardly_differ_are_named_whole():
    figure = views.loss_curves({"right": [1000.0003, 1000.0002], "wrong": [1000.0003, 1000.0001]})
    low, high = figure.axes[0].get_ylim()
    names = [float(text) for text, _ in texts(figure) if text.startswith("1000.00")]
    assert len(names) > 2
    assert all(low <= loss <= high for loss in names)


def test_a_logarithmic_axis_is_one_where_equal_ratios_are_equal_distances():
    figure = views.loss_curves({"right": [4.0, 2.0, 1.0], "wrong": [4.0, 3.0, 2.0]}, log=True)
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    assert views.loss_curves({"right": RIGHT, "wrong": RIGHT}).axes[0].get_yscale() == "linear"
    check_text(figure)
    check_refused(lambda: views.loss_curves({"a": [1.0, 0.0], "b": [1.0, 1.0]}, log=True), "log=True", "loss of 0")
    check_refused(lambda: views.loss_curves({"a": [1.0], "b": [1.0]}, log="no"), "log='no'", "True or False")
