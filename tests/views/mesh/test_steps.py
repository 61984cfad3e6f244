"""All meshes of 8 and 16 ranks: stored numbers are those of steps that run, and what lesson 07 concludes from them."""

import pytest

from parlab import views
from parlab.views.mesh.scatter import fastest_of_each, frontier, steps_of
from parlab.views.mesh.steps import (
    CLUSTER,
    KERNEL,
    SCALE,
    choices,
    computed,
    detailed,
    fitting,
    meshes,
    scaled,
    step_on,
    stored,
)
from parlab.world import DGX_H100
from parlab.zero import accounting
from tests.views.drawn import check_text


def step(axes, microbatches, zero):
    (found,) = [s for s in stored() if s[:3] == (axes, microbatches, zero)]
    return found


def test_every_mesh_of_8_and_of_16_ranks_is_stored_with_each_number_of_microbatches():
    assert [s[:3] for s in stored()] == choices()
    assert [len(meshes(ranks)) for ranks in (8, 16)] == [20, 32]
    assert fitting((2, 4, 1, 1)) == [4, 8]


@pytest.mark.parametrize(
    ("axes", "microbatches", "zero"),
    [((8, 1, 1, 1), 2, 1), ((1, 4, 1, 2), 4, 3), ((4, 1, 1, 4), 1, 3), ((2, 2, 2, 2), 2, 1)],
)
def test_a_stored_step_is_what_runs_to_the_last_digit(axes, microbatches, zero):
    assert step(axes, microbatches, zero) == computed(axes, microbatches, zero)


@pytest.mark.parametrize(("axes", "microbatches"), [((8, 1, 1, 1), 2), ((1, 8, 1, 1), 16), ((2, 1, 2, 2), 4)])
def test_a_detailed_step_is_what_runs_to_the_last_digit_and_every_setting_has_one(axes, microbatches):
    assert detailed()[axes, microbatches] == step_on(axes, microbatches, "one_f_one_b", 1)
    assert [*detailed()] == [(axes, m) for axes in meshes(8) for m in fitting(axes)]


def test_a_second_step_sends_as_many_bytes_as_the_closed_form():
    for zero in (1, 3):
        costs = step_on((2, 2, 1, 2), 2, "one_f_one_b", zero)
        assert costs.sent == costs.formula


def test_a_product_and_a_message_of_the_large_model_take_on_h100s_as_long_as_the_small_ones_here():
    flops, elements = 2 * 16 * 64 * 64, 16 * 64
    h100 = DGX_H100.reaching(KERNEL).device_of(0).seconds(flops * SCALE**3, 0)
    assert CLUSTER.device_of(0).seconds(flops, 0) == pytest.approx(h100, rel=1e-12)
    for ours, theirs in ((CLUSTER.intra, DGX_H100.intra), (CLUSTER.inter, DGX_H100.inter)):
        bf16 = theirs.picoseconds(2 * elements * SCALE**2)
        assert ours.picoseconds(4 * elements) == pytest.approx(bf16, rel=1e-5)


def test_bytes_are_2_for_an_element_of_the_large_model_and_12_for_adams_state_of_a_weight():
    layer = 4 * 4096**2 + 3 * 4096 * 8192  # elements: of attention's four matrices, and of the MLP's three
    held = step_on((8, 1, 1, 1), 2, "one_f_one_b", 0).held
    assert held[accounting.WEIGHTS] == held[accounting.GRADIENTS] == pytest.approx(2 * 8 * layer, rel=0.02)
    assert held[accounting.OPTIMIZER] == 6 * held[accounting.WEIGHTS]
    sharded = step_on((8, 1, 1, 1), 2, "one_f_one_b", 1).held
    assert sharded[accounting.OPTIMIZER] == pytest.approx(held[accounting.OPTIMIZER] / 8, rel=0.01)


def test_a_gradient_goes_once_around_the_ring_of_dp_and_a_new_weight_too_in_bf16():
    held, sent = (getattr(step_on((8, 1, 1, 1), 2, "one_f_one_b", 1), name) for name in ("held", "sent"))
    assert sent["dp"] == pytest.approx(2 * 7 * held[accounting.WEIGHTS], rel=0.01)


