"""The way back from a wait ends at the rank that made all the others wait."""

import numpy as np
import pytest

from parlab import Cluster, labs, run, views
from tests.views.drawn import artists, lanes, title

MS = 10**9  # picoseconds


def test_the_way_back_of_the_patient_goes_from_rank_1_over_0_7_and_6_to_5():
    figure = views.trace_back(labs.patient())
    assert title(figure) == "Rank 1 waits for 0, 0 for 7, 7 for 6, 6 for 5, which computes for 14.0 ms"
    drawn = [(rank, start / MS, end / MS) for rank, start, end in lanes(figure, "way back")]
    assert drawn == [(0, 38, 44), (1, 48, 54), (5, 10, 24), (6, 18, 24), (7, 28, 34)]
    (arrows,) = artists(figure, "arrows")
    assert len(arrows.get_segments()) == 4


def test_another_ranks_last_wait_goes_the_other_way_round_to_the_same_rank():
    assert title(views.trace_back(labs.patient(), 2)).startswith("Rank 2 waits for 3, 3 for 4, 4 for 5, which")


@pytest.mark.parametrize("number", range(1, 9))
def test_the_end_of_the_way_is_the_rank_that_waits_least(number):
    done = labs.patient(number=number)
    waited = [done.timeline.waited(rank) for rank in range(8)]
    culprit = waited.index(min(waited))
    assert f"rank {culprit} waited for nobody before: work, 14.0 ms" in repr(views.trace_back(done))


def test_two_stalls_lead_to_the_one_that_the_wait_is_for():
    """Rank 0 is late for 1, and rank 3 later for 2: each pair has its own."""

    def program(comm):
        comm.compute("work", seconds=[5e-3, 0, 0, 9e-3][comm.rank])
        comm.sendrecv(np.zeros(1), comm.rank ^ 1, comm.rank ^ 1)

    done = run(program, 4, cluster=Cluster.uniform(0, 1e9))
    assert title(views.trace_back(done)) == "Rank 2 waits for 3, which computes for 9.00 ms"
    assert title(views.trace_back(done, 1)) == "Rank 1 waits for 0, which computes for 5.00 ms"
    assert title(views.trace_back(done, 0)) == "No rank waits for another"


def test_of_ranks_that_never_wait_nothing_is_framed():
    figure = views.trace_back(run(lambda comm: comm.compute("work", seconds=1), 2))
    assert title(figure) == "No rank waits for another"
    assert not artists(figure, "way back")
