"""The film of the waits: an arrow from each rank that waits to the rank that has not come, as long as it waits."""

import math

import numpy as np
import pytest

from parlab import Cluster, labs, per_rank, run, views
from parlab.labs.patient import in_turn, posted_ahead
from parlab.views.engine import theme
from parlab.views.world.waits_film import RED
from tests.views.filmed import check_film, parts, tree_of

MS = 10**9  # picoseconds


def waits_of(done):
    """The waits for a rank that had not come, in the order of their arrows."""
    return sorted((w for w in done.timeline.waits if w.came > w.start), key=lambda w: (w.start, w.rank))


def arrows(film):
    """When each red arrow is seen, in seconds of the film."""
    seen = [numbers for numbers, part in parts(film, "see") if [one.get("stroke") for one in part] == [RED]]
    return [(numbers["a"], numbers["b"]) for numbers in seen]


def test_the_stall_of_the_patient_travels_both_ways_one_rank_a_step_until_it_meets_at_rank_1():
    film = views.film(labs.patient(), waits=True)
    check_film(film)
    assert film.lines == [
        "0 s: no rank waits for another",
        "18.0 ms: rank 6 waits for rank 5; from 20.0 ms, 4 for 5",
        "24.0 ms: no rank waits for another",
        "28.0 ms: rank 7 waits for rank 6; from 30.0 ms, 3 for 4",
        "34.0 ms: no rank waits for another",
        "38.0 ms: rank 0 waits for rank 7; from 40.0 ms, 2 for 3",
        "44.0 ms: no rank waits for another",
        "48.0 ms: rank 1 waits for rank 0",
        "54.0 ms: no rank waits for another; rank 5 never did",
    ]


def test_two_stalls_that_meet_leave_two_ranks_that_never_waited():
    film = views.film(labs.patient(also={1: 5}), waits=True)
    assert film.lines[-1] == "44.0 ms: no rank waits for another; ranks 1 and 5 never did"


def in_pairs(comm, seconds):
    comm.compute("work", seconds=seconds)
    other = {0: 3, 3: 0, 1: 2, 2: 1, 4: 5, 5: 4}[comm.rank]
    comm.sendrecv(np.zeros(4), other, other)


def test_a_stop_comes_before_the_first_of_those_goes_on_that_wait_together_and_the_last_when_nobody_waits():
    """Rank 0 waits from 0 to 10 ms, 1 from 2 to 4, and 4 from 5 to 8."""
    done = run(in_pairs, 6, per_rank([0, 2e-3, 4e-3, 10e-3, 5e-3, 8e-3]), cluster=Cluster.uniform(0, math.inf))
    film = views.film(done, waits=True)
    assert film.times == [0, 2 * MS, 5 * MS, 10 * MS]
    assert film.lines == [
        "0 s: rank 0 waits for rank 3",
        "2.00 ms: rank 1 waits for rank 2, and still 0 for 3",
        "5.00 ms: rank 4 waits for rank 5, and still 0 for 3",
    ]


def test_waits_that_begin_within_a_twentieth_of_all_time_stand_in_one_line_and_a_later_one_in_its_own():
    """They begin at 10, 13 and 16 of 100 ms: the third is close to the second, and not to the first."""
    seconds = per_rank([10e-3, 13e-3, 0.1, 0.1, 16e-3, 0.1])
    assert views.film(run(in_pairs, 6, seconds, cluster=Cluster.uniform(0, math.inf)), waits=True).lines[1:3] == [
        "10.0 ms: rank 0 waits for rank 3; from 13.0 ms, 1 for 2",
        "16.0 ms: rank 4 waits for rank 5, and still 0 for 3, 1 for 2",
    ]


def test_the_one_work_that_is_longer_than_all_others_bears_its_time_and_equal_ones_bear_none():
    films = [views.film(labs.patient(stall=stall), waits=True) for stall in (6e-3, 0)]
    stalls, well = (["".join(part.itertext()) for part in tree_of(film).iter("text")] for film in films)
    assert stalls.count("14 ms") == 1
    assert "8 ms" not in well


