"""Bubbles against m, where dots that were simulated lie on the closed forms' curves; and of chunks against transfers,
where the curves are what was simulated, and the title says where another one is best.
"""

import numpy as np
import pytest

from parlab import views
from parlab.nn.config import LlamaConfig
from parlab.nn.llama import Llama
from parlab.pipeline import Costs, interleaved_one_f_one_b, kept_bytes, naive, one_f_one_b, simulate, zb_h1
from parlab.views.schedules import bubbles
from tests.views.drawn import boxes, check_controls, check_refused, check_text


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


@pytest.mark.parametrize("p", [2, 4, 8])
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


# Chunks against transfers


def curve_of(figure, v):
    (line,) = [line for line in figure.axes[0].lines if line.get_gid() == f"v = {v}"]
    return line.get_xydata()


@pytest.mark.parametrize(("v", "makespan"), [(1, 49), (2, 46), (4, 69)])
def test_p4_m8_with_transfers_as_long_as_a_forward_takes_49_46_69(v, makespan):
    points = curve_of(views.interleaving(p=4, m=8), v)
    assert points[points[:, 0] == 1][0, 1] == pytest.approx(100 * makespan / 49)


@pytest.mark.parametrize("v", [1, 2, 4])
def test_without_transfers_the_idle_time_is_p_minus_1_stages_over_v(v):
    assert curve_of(views.interleaving(p=4, m=8), v)[0, 1] == pytest.approx(100 * (24 + 3 * 3 / v) / (24 + 3 * 3))


def test_no_curve_of_the_widget_goes_below_the_picture():
    for p, k, backward in ((8, 1, 1), (8, 1, 3), (2, 4, 1)):
        axes = views.interleaving(p, k * p, backward).axes[0]
        assert min(line.get_ydata().min() for line in axes.lines if line.get_gid()) >= axes.get_ylim()[0]


def test_the_border_between_1_and_2_chunks_lies_where_both_take_the_same_time():
    assert repr(views.interleaving()).startswith(
        "v = 4 is best below c = 0.16; v = 2 is best below c = 1.4; v = 1 from"
    )
    at = Costs(transfer=1.375), Costs(0.5, 0.5, 0.5, 1.375)
    assert simulate(one_f_one_b(4, 8), at[0]).makespan == simulate(interleaved_one_f_one_b(4, 8, 2), at[1]).makespan


def test_every_control_of_the_widget_changes_the_picture():
    explorer, drawn = views.explore_interleaving(), []
    draw = explorer.draw
    explorer.draw = lambda **values: drawn.append(draw(**values)) or drawn[-1]
    check_controls(explorer)
    assert all(np.isfinite(line.get_ydata()).all() for figure in drawn for line in figure.axes[0].lines)


# GPUs won back

ONE_AT_A_TIME = {"one at a time": naive, "1F1B": one_f_one_b, "ZB-H1": zb_h1}


def kept_by(stages):
    config = LlamaConfig(vocab_size=8, hidden_size=16, intermediate_size=32, num_hidden_layers=stages,
                         num_attention_heads=4)  # fmt: skip
    tokens = np.zeros((1, 8), dtype=int)
    return kept_bytes(Llama.random(config, dtype="float64"), tokens, tokens, stages)


def test_of_16_gpus_1f1b_wins_8_26_10_89_14_32_and_zb_h1_12_19_13_84_15_40_back_for_1_5_times_the_bytes():
    figure = views.won_back(ONE_AT_A_TIME, p=16, across=(16, 32, 128), kept=kept_by(16))
    rows = [line.split() for line in repr(figure).splitlines()[1:]]
    assert [row[-6] for row in rows] == ["1.00", "8.26", "10.89", "14.32", "12.19", "13.84", "15.40"]
    most = [float(row[-2]) for row in rows]
    assert len(set(most[1:4])) == len(set(most[4:])) == 1
    assert most[4] / most[1] == pytest.approx(1.5, abs=0.02)
    for row, work in enumerate((1, 16 * 16 / 31, 16 * 32 / 47)):
        squares = boxes(figure, f"work of row {row}")
        assert sum(right - left for left, right, *_ in squares) == pytest.approx(0.84 * work)
    check_text(figure)


def test_won_back_refuses_nothing_to_draw_and_bytes_of_other_stages():
    check_refused(
        lambda: views.won_back({}, 4, (4,), kept_by(4)), "makers, across", "give at least one schedule and one m"
    )
    check_refused(
        lambda: views.won_back(ONE_AT_A_TIME, 4, (), kept_by(4)),
        "makers, across",
        "give at least one schedule and one m",
    )
    check_refused(lambda: views.won_back(ONE_AT_A_TIME, 4, (4,), kept_by(2)), "kept=", "each of the 4 stages")
