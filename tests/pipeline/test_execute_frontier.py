"""The schedules of the frontier on arrays: serial gradients, simulated clock, measured bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.pipeline import (
    Costs,
    best_schedule,
    dualpipe,
    dualpipe_v,
    one_f_one_b_v,
    run_schedule,
    v_controlled,
    v_half,
    v_min,
    zb_auto,
    zb_h1,
    zb_v,
)
from parlab.world import run
from tests.nn.parity import relative_error
from tests.pipeline.models import SECOND, TanhStage, run_and_simulated, serial, tanh_model

SIZES = st.integers(1, 8), st.integers(0, 6), st.integers(0, 2)
MAKERS = {
    "zb_auto": lambda p, more, c: zb_auto(p, 1 + more, Costs([1 + s % 3 for s in range(p)], 2, 1, c), p, tries=10),
    "zb_v": lambda p, more, c: zb_v(p, 1 + more),
    "v_half": lambda p, more, c: v_half(p, 1 + more),
    "v_min": lambda p, more, c: v_min(p, 1 + more),
    "v_controlled": lambda p, more, c: v_controlled(p, 1 + more, Costs(2, 2, 1, c), 3, tries=5),
    "one_f_one_b_v": lambda p, more, c: one_f_one_b_v(p, 1 + more),
    "dualpipe": lambda p, more, c: dualpipe(p + p % 2, 2 * (p + p % 2) + 2 * more),
    "dualpipe_v": lambda p, more, c: dualpipe_v(p, 2 * p + more),
    "best_schedule": lambda p, more, c: best_schedule(1 + p % 3, 1 + more % 4, Costs(3, 2, 1, c), 2),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@settings(max_examples=6)
@given(*SIZES)
def test_serial_gradients_to_1e_12_and_the_simulated_clock_for_random_p_1_to_8(make, p, more, c):
    schedule = make(p, more, c)
    costs = Costs([1 + s % 3 for s in range(schedule.num_stages)], 2, 1, c)
    done, simulated, (model, batch, target) = run_and_simulated(schedule, costs)
    expected_loss, expected = serial(model, batch, target)
    assert abs(sum(loss for loss, _ in done.results if loss is not None) - expected_loss) <= 1e-12 * expected_loss
    for stage in range(schedule.num_stages):
        for rank in schedule.holders(stage):
            assert relative_error(done.results[rank][1][f"w{stage}"], expected[f"w{stage}"]) <= 1e-12

    assert sorted(done.timeline.computes) == sorted(
        s._replace(start=s.start * SECOND, end=s.end * SECOND) for s in simulated.computes
    )
    exchanged = [t for t in done.timeline.transfers if t.label == "gradients"]
    shared = schedule.num_ranks if len(schedule.holders(0)) > 1 else 0
    assert len(exchanged) == shared
    assert len(done.timeline.transfers) - shared == len(simulated.transfers)
    if not shared:
        assert done.timeline.makespan == simulated.makespan * SECOND


# What else a training step asks for


class HandsOn(TanhStage):
    """A stage that hands its gradients on itself, microbatch by microbatch, as the trainer's do."""

    def backward_weight(self, pending):
        self.taken.append(super().backward_weight(pending)[self.name])
        return {}


def test_gradients_that_a_stage_hands_on_itself_are_neither_summed_nor_exchanged():
    model, batch, target, inputs, targets = tanh_model(2, 4)
    _, expected = serial(model, batch, target)

    def program(comm):
        own = [HandsOn(stage.weights, stage.name) for stage in model]
        for stage in own:
            stage.taken = []
        _, gradients = run_schedule(comm, dualpipe(2, 4), own, inputs, targets)  # each stage is on both ranks
        return gradients, [stage.taken for stage in own]

    done = run(program, 2)
    assert [gradients for gradients, _ in done.results] == [{}, {}]
    assert "gradients" not in {transfer.label for transfer in done.timeline.transfers}
    for number in range(2):
        taken = [one for _, of_stages in done.results for one in of_stages[number]]
        assert len(taken) == 4
        assert relative_error(sum(taken), expected[f"w{number}"]) <= 1e-12


def test_the_loss_scale_multiplies_gradients_and_not_the_loss():
    model, batch, target, inputs, targets = tanh_model(2, 4)
    results = run(run_schedule, 2, zb_h1(2, 4), model, inputs, targets, loss_scale=1024.0).results
    expected_loss, expected = serial(model, batch, target)
    assert abs(results[1][0] - expected_loss) <= 1e-12
    assert all(relative_error(results[r][1][f"w{r}"], 1024 * expected[f"w{r}"]) <= 1e-12 for r in range(2))


class Fused(TanhStage):
    calls = 0

    def backward(self, dy, cache):
        Fused.calls += 1
        dx, pending = self.backward_input(dy, cache)
        return dx, self.backward_weight(pending)


def test_a_full_backward_is_the_stages_own_where_it_has_one():
    model, batch, target, inputs, targets = tanh_model(2, 4)
    model = [Fused(stage.weights, stage.name) for stage in model]
    before = Fused.calls
    results = run(run_schedule, 1, one_f_one_b_v(1, 4), model, inputs, targets).results
    assert Fused.calls - before == 2 * 4
    assert all(relative_error(results[0][1][name], g) <= 1e-12 for name, g in serial(model, batch, target)[1].items())
