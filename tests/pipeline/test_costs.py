"""The closed forms of a pipeline are what `simulate` finds."""

from __future__ import annotations

import numpy as np
import pytest

from parlab.pipeline import Costs, gpipe, interleaved_one_f_one_b, looped_bfs, one_f_one_b, simulate
from parlab.pipeline.closed_forms import Pipeline, Seconds, exposed_transfers, in_flight, slowest_and_idle

EVEN = [Seconds(1.0, 2.0)] * 3  # any chunk, the first and the last


def columns(p, m, v, alternates, group=None):
    """A pipeline with one entry; without a group, that of the schedule with the fewest microbatches in a row."""
    return Pipeline(*map(np.asarray, (p, m, v)), alternates, np.asarray(group or (p if alternates else m)))


def random_steps(count, seed, heavier):
    """p, m, v, a chunk, and a last chunk that is slower or quicker."""
    draw = np.random.default_rng(seed)
    for _ in range(count):
        p, v = int(draw.integers(2, 7)), int(draw.integers(1, 5))
        m = p * int(draw.integers(1 if heavier else 2, 4)) if v > 1 else int(draw.integers(p, 17))
        forward = draw.uniform(0.5, 2)
        ratio = draw.uniform(1, 3) if heavier else 2
        last = draw.uniform(1, 3) if heavier else draw.uniform(0.02, 1)
        yield p, m, v, Seconds(forward, ratio * forward), Seconds(last * forward, last * ratio * forward)


@pytest.mark.parametrize("kind", ["1f1b", "looped_bfs"])
@pytest.mark.parametrize("heavier", [True, False])
def test_closed_form_of_the_step_equals_simulate_on_300_random_pipelines_with_an_uneven_last_stage(kind, heavier):
    for p, m, v, chunk, last in random_steps(75, 7, heavier):
        one_by_one = interleaved_one_f_one_b(p, m, v) if v > 1 else one_f_one_b(p, m)
        schedule = one_by_one if kind == "1f1b" else looped_bfs(p, m, v)
        every = [chunk] * (p * v - 1) + [last]
        halves = [x.backward / 2 for x in every]
        timeline = simulate(schedule, Costs([x.forward for x in every], halves, halves))
        found = slowest_and_idle(columns(p, m, v, kind == "1f1b"), chunk, chunk, last)
        assert sum(map(float, found)) == pytest.approx(timeline.makespan, rel=1e-9)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 1), (4, 8, 1), (4, 16, 1), (2, 4, 2), (4, 8, 2), (4, 8, 4)])
@pytest.mark.parametrize("kind", ["1f1b", "looped_bfs", "gpipe"])
def test_makespan_with_transfers_that_are_waited_for_is_the_simulated_one(kind, p, m, v):
    if kind == "gpipe" and v > 1:
        v = 1
    schedules = {"looped_bfs": looped_bfs(p, m, v), "gpipe": gpipe(p, m)}
    schedule = schedules.get(kind) or (interleaved_one_f_one_b(p, m, v) if v > 1 else one_f_one_b(p, m))
    transfer = 1e-3
    timeline = simulate(schedule, Costs(1, 1, 1, transfer))
    pipeline = columns(p, m, v, kind == "1f1b")
    waited = exposed_transfers(pipeline, apart=True) * transfer
    assert sum(slowest_and_idle(pipeline, *EVEN)) + waited == pytest.approx(timeline.makespan, rel=1e-9)
    assert [in_flight(pipeline, rank) for rank in range(p)] == timeline.peak_activations


@pytest.mark.parametrize(
    ("p", "m", "v", "group"), [(4, 8, 2, 8), (4, 10, 3, 5), (2, 12, 4, 6), (8, 24, 2, 12), (4, 4, 2, 4)]
)
def test_n_microbatches_in_a_row_keep_v_less_1_times_n_and_2p_less_1_chunks_and_hide_turns_from_chunk_to_chunk(
    p, m, v, group
):
    """As long as with p of them, for transfers apart from computing: (p - 1)(F + B)/v idle, and 2(p - 1) transfers."""
    timeline = simulate(interleaved_one_f_one_b(p, m, v, group), Costs(1, 1, 1, 1e-3))
    pipeline = columns(p, m, v, True, group)
    waited = exposed_transfers(pipeline, apart=True)
    assert waited == 2 * (p * (v if group == p else 1) - 1)
    assert sum(slowest_and_idle(pipeline, *EVEN)) + 1e-3 * waited == pytest.approx(timeline.makespan, rel=1e-9)
    assert [in_flight(pipeline, rank) for rank in range(p)] == timeline.peak_activations
