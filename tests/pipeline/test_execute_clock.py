"""An executed schedule on the clock and in memory: the simulated timeline, the simulated bytes."""

import pytest

from parlab.pipeline import (
    Costs,
    interleaved_one_f_one_b,
    run_schedule,
    zb_v,
)
from parlab.world import run
from tests.pipeline.models import (
    ALL,
    SECOND,
    name_of,
    off_serial,
    peak_but_for_sent,
    run_and_simulated,
    simulated_bytes,
    tanh_model,
)


@pytest.mark.parametrize(("transfer", "atomic"), [(0, False), (4, True)], ids=["", "atomic pairs"])
@pytest.mark.parametrize("schedule", ALL, ids=name_of)
def test_a_run_without_port_limits_is_the_simulated_timeline_and_gives_the_serial_gradients(schedule, transfer, atomic):
    pair = [5 + s % 4 for s in range(schedule.num_stages)] if atomic else None
    costs = Costs([2 + s % 2 for s in range(schedule.num_stages)], 3, 1, transfer, pair)
    done, simulated, (model, batch, target) = run_and_simulated(schedule, costs)
    assert off_serial(done.results, model, batch, target) <= 1e-12
    measured = done.timeline
    assert measured.makespan == simulated.makespan * SECOND
    assert sorted(measured.computes) == sorted(
        s._replace(start=s.start * SECOND, end=s.end * SECOND) for s in simulated.computes
    )
    assert sorted((t.src, t.dst, t.start, t.end, t.label) for t in measured.transfers) == sorted(
        (t.src, t.dst, t.start * SECOND, t.end * SECOND, t.label) for t in simulated.transfers
    )


@pytest.mark.parametrize("schedule", ALL, ids=name_of)
def test_measured_peak_bytes_are_the_simulated_ones(schedule):
    done, simulated, _ = run_and_simulated(schedule, Costs(transfer=1))
    measured, one = done.timeline, 3 * 5 * 8  # the bytes of x, of the slope, of dz, of the loss's error
    last = schedule.num_stages - 1
    activation = [
        one * (2 - (s == 0) + (s == last)) for s in range(last + 1)
    ]  # x, which is not counted if it is the batch's, slope, error
    pending = [one * (2 - (s == 0)) for s in range(last + 1)]  # x, dz
    for rank in range(schedule.num_ranks):
        held = simulated_bytes(simulated, rank, activation, pending, message=one)
        assert peak_but_for_sent(measured, rank) == max(held)
        if schedule.num_ranks > 1:  # a transfer lasts as long as an action, so it is over when the next action ends
            sent = max(total for _, total in measured.held_by_name(rank)["sent"])
            assert sent == one * (2 if any(";" in span.name for span in measured.computes) else 1)  # an atomic pair: 2
        assert measured.held(rank)[-1][1] == held[-1] == 0


def test_what_passes_between_two_stages_of_one_rank_is_held_as_activation_and_as_gradient_of_120_bytes():
    model, _, _, inputs, targets = tanh_model(2, 2)
    held = run(run_schedule, 1, zb_v(1, 2), model, inputs, targets).timeline.held_by_name(0)
    assert [max(total for _, total in held[name]) for name in ("activation", "gradient")] == [3 * 5 * 8] * 2


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_p_ranks_of_v_chunks_send_each_microbatch_over_pv_minus_1_boundaries_and_back(chunks):
    model, _, _, inputs, targets = tanh_model(3 * chunks, 6)
    schedule = interleaved_one_f_one_b(3, 6, chunks)
    timeline = run(run_schedule, 3, schedule, model, inputs, targets).timeline
    assert sum(timeline.messages(rank) for rank in range(3)) == 2 * 6 * (3 * chunks - 1)
    assert sum(timeline.bytes_sent(rank) for rank in range(3)) == 2 * 6 * (3 * chunks - 1) * inputs[0].nbytes
