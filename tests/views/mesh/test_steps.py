"""Steps on meshes of 8 and 16 ranks: stored numbers are those of steps that run, in the units of the large model."""

import pytest

from parlab import arrays
from parlab.nn import AdamW, Llama
from parlab.train import Mesh, Trainer, strategy_of
from parlab.views.mesh.steps import (
    CONFIG,
    KERNEL,
    SCALE,
    SHARES,
    B,
    S,
    choices,
    computed,
    costs_at,
    detailed,
    fitting,
    meshes,
    scaled,
    step_on,
    stored,
)
from parlab.world import DGX_H100, run
from parlab.zero import accounting

CLUSTER = scaled(DGX_H100, KERNEL)


def test_every_mesh_of_16_ranks_is_stored_with_each_number_of_microbatches_and_schedule():
    assert [step[:4] for step in stored()] == choices()
    assert [len(meshes(ranks)) for ranks in (8, 16)] == [20, 32]
    assert {step.axes for step in stored()} == set(meshes(16))
    assert fitting((2, 4, 1, 1)) == [4, 8]
    of_one = [step[1:4] for step in stored() if step.axes == (2, 4, 1, 2)]
    assert of_one == [(m, schedule, 1) for schedule in ("one_f_one_b", "zb_h1", "zb_h2") for m in (4, 8)]
    assert all(len(step.by_share) == len(SHARES) == 9 for step in stored())


@pytest.mark.parametrize(
    ("axes", "microbatches", "schedule", "zero"),
    [
        ((4, 1, 1, 4), 1, "one_f_one_b", 3),
        ((16, 1, 1, 1), 1, "one_f_one_b", 1),
        ((2, 2, 2, 2), 2, "zb_h1", 1),
        ((4, 4, 1, 1), 4, "zb_h2", 1),
    ],
)
def test_a_stored_step_is_what_runs_to_the_last_digit(axes, microbatches, schedule, zero):
    (found,) = [step for step in stored() if step[:4] == (axes, microbatches, schedule, zero)]
    assert found == computed(axes, microbatches, schedule, zero)


def seconds_of(axes, microbatches, schedule, zero):
    """The seconds of a stored step."""
    (found,) = [step for step in stored() if step[:4] == (axes, microbatches, schedule, zero)]
    return found.by_share[SHARES.index(KERNEL)][0] / 1e12


def test_a_step_whose_clock_is_computed_again_takes_as_long_as_one_that_runs_on_that_machine():
    axes, shares = (4, 2, 1, 2), (0.8, 0.4)
    (found,) = [step for step in stored() if step[:4] == (axes, 4, "zb_h1", 1)]
    for share, costs in zip(shares, costs_at(shares, axes, 4, "zb_h1", 1), strict=True):
        assert found.by_share[SHARES.index(share)] == (round(1e12 * costs.seconds), sum(costs.held.values()))


def test_without_a_pipeline_more_microbatches_take_longer():
    of_8 = [[detailed()[axes, m].seconds for m in fitting(axes)] for axes in meshes(8) if axes[1] == 1]
    of_16 = [
        [seconds_of(axes, m, "one_f_one_b", zero) for m in fitting(axes)[:2]]
        for axes in meshes(16)
        for zero in (1, 3)
        if axes[1] == 1
    ]
    for took in of_8 + of_16:
        assert took == sorted(took)


@pytest.mark.parametrize("schedule", ["zb_h1", "zb_h2"])
def test_without_a_pipeline_a_backward_in_two_halves_takes_longer(schedule):
    axes = (4, 1, 1, 4)
    assert step_on(axes, 1, schedule, 1).seconds > 1.05 * seconds_of(axes, 1, "one_f_one_b", 1)


def test_zero_3_makes_no_pipeline_faster():
    for axes, microbatches in (((2, 4, 1, 2), 8), ((4, 2, 1, 2), 2)):
        three = step_on(axes, microbatches, "one_f_one_b", 3).seconds
        assert seconds_of(axes, microbatches, "one_f_one_b", 1) < three


@pytest.mark.parametrize(("axes", "microbatches"), [((8, 1, 1, 1), 2), ((1, 8, 1, 1), 16), ((2, 1, 2, 2), 4)])
def test_a_detailed_step_is_what_runs_to_the_last_digit_and_every_setting_has_one(axes, microbatches):
    assert detailed()[axes, microbatches] == step_on(axes, microbatches, "one_f_one_b", 1)
    assert [*detailed()] == [(axes, m) for axes in meshes(8) for m in fitting(axes)]


