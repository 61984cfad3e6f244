"""The film of the waits: an arrow from each rank that waits to the rank that has not come, as long as it waits."""

import math

import numpy as np
import pytest

from parlab import Cluster, labs, per_rank, run, views
from parlab.views.drawing import theme
from parlab.views.timelines.waits_film import RED
from tests.views.drawn import check_refused
from tests.views.filmed import check_film, marks, tree_of

MS = 10**9  # picoseconds


def arrows(film):
    """When each red arrow is seen, in seconds of the film."""
    seen = [part for part in tree_of(film).iter("g") if [one.get("stroke") for one in part] == [RED]]
    found = []
    for part in seen:
        numbers = dict(one.split(":") for one in part.get("style").split(";"))
        found.append((float(numbers["--a"]), float(numbers["--b"])))
    return found


def test_the_stall_of_the_patient_travels_both_ways_one_rank_a_step_until_it_meets_at_rank_1():
    film = views.film(labs.patient(), waits=True)
    check_film(film)
    assert film.lines == [
        "0 s: ranks 4 and 6 wait for rank 5",
        "20.0 ms: rank 7 waits for rank 6, rank 3 waits for rank 4",
        "30.0 ms: rank 0 waits for rank 7, rank 2 waits for rank 3",
        "40.0 ms: rank 1 waits for rank 0",
        "48.0 ms: rank 1 still waits for rank 0",
        "54.0 ms: no rank waits for another",
    ]


def test_an_arrow_is_seen_from_the_start_of_a_wait_until_the_other_rank_has_come():
    done = labs.patient()
    film = views.film(done, waits=True)
    waits = sorted((w.start, w.came) for w in done.timeline.waits if w.came > w.start)
    assert len(waits) == 7
    assert arrows(film) == [(film.second(start), film.second(came, leaves=True)) for start, came in waits]


def test_as_many_messages_travel_as_were_sent():
    film = views.film(labs.patient(), waits=True)
    assert len(marks(film, "go") + marks(film, "go flow")) == 8 * 7


def test_a_stall_that_is_swallowed_stops_at_its_neighbours():
    film = views.film(labs.patient(labs.posted_ahead, stall=9e-3), waits=True)
    check_film(film)
    assert film.lines[0] == "0 s: ranks 4 and 6 wait for rank 5"
    assert film.lines[-1] == "25.0 ms: no rank waits for another"
    assert len(arrows(film)) == 2


def test_a_chain_is_as_many_arrows_as_ranks_that_wait_and_its_lanes_show_both_kinds_of_waiting():
    """Rank 0 receives first, the others send first: 2 waits for 3, 1 for 2, and, when it has received, 0 for 1."""

    def one_receives_first(comm, x):
        calls = [lambda: comm.send(x, comm.right), lambda: comm.recv(comm.left, like=x)]
        for call in calls if comm.rank else calls[::-1]:
            call()

    done = run(one_receives_first, 4, np.ones(4), cluster=Cluster.uniform(1e-6, math.inf))
    film = views.film(done, waits=True)
    check_film(film)
    assert film.lines == [
        "0 s: rank 1 waits for rank 2, rank 2 waits for rank 3, rank 0 waits for rank 1",
        "1.00 µs: rank 1 still waits for rank 2, rank 0 still waits for rank 1",
        "3.00 µs: no rank waits for another",
    ]
    assert len(arrows(film)) == 3
    bars = [part for part in tree_of(film).iter("rect") if part.get("fill") == theme.paler("#4A2A7F", 0.5)]
    assert len(bars) == 2 * 4  # each message makes both its ranks wait for the transfer
    (width,) = {float(bar.get("width")) for bar in bars}
    assert width == pytest.approx((606 - 318) / 4 - 1)


def late(comm, seconds):
    comm.compute("work", seconds=seconds)
    if comm.rank in (0, 2):
        comm.sendrecv(np.zeros(4), 2 - comm.rank, 2 - comm.rank)


def test_ranks_that_face_each_other_and_a_wait_from_the_start_on():
    film = views.film(run(late, 4, per_rank([0, 0, 3e-3, 0]), cluster=Cluster.uniform(1e-3, 1e9)), waits=True)
    check_film(film)
    assert film.lines[0] == "0 s: rank 0 waits for rank 2"
    (path,) = [part.get("d") for part in tree_of(film).iter("path") if part.get("stroke-width") == "4"]
    assert "nan" not in path


def test_without_a_wait_the_film_says_so():
    film = views.film(run(lambda comm: comm.compute("work", seconds=1), 2), waits=True)
    check_film(film)
    assert film.lines == ["0 s: no rank waits for another"]


@pytest.mark.parametrize("size", [9, 12])
def test_too_many_ranks_are_refused(size):
    check_refused(
        lambda: views.film(run(lambda comm: comm.compute("work", seconds=1), size), waits=True), f"{size} ranks", "8"
    )
    check_refused(lambda: views.film(run(lambda comm: None, 2), waits=True), "source=", "nothing takes any time")
