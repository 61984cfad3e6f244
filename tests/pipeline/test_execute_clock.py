"""An executed schedule on the clock and in memory: the simulated timeline, the simulated bytes."""

import itertools
import math

import numpy as np
import pytest

from parlab import arrays
from parlab.nn.counting import arrays_in
from parlab.nn.llama import Llama
from parlab.pipeline import (
    Action,
    Costs,
    gpipe,
    interleaved_one_f_one_b,
    one_f_one_b,
    partition,
    run_schedule,
    simulate,
    zb_h1,
    zb_h2,
)
from parlab.world import Cluster, run
from tests.pipeline.models import ALL, CONFIG, SECOND, name_of, tanh_model


@pytest.mark.parametrize("atomic", [False, True], ids=["", "atomic pairs"])
@pytest.mark.parametrize("transfer", [0, 1, 4])
@pytest.mark.parametrize("schedule", ALL, ids=name_of)
def test_the_run_timed_without_port_limits_is_the_simulated_timeline(schedule, transfer, atomic):
    model, _, _, inputs, targets = tanh_model(schedule.num_stages, schedule.num_microbatches)
    pair = [5 + s % 4 for s in range(schedule.num_stages)] if atomic else None
    costs = Costs([2 + s % 2 for s in range(schedule.num_stages)], 3, 1, transfer, pair)
    cluster = Cluster.uniform(latency=transfer, bandwidth=math.inf, ports=None)
    measured = run(
        run_schedule, schedule.num_ranks, schedule, model, inputs, targets, costs=costs, cluster=cluster
    ).timeline
    simulated = simulate(schedule, costs)
    assert measured.makespan == simulated.makespan * SECOND
    assert sorted(measured.computes) == sorted(
        s._replace(start=s.start * SECOND, end=s.end * SECOND) for s in simulated.computes
    )
    assert sorted((t.src, t.dst, t.start, t.end, t.label) for t in measured.transfers) == sorted(
        (t.src, t.dst, t.start * SECOND, t.end * SECOND, t.label) for t in simulated.transfers
    )


def peak_but_for_sent(timeline, rank):
    """The most bytes held at once, without what is under way to other ranks."""
    changes = (nbytes for _, nbytes, name in timeline._held[rank] if name != "sent")
    return max(itertools.accumulate(changes))


@pytest.mark.parametrize("schedule", ALL, ids=name_of)
def test_measured_peak_bytes_are_the_simulated_ones(schedule):
    rows, width = 3, 5
    model, _, _, inputs, targets = tanh_model(schedule.num_stages, schedule.num_microbatches, rows=rows, width=width)
    costs = Costs(transfer=1)
    cluster = Cluster.uniform(latency=1, bandwidth=math.inf, ports=None)
    measured = run(
        run_schedule, schedule.num_ranks, schedule, model, inputs, targets, costs=costs, cluster=cluster
    ).timeline
    one = rows * width * 8  # the bytes of x, of the slope, of dz, of the loss's error
    last = schedule.num_stages - 1
    activation = [
        one * (2 - (s == 0) + (s == last)) for s in range(last + 1)
    ]  # x, which is not counted if it is the batch's, slope, error
    pending = [one * (2 - (s == 0)) for s in range(last + 1)]  # x, dz
    simulated = simulate(schedule, costs)
    for rank in range(schedule.num_ranks):
        steps = simulated.kept_bytes(rank, activation, pending, message=one)
        assert peak_but_for_sent(measured, rank) == max(kept for _, kept in steps)
        if schedule.num_ranks > 1:  # a transfer lasts as long as an action, so it is over when the next action ends
            sent = max(total for _, total in measured.held_by_name(rank)["sent"])
            assert sent == one * (2 if any(";" in span.name for span in measured.computes) else 1)  # an atomic pair: 2
        assert measured.held(rank)[-1][1] == steps[-1][1] == 0


