"""Bubbles against m, where dots that were simulated lie on the closed forms' curves; and of chunks against transfers,
where the curves are what was simulated, and the title says where another one is best.
"""

import tomllib
from importlib.resources import files

import numpy as np
import pytest

from parlab import views
from parlab.labs import kept_of_405b, sixteen_stages
from parlab.nn.formulas import add_flops, block_flops
from parlab.nn.published import LLAMA_405B
from parlab.pipeline import Costs, gpipe, interleaved_one_f_one_b, one_f_one_b, simulate
from parlab.views.drawing import theme
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

PUBLISHED = (1, 0.99, 0.72)  # F, I, W of a stage of 16: Qi et al. 2024, table 9


def llama(m=32, transfer=0.006):
    return sixteen_stages(one_f_one_b, Costs(*PUBLISHED, transfer=transfer), m)


def test_of_16_gpus_with_llamas_messages_1f1b_wins_10_8_zb_h1_13_1_and_8_chunks_14_9_of_which_two_ways_fit_80_gb():
    ran = llama()
    figure = views.won_back(ran, *kept_of_405b(), base=15e9, room=80e9)
    check_text(figure)
    rows = [line[16:].split() for line in repr(figure).splitlines()[2:7]]
    assert [row[0] for row in rows] == ["1.0", "10.9", "10.8", "13.1", "14.9"]
    whole = {  # microbatches on the first and the last rank
        "one at a time": [1, 1],
        "GPipe": [32, 32],
        "1F1B": [16, 1],
        "8 chunks": [16 + 15 / 8, 16 - 15 / 8],
    }
    for (_, _, _, _, first, _, last, _), name in zip(rows, ran, strict=True):
        if name in whole:
            assert [first, last] == [f"{15 + 2.856 * number:.0f}" for number in whole[name]]
    assert float(rows[3][6]) == pytest.approx(15 + 16 * 4.26, abs=1.5)  # on ZB-H1's last rank 16 W's wait
    red = sorted(text.get_text() for text in figure.texts if text.get_color() == theme.ALARM)
    assert red == ["106 GB", "106 GB", "83 GB", "red: more than the 80 GB of a GPU"]
    work = 32 * sum(PUBLISHED)
    for row, one in enumerate(ran.values()):
        squares = boxes(figure, f"work of row {row}")
        assert sum(right - left for left, right, *_ in squares) == pytest.approx(0.84 * 16 * work / one.makespan)


def test_from_32_to_16_microbatches_430_tflops_become_402_with_8_chunks_326_with_1f1b_and_400_as_published():
    works = [{name: 1 - one.bubble_fraction() for name, one in llama(m).items()} for m in (32, 16)]
    found = {name: round(430 * works[1][name] / works[0][name]) for name in ("8 chunks", "1F1B")}
    assert found == {"8 chunks": 402, "1F1B": 326}
    published = tomllib.loads((files("parlab.plan") / "published.toml").read_text(encoding="utf-8"))["family"]
    (rows,) = (family["rows"] for family in published if family["name"] == "Llama 3, table 4")
    assert [row[1:3] for row in rows[:2]] == [[430, 64], [400, 128]]  # TFLOP/s a GPU, pipelines


def test_a_message_of_llamas_takes_0_006_of_f():
    message = 8192 * 16384 * 2 / 8 / 50e9  # bytes of a GPU's share, at 400 Gbit/s
    layer = add_flops(*block_flops(LLAMA_405B, 1, 8192).values()).forward  # 8 layers over 8 GPUs
    for rate in (430e12, 500e12):  # of a GPU that works
        assert message / (layer / rate) == pytest.approx(0.006, abs=0.001)


def test_won_back_refuses_nothing_to_draw_and_pipelines_of_different_numbers_of_ranks():
    check_refused(lambda: views.won_back({}, 1, 1), "ran=", "at least one timeline")
    two = {"1F1B": simulate(one_f_one_b(2, 2)), "GPipe": simulate(gpipe(4, 4))}
    check_refused(lambda: views.won_back(two, 1, 1), "ran=", "the same number of ranks")
    check_refused(lambda: views.won_back({"1F1B": two["1F1B"]}, -1, 1), "kept=-1", "at least 0")
    check_refused(lambda: views.won_back({"1F1B": two["1F1B"]}, 1, 1, base=-1), "base=-1", "at least 0")
