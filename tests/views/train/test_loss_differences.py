"""Differences of losses, where rounding can be seen."""

import math

import pytest

from parlab import views
from parlab.views.engine import theme
from tests.views.drawn import artists, check_text


def test_rounding_and_a_bug_are_told_apart_with_the_step_at_which_it_starts():
    right = [4.0, 3.0, 2.0]
    figure = views.loss_differences({"right": right, "rounded": [4.0, 3.0 * (1 + 1e-15), 2.0], "bug": [4.0, 3.0, 2.1]})
    assert figure.text_shown.splitlines() == [
        "1 of 2 differs by more than rounding",
        "rounded: differs by 1e-12 or less",
        "bug: differs by at most 5e-02; by more than 1e-12 from step 3 on",
    ]
    check_text(figure)


def test_eight_curves_fit_and_a_lost_loss_counts_as_different():
    curves = {"right": [1.0, 1.0]} | {f"training {n}": [1.0, 1 + 10.0**-n] for n in range(6)}
    figure = views.loss_differences({**curves, "lost": [1.0, math.nan]})
    assert "7 of 7 differ by more than rounding" in figure.text_shown
    check_text(figure)


def test_names_stand_at_the_curves_from_the_largest_down_and_those_of_rounding_together():
    curves = {"right": [1.0, 1.0], "none": [1.0, 1.0], "small": [1.0, 1.001], "large": [1.0, 1.002], "mean": [1.0, 1.0]}
    figure = views.loss_differences(curves)
    (axes,) = figure.axes
    heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
    assert heights["large"] > heights["small"] > heights["none, mean"]
    gray = {artists(figure, f"differences {name}")[0].get_color() for name in ("none", "mean")}
    assert gray == {theme.FAINT}
    check_text(figure)


def test_a_band_up_to_the_noise_of_a_right_training_is_drawn_where_it_is_given():
    curves = {"right": [1.0, 1.0], "small": [1.0, 1.03], "large": [1.0, 1.2]}
    figure = views.loss_differences(curves, noise=0.07)
    (band,) = artists(figure, "noise")
    assert band.get_y() + band.get_height() == pytest.approx(0.07)
    assert "up to 7 %" in " ".join(text.get_text() for text in figure.axes[0].texts)
    assert artists(views.loss_differences(curves), "noise") == []
    check_text(figure)
    with pytest.raises(ValueError, match="noise=0: must be a number greater than 0"):
        views.loss_differences(curves, noise=0)


def test_losses_of_other_lengths_and_nine_trainings_are_refused():
    with pytest.raises(ValueError, match="need the same number"):
        views.loss_differences({"a": [1.0], "b": [1.0, 2.0]})
    with pytest.raises(ValueError, match="2 to 8"):
        views.loss_differences({str(n): [1.0] for n in range(9)})