def test_an_arrow_is_seen_from_the_start_of_a_wait_until_the_other_rank_has_come():
    done = labs.patient()
    film = views.film(done, waits=True)
    waits = [(w.start, w.came) for w in waits_of(done)]
    assert len(waits) == 7
    assert arrows(film) == [(film.second(start), film.second(came, leaves=True)) for start, came in waits]


@pytest.mark.parametrize("program", [in_turn, posted_ahead])
@pytest.mark.parametrize("number", [0, 5])
def test_a_long_stall_for_which_all_ranks_wait_has_captions_that_fit(program, number):
    film = views.film(labs.patient(program, number, stall=40e-3), waits=True)
    check_film(film)
    assert " and still " in film.lines[-2]


def discs(film, kind):
    """When the discs of a kind are seen, and how many: (from, until, how many)."""
    found = []
    for numbers, part in parts(film, "see"):
        circles = [one for one in part if one.get("fill") == theme.KINDS[kind].color and one.tag == "circle"]
        if circles:
            found.append((numbers.get("a", 0), numbers["b"], len(circles)))
    return found


def test_a_rank_that_waits_for_a_rank_is_hatched_from_when_its_arrow_comes_until_it_goes():
    film = views.film(labs.patient(), waits=True)
    assert [(start, end) for start, end, _ in discs(film, "wait")] == arrows(film)


def test_8_discs_are_blue_before_the_clock_starts_since_all_ranks_work_from_0_on():
    """The film stands still at first. Without this its ranks would seem to wait for a transfer."""
    seen = parts(views.film(labs.patient(), waits=True), "see")
    early = [one.get("fill") for numbers, part in seen if "a" not in numbers and "b" in numbers for one in part]
    assert early.count(theme.KINDS["compute"].color) == 8


def test_a_disc_that_neither_works_nor_waits_for_a_rank_is_dotted_until_its_rank_is_done_and_then_empty():
    """The ranks far away are done at 64 ms, then the neighbours of the neighbours, the neighbours, and rank 5."""
    film = views.film(labs.patient(posted_ahead, stall=18e-3), waits=True)
    ends = [film.second(ms * MS, leaves=True) for ms in (64, 70, 76, 82)]
    assert discs(film, "transfer") == [(0, end, many) for end, many in zip(ends, (3, 2, 2, 1), strict=True)]
    words = [one for one in parts(film, "see") if [text.get("class") for text in one[1]][:1] == ["strong"]]
    assert ["".join(part.itertext()) for _, part in words] == ["012", "37", "46", "5"]
    assert [numbers["a"] for numbers, _ in words] == ends  # ink of the page, from then on


def test_a_stall_that_is_swallowed_stops_at_its_neighbours():
    film = views.film(labs.patient(posted_ahead, stall=9e-3), waits=True)
    check_film(film)
    assert film.lines == [
        "0 s: no rank waits for another",
        "24.0 ms: ranks 4 and 6 wait for rank 5",
        "25.0 ms: no rank waits for another",
    ]
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
        "0 s: rank 1 waits for rank 2, 2 for 3",
        "1.00 µs: rank 0 waits for rank 1, and still 1 for 2",
        "3.00 µs: no rank waits for another; rank 3 never did",
    ]
    assert len(arrows(film)) == 3
    bars = [part for part in tree_of(film).iter("rect") if part.get("fill") == theme.KINDS["transfer"].color]
    sign, *bars = bars  # in the legend
    assert sign.get("width") == "22"
    assert len(bars) == 2 * 4  # each message makes both its ranks wait for the transfer
    ((width, height),) = {(float(bar.get("width")), bar.get("height")) for bar in bars}
    assert width == pytest.approx((606 - 318) / 4 - 1)
    assert height == "22"  # a lane has room for more


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
