"""The measured timeline, from what the ranks noted by clocks that do not agree."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parlab.world.processes.wallclock import Measurements, measured_timeline

AHEAD = 1000  # nanoseconds by which rank 1's clock is ahead of rank 0's


def message(posted, asked, done, dst=0):
    """Both ends of a message of 64 bytes between ranks 0 and 1, each with the times of its own clock."""
    both = dict(key="key", src=1 - dst, dst=dst, nbytes=64, name="message", label=None)
    return SimpleNamespace(**both, posted_at=posted), SimpleNamespace(**both, posted_at=asked, passed_at=done)


def test_a_wait_from_4_to_9_us_for_a_message_that_is_ready_at_8_us_and_works_beside_it():
    ranks = [
        Measurements(0, [(5000, 7000, "work")], [(4000, 9000, (1, "receive", "key"))]),
        Measurements(AHEAD, [(6000 + AHEAD, 8000 + AHEAD, "work there")], []),
    ]
    ends = message(posted=8000 + AHEAD, asked=4500, done=8600)
    timeline = measured_timeline(ranks, [ends, (ends[0], None), (None, ends[1]), message(1, 1, 0)])
    us = 10**6  # picoseconds, from the first thing on
    assert [tuple(compute) for compute in timeline.computes] == [
        (0, 1 * us, 3 * us, "compute", "work"),
        (1, 2 * us, 4 * us, "compute", "work there"),
    ]
    assert [(t.src, t.dst, t.nbytes, t.ready, t.start, t.end) for t in timeline.transfers] == [
        (1, 0, 64, 4 * us, 4 * us, 46 * us // 10)
    ]
    assert timeline.waits == [(0, 0, 5 * us, 1, "receive", 4 * us)]
    assert timeline.makespan == 5 * us


@pytest.mark.parametrize("dst", [0, 1])
@pytest.mark.parametrize("first", ["compute", "wait", "send", "receive"])
def test_time_begins_with_the_first_thing_that_any_rank_notes(first, dst):
    at = {name: 3000 - 2000 * (name == first) for name in ("compute", "wait", "send", "receive")}
    ranks = [
        Measurements(0, [(at["compute"], 4000, "work")], []),
        Measurements(AHEAD, [], [(at["wait"] + AHEAD, 4000 + AHEAD, (0, "send", "key"))]),
    ]
    sender, receiver = (0, AHEAD) if dst else (AHEAD, 0)
    timeline = measured_timeline(ranks, [message(at["send"] + sender, at["receive"] + receiver, 4000 + receiver, dst)])
    assert timeline.makespan == 3 * 10**6
    assert timeline.transfers[0].ready == 2 * 10**6  # when the later of its two ends is there
    assert timeline.computes[0].start == (0 if first == "compute" else 2 * 10**6)
    assert timeline.waits[0][1] == (0 if first == "wait" else 2 * 10**6)


def test_nothing_noted_is_a_timeline_of_no_length():
    timeline = measured_timeline([Measurements(0, [], []), Measurements(AHEAD, [], [])], [])
    assert (timeline.size, timeline.makespan, timeline.transfers) == (2, 0, [])
