"""The pipeline step of lesson 09: its costs, its clock, and the floor under its watch."""

import sys

import numpy as np
import pytest

from parlab import labs, run
from parlab.pipeline import one_f_one_b, simulate, zb_h1

needs_mpi = pytest.mark.skipif(sys.platform == "win32", reason="the mpich wheel is for Linux and macOS")
EVEN, MOVED, HEAD = [4, 4, 4, 4], [5, 5, 4, 2], 0.036


def seconds(schedule, layers, head=0.0):
    return pytest.approx(simulate(schedule(4, 4), labs.stage_costs(layers, head=head)).makespan)


def test_1f1b_of_4_microbatches_is_told_7_times_180_ms_and_needs_1692_with_the_head():
    assert seconds(one_f_one_b, EVEN) == 7 * 0.18
    # three forwards to the last stage, four times 3 · 96 ms there, three backwards home
    assert seconds(one_f_one_b, EVEN, HEAD) == 3 * 0.06 + 4 * 0.288 + 3 * 0.12


def test_the_old_costs_advise_against_moving_layers_under_zb_h1_and_the_seen_ones_for_it():
    told = [simulate(zb_h1(4, 4), labs.stage_costs(layers)).makespan for layers in (EVEN, MOVED)]
    seen = [simulate(zb_h1(4, 4), labs.stage_costs(layers, head=HEAD)).makespan for layers in (EVEN, MOVED)]
    assert told == pytest.approx([0.9, 1.02])
    assert seen == pytest.approx([1.332, 1.077])


@pytest.mark.parametrize("schedule", [one_f_one_b, zb_h1])
def test_a_third_layer_moved_wins_nothing_under_either_schedule(schedule):
    """The stages with five layers take 75 ms a forward, and the last one, with the head, 66 ms or 51."""
    moved = [simulate(schedule(4, 4), labs.stage_costs(way, head=HEAD)).makespan for way in (MOVED, [5, 5, 5, 1])]
    assert moved[1] == pytest.approx(moved[0])


@needs_mpi
def test_on_processes_the_clock_has_the_told_costs_and_no_action_is_shorter_than_its_sleep():
    step = labs.step_on_processes(one_f_one_b(4, 1))
    assert step.timeline.makespan == pytest.approx(4 * 0.18e12, rel=1e-3)  # and messages of 32 bytes
    assert step.wallclock.makespan >= (3 * 0.18 + 0.288) * 1e12
    for forward, backward in labs.watched(step)[:3]:
        assert forward >= 0.06
        assert backward >= 0.12
    forward, backward = labs.watched(step)[3]
    assert forward >= 0.096
    assert backward >= 0.192


def test_a_stage_too_few_and_a_run_without_a_watch_are_refused():
    with pytest.raises(ValueError, match=r"layers=\[4, 4, 4\]: must have a number for each of 4 ranks"):
        labs.step_on_processes(one_f_one_b(4, 4), [4, 4, 4])
    with pytest.raises(ValueError, match="step: threads have no watch; run it with engine='mpi'"):
        labs.watched(run(lambda comm: comm.all_reduce(np.ones(1)), 2))