def bytes_in(cache, but_not):
    """Of the memory under the arrays of a cache, each buffer once."""
    owners = {id(owner): owner for owner in map(arrays.owning_buffer, arrays_in(cache))}
    return sum(arrays.nbytes(owner) for key, owner in owners.items() if key not in but_not)


@pytest.mark.parametrize(
    "schedule",
    [gpipe(4, 4), one_f_one_b(4, 6), interleaved_one_f_one_b(2, 4, 2), zb_h1(4, 6), zb_h2(4, 8)],
    ids=name_of,
)
def test_measured_peak_bytes_of_a_small_llama_are_the_simulated_ones(schedule):
    model = Llama.random(CONFIG, seed=3, xp=np, dtype="float64")
    tokens = np.random.default_rng(4).integers(13, size=(schedule.num_microbatches, 2, 7))  # [m, B, S + 1]
    inputs, targets = list(tokens[:, :, :-1]), list(tokens[:, :, 1:])
    stages = model.stages(partition(8, schedule.num_stages))

    hidden = np.ones((2, 6, 8))  # [B, S, E]
    tables = model.blocks[0].attention.rotary.tables(hidden)  # shared by all ranks and microbatches
    not_kept = {id(owner) for owner in map(arrays.owning_buffer, (tokens, *tables))}
    x, caches = inputs[0], []
    for stage in stages:
        x, cache = stage.forward(x, **({"targets": targets[0]} if stage is stages[-1] else {}))
        caches.append(cache)
    activation = [bytes_in(cache, not_kept) for cache in caches]
    dy, pending = 1.0, []
    for stage, cache in zip(reversed(stages), reversed(caches), strict=True):
        dy, left = stage.backward_input(dy, cache)
        pending.insert(0, bytes_in(left, not_kept))

    measured = run(run_schedule, schedule.num_ranks, schedule, stages, inputs, targets).timeline
    for rank in range(schedule.num_ranks):
        steps = simulate(schedule).kept_bytes(rank, activation, pending, message=hidden.nbytes)
        # the norms' gradients of the first microbatch, made by I, stay as the sum: a peak after its W has them besides
        norms = sum(8 * 8 for name in stages[rank].weight_names if "norm" in name)  # [E] in float64
        more = peak_but_for_sent(measured, rank) - bytes_in(tables, ()) - max(kept for _, kept in steps)
        assert more in ((0, norms) if schedule.name.startswith("ZB") else (0,))


def test_1f1b_holds_fewer_bytes_than_gpipe_and_posts_few_receives_ahead():
    model, _, _, inputs, targets = tanh_model(4, 16)
    peaks = {
        make: run(run_schedule, 4, make(4, 16), model, inputs, targets).timeline.peak_bytes(1)
        for make in (gpipe, one_f_one_b)
    }
    assert peaks[one_f_one_b] < peaks[gpipe] / 3


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_p_ranks_of_v_chunks_send_each_microbatch_over_pv_minus_1_boundaries_and_back(chunks):
    model, _, _, inputs, targets = tanh_model(3 * chunks, 6)
    schedule = interleaved_one_f_one_b(3, 6, chunks)
    timeline = run(run_schedule, 3, schedule, model, inputs, targets).timeline
    assert sum(timeline.messages(rank) for rank in range(3)) == 2 * 6 * (3 * chunks - 1)
    assert sum(timeline.bytes_sent(rank) for rank in range(3)) == 2 * 6 * (3 * chunks - 1) * inputs[0].nbytes


def test_messages_are_labelled_with_the_action_that_made_them():
    model, _, _, inputs, targets = tanh_model(2, 2)
    timeline = run(run_schedule, 2, one_f_one_b(2, 2), model, inputs, targets).timeline
    assert {t.label for t in timeline.transfers} == {"0F0", "0F1", "1B0", "1B1"}
    assert str(Action("F", 0, 0)) == "0F0"