def test_microbatches_divide_the_activations_of_tp_8_as_those_of_pp_8():
    one, sixteen = step((1, 1, 1, 8), 1, 1), step((1, 1, 1, 8), 16, 1)
    saved = (one.held - sixteen.held) / 2**30
    assert saved == pytest.approx(2 * (3.45 - 0.84), rel=1e-2)  # activations: 2 GiB for each MiB of the small model
    assert sixteen.held < step((1, 8, 1, 1), 16, 1).held
    assert sixteen.seconds > 1.5 * one.seconds


def test_on_two_nodes_the_fastest_keeps_tp_inside_and_four_times_the_rows_turn_the_order():
    best = min(fastest_of_each(16), key=lambda s: s.seconds)
    assert best.axes == (4, 1, 1, 4)
    few = [step_on(axes, 1, "one_f_one_b", 3).seconds for axes in ((4, 1, 1, 4), (16, 1, 1, 1))]
    many = [step_on(axes, 1, "one_f_one_b", 3, 64).seconds for axes in ((4, 1, 1, 4), (16, 1, 1, 1))]
    assert few[0] < few[1]
    assert many[0] > many[1]


def test_the_picture_names_the_extremes_and_its_words_are_free_of_each_other():
    figure = views.all_meshes()
    words = [text.get_text() for text in figure.axes[0].texts if text.get_text()]
    assert words[0] == "holds least: cp 2 · tp 8"
    assert words[-2:] == ["fastest: dp 4 · tp 4", "sends least: dp 2 · pp 8"]
    assert "the fastest pipeline takes 20 % longer and holds 37 % less" in figure.text_shown
    assert "  18.7 ms" in figure.text_shown
    check_text(figure)


def test_each_dot_has_the_shade_of_its_pp_and_a_darker_one_for_more():
    (axes,) = views.all_meshes().axes
    every = sorted(fastest_of_each(16), key=lambda step: (step.held, step.seconds))
    (dots,) = [drawn for drawn in axes.collections if len(drawn.get_offsets()) == len(every)]
    drawn = sorted(zip(map(tuple, dots.get_offsets()), dots.get_facecolors(), strict=True), key=lambda pair: pair[0])
    brightness = {step.axes[1]: set() for step in every}
    for step, (place, color) in zip(every, drawn, strict=True):
        assert place == (step.held, 1e3 * step.seconds)
        brightness[step.axes[1]].add(round(float(sum(color[:3])), 6))
    (one,), (two,), (four,), (eight,) = (brightness[pp] for pp in (1, 2, 4, 8))
    assert one > two > four > eight


def test_nothing_beats_a_step_of_the_frontier_in_both_time_and_memory_and_all_others_are_beaten():
    steps = steps_of(16)
    front = frontier(steps)
    assert len(front) == 7
    for one in steps:
        beaten = [s for s in steps if s.seconds <= one.seconds and s.held <= one.held and s != one]
        assert (not beaten) == (one in front)


@pytest.mark.parametrize("kernel", [0.4, 0.7])
def test_from_40_to_70_percent_of_the_peak_the_fastest_mesh_has_no_pipeline(monkeypatch, kernel):
    monkeypatch.setitem(step_on.__wrapped__.__globals__, "CLUSTER", scaled(DGX_H100, kernel))

    def fastest(*steps):
        return min(step_on.__wrapped__(axes, m, schedule, zero).seconds for axes, m, schedule, zero in steps)

    without = fastest(((8, 1, 1, 2), 1, "one_f_one_b", 3), ((4, 1, 1, 4), 1, "one_f_one_b", 3))
    assert fastest(((1, 4, 2, 2), 16, "one_f_one_b", 1)) / without == pytest.approx(1.21, abs=0.015)
    assert 1.07 < fastest(((1, 8, 2, 1), 16, "zb_h1", 1)) / without < 1.15
    assert min(fastest_of_each(16), key=lambda step: step.seconds).axes[1] == 1


def test_where_products_reach_45_percent_of_the_peak_dp_8_tp_2_is_faster_than_dp_4_tp_4(monkeypatch):
    slow = scaled(DGX_H100, 0.45)
    monkeypatch.setitem(step_on.__wrapped__.__globals__, "CLUSTER", slow)
    took = [
        1e3 * step_on.__wrapped__(axes, 1, "one_f_one_b", zero).seconds
        for axes, zero in (((8, 1, 1, 2), 3), ((4, 1, 1, 4), 1), ((4, 1, 1, 4), 3))
    ]
    assert took == pytest.approx([22.8, 24.0, 24.2], abs=0.05)