def test_a_second_step_sends_as_many_bytes_as_the_closed_form():
    for costs in (detailed()[(2, 2, 1, 2), 2], step_on((2, 2, 1, 2), 2, "one_f_one_b", 3)):
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
    sharded = detailed()[(8, 1, 1, 1), 2].held
    assert sharded[accounting.OPTIMIZER] == pytest.approx(held[accounting.OPTIMIZER] / 8, rel=0.01)


def test_a_gradient_goes_once_around_the_ring_of_dp_and_a_new_weight_too_in_bf16():
    step = detailed()[(8, 1, 1, 1), 2]
    assert step.sent["dp"] == pytest.approx(2 * 7 * step.held[accounting.WEIGHTS], rel=0.01)


def test_microbatches_divide_the_activations_of_tp_8_as_those_of_pp_8():
    one, two, four, sixteen = (detailed()[(1, 1, 1, 8), m] for m in (1, 2, 4, 16))
    saved = [sum(a.held.values()) - sum(b.held.values()) for a, b in ((one, two), (two, four), (four, sixteen))]
    assert saved[1:] == pytest.approx([saved[0] / 2, saved[0] * 3 / 8], rel=0.02)  # kept: 1, 1/2, 1/4 and 1/16
    beside = sum(detailed()[(1, 8, 1, 1), 16].held.values())
    assert sum(two.held.values()) < beside < sum(one.held.values())
    assert sixteen.seconds > 1.5 * one.seconds


def test_four_times_the_rows_turn_the_order_of_dp_16_and_dp_4_tp_4():
    few = [seconds_of(axes, 1, "one_f_one_b", 3) for axes in ((4, 1, 1, 4), (16, 1, 1, 1))]
    many = [step_on(axes, 1, "one_f_one_b", 3, 64).seconds for axes in ((4, 1, 1, 4), (16, 1, 1, 1))]
    assert few[0] < few[1]
    assert many[0] > many[1]


@pytest.mark.slow
def test_with_four_times_the_rows_zb_h2_is_a_tenth_behind_dp_16():
    pipeline = costs_at((0.6, 0.8), (1, 8, 2, 1), 64, "zb_h2", 1, 64)
    replicas = costs_at((0.6, 0.8), (16, 1, 1, 1), 1, "one_f_one_b", 3, 64)
    behind = [one.seconds / other.seconds - 1 for one, other in zip(pipeline, replicas, strict=True)]
    assert behind == pytest.approx([0.104, 0.112], abs=1e-3)


def together(spans):
    """Times in which one of these spans, or more, go on."""
    found = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return found


def test_two_thirds_of_dps_messages_hide_behind_products():
    tokens = arrays.generator(0).integers(CONFIG.vocab_size, size=(B, S + 1))
    serial = Llama.random(CONFIG, dtype="float32")

    def program(comm):
        how = {"zero": 1, "overlap_gather": True, "sequence_parallel": True}
        trainer = Trainer(Mesh(comm, dp=8, tp=2, ranks_per_node=8), serial, AdamW(), **how)
        for _ in range(3):
            trainer.step(tokens[:, :-1], tokens[:, 1:])
        trainer.finish()

    done, shares = run(program, 16), []
    for share in (0.4, 0.6, 0.8):
        timeline = done.on(scaled(DGX_H100, share))
        updates = [
            [span.end for span in timeline.spans if (span.rank, span.name) == (rank, "AdamW")] for rank in range(16)
        ]
        ends = [(own[len(own) // 3 - 1], own[len(own) * 2 // 3 - 1]) for own in updates]
        first, last = map(max, zip(*ends, strict=True))  # of the second step

        def within(spans, first=first, last=last):
            return together((max(a, first), min(b, last)) for a, b in spans if b > first and a < last)

        works = within((span.start, span.end) for span in timeline.computes if span.rank == 0)
        of_dp = [t for t in timeline.transfers if strategy_of(t) == "dp" and 0 in (t.src, t.dst) and t.src != t.dst]
        messages = within((t.start, t.end) for t in of_dp)
        hidden = sum(max(0, min(b, d) - max(a, c)) for a, b in messages for c, d in works)
        shares.append(hidden / sum(end - start for start, end in messages))
    assert shares == pytest.approx([0.68, 0.65, 0.64], abs=0.01)
