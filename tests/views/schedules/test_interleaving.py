"""Chunks against transfers: the curves are what was simulated, and the title says where another one is best."""

import numpy as np
import pytest

from parlab import views
from parlab.pipeline import Costs, interleaved_one_f_one_b, one_f_one_b, simulate


def curve(figure, v):
    (line,) = [line for line in figure.axes[0].lines if line.get_gid() == f"v = {v}"]
    return line.get_xydata()


@pytest.mark.parametrize(("v", "makespan"), [(1, 49), (2, 46), (4, 69)])
def test_p4_m8_with_transfers_as_long_as_a_forward_takes_49_46_69(v, makespan):
    points = curve(views.interleaving(p=4, m=8), v)
    assert points[points[:, 0] == 1][0, 1] == pytest.approx(100 * (makespan - 24) / makespan)


@pytest.mark.parametrize("v", [1, 2, 4])
def test_without_transfers_the_idle_time_is_p_minus_1_stages_over_v(v):
    idle = 3 * 3 / v
    assert curve(views.interleaving(p=4, m=8), v)[0, 1] == pytest.approx(100 * idle / (24 + idle))


def test_the_border_between_1_and_2_chunks_lies_where_both_take_the_same_time():
    assert repr(views.interleaving()).startswith(
        "v = 4 is best below c = 0.16; v = 2 is best below c = 1.4; v = 1 from"
    )
    at = Costs(transfer=1.375), Costs(0.5, 0.5, 0.5, 1.375)
    assert simulate(one_f_one_b(4, 8), at[0]).makespan == simulate(interleaved_one_f_one_b(4, 8, 2), at[1]).makespan


def test_every_control_of_the_widget_changes_the_picture():
    explorer = views.explore_interleaving()
    for name, control in explorer.controls.items():
        for _, value in control.options:
            before, default = explorer.picture.value, control.value
            control.value = value
            assert (explorer.picture.value != before) == (value != default), name
            assert all(np.isfinite(line.get_ydata()).all() for line in explorer.figure.axes[0].lines)
            control.value = default
