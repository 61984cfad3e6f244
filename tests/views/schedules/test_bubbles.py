"""Idle time and kept activations against m: dots that were simulated lie on the closed forms' curves."""

import numpy as np
import pytest

from parlab import views
from parlab.views.schedules import bubbles


def curves(figure):
    """{colour: [(curve), (dots)]} of the two panels."""
    return [
        [(line.get_color(), line.get_linestyle() == "None", line.get_xydata()) for line in axes.lines]
        for axes in figure.axes
    ]


@pytest.mark.parametrize(
    ("schedule", "idle", "kept"),
    [("GPipe", 100 * 3 / 11, 8), ("1F1B", 100 * 3 / 11, 4), ("ZB-H1", 100 / 9, 4), ("ZB-H2", 0, 7)],
)
def test_p4_m8_lies_on_curve_and_dot(schedule, idle, kept):
    color = bubbles.CURVES[schedule].color
    for panel, expected in zip(curves(views.bubble_and_memory(p=4)), (idle, kept), strict=True):
        for points in [points for of, _, points in panel if of == color]:
            assert points[points[:, 0] == 8][0, 1] == pytest.approx(expected)


@pytest.mark.parametrize("p", [2, 4, 16])
def test_dots_lie_on_their_curves_wherever_the_closed_form_holds(p):
    figure = views.bubble_and_memory(p)
    assert repr(figure).endswith("closed form = simulated: True")
    for panel in curves(figure):
        for (_, of_curve, curve), (_, of_dots, dots) in zip(panel[::2], panel[1::2], strict=True):
            assert (of_curve, of_dots) == (False, True)
            holds = ~np.isnan(curve[:, 1])
            assert np.allclose(curve[holds], dots[holds], rtol=0, atol=1e-9)


def test_a_wrong_closed_form_is_said(monkeypatch):
    wrong = bubbles.CURVES["1F1B"]._replace(kept=lambda p, m: p + 1)
    monkeypatch.setitem(bubbles.CURVES, "1F1B", wrong)
    assert repr(views.bubble_and_memory(p=4)).endswith("closed form = simulated: False")
