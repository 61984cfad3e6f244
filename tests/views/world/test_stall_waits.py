"""How far a stall travels: bars of waiting beside the lanes, from which a law can be read."""

import math

import numpy as np
import pytest

from parlab import Cluster, labs, run, views
from tests.views.drawn import artists, title, written


def again(stall, message, always=False):
    return labs.patient(labs.posted_ahead, stall=stall, message=message, always=always)


def test_a_stall_of_20_ms_makes_six_ranks_wait_14_8_and_2_ms():
    figure = views.stall_waits(again(20e-3, 2e-3))
    assert title(figure) == "Rank 5 stalls for 20.0 ms: 6 ranks wait; the job takes 84.0 ms"
    (bars,) = artists(figure, "waits of a rank")
    ends = [path.vertices[:, 0].max() / 1e9 for path in bars.get_paths()]
    assert ends == pytest.approx([0, 2, 8, 14, 0, 14, 8, 2])  # ranks 1, 2, ..., 7, 0: the one that stalls in the middle
    beside = figure.axes[-1]
    assert [one.get_text() for one in beside.texts] == ["0", "2", "8", "14", "0", "14", "8", "2"]


@pytest.mark.parametrize(("stall", "message"), [(2, 1), (28, 1), (28, 2), (32, 8)])
def test_the_ranks_wait_as_the_law_says_and_the_picture_does_not_tell_it(stall, message):
    figure = views.stall_waits(again(stall / 1e3, message / 1e3))
    away = [4, 3, 2, 1, 0, 1, 2, 3]
    law = [max(0, stall - steps * (8 - message)) * (steps > 0) for steps in away]
    lines = repr(figure).splitlines()[2:]
    assert [float(line.split()[3]) for line in lines] == pytest.approx(law)
    assert "step" not in repr(figure)


def test_the_work_that_stalls_bears_the_28_ms_that_it_takes():
    """8 ms of work and 20 of the stall, in the fifth lane; other works bear their names."""
    assert [lane for _, lane, _ in written(views.stall_waits(again(20e-3, 2e-3)), ["28.0 ms"])] == [4]


@pytest.mark.parametrize("stall", [2, 12, 32])
def test_a_millisecond_of_waiting_is_as_long_beside_the_lanes_as_in_them(stall):
    figure = views.stall_waits(again(stall / 1e3, 8e-3))
    inches = []
    for axes in figure.axes[-2:]:
        start, end = axes.get_xlim()
        inches.append(axes.get_position().width * figure.get_figwidth() / (end - start) * 1e9)
    assert inches[0] == pytest.approx(inches[1])


def test_one_rank_that_waits_is_one():
    one_waits = run(late, 2, cluster=Cluster.uniform(0, math.inf))
    assert title(views.stall_waits(one_waits)).startswith("Rank 0 stalls for 4.00 ms: 1 rank waits; ")


def late(comm):
    for seconds in (2e-3, 2e-3, 6e-3):
        comm.compute("work", seconds=2e-3 if comm.rank else seconds)
    comm.sendrecv(np.zeros(1), 1 - comm.rank, 1 - comm.rank)


def test_the_sliders_run_the_ring_anew():
    asked = []

    def noted(stall, message, always):
        asked.append((round(stall * 1e3), round(message * 1e3), always))
        return again(stall, message, always)

    explorer = views.explore_stall(noted)
    explorer.controls["stall"].value = 28
    explorer.controls["message"].value = 1
    explorer.controls["always"].value = True
    assert asked == [(20, 2, False), (28, 2, False), (28, 1, False), (28, 1, True)]
    assert "Rank 5 stalls for 28.0 ms in each of 8 works: 7 ranks wait; the job takes 288 ms" in repr(explorer.figure)
    explorer.controls["always"].value = False
    assert "Rank 5 stalls for 28.0 ms: 6 ranks wait; the job takes 92.0 ms" in repr(explorer.figure)


@pytest.mark.parametrize("stall", [1, 2, 32])
def test_a_rank_that_stalls_in_every_round_sets_the_pace_and_its_neighbours_wait_beyond_1_ms(stall):
    """All eight works are longer. Before the last of seven messages are six of them; 8 − 2 ms are free, once."""
    done = again(stall / 1e3, 2e-3, True)
    assert done.timeline.makespan == 8 * (8 + stall) * 10**9
    assert done.timeline.waited(4) == done.timeline.waited(6) == (6 * stall - 6) * 10**9
