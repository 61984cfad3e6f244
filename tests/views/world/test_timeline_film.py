"""The film of a run: messages are posted, wait for the other rank, travel along the hand of the clock, and arrive."""

import re

import numpy as np
import pytest

from parlab import Cluster, labs, per_rank, run, views
from tests.views.filmed import check_film, marks

CLUSTER = Cluster.uniform(latency=1e-6, bandwidth=1.024e9)  # a message of 8 KiB takes 9 µs


def late_receiver(comm, x):
    if comm.rank == 0:
        comm.send(x, 1)
        comm.compute("work", seconds=3e-6)
    else:
        comm.compute("long work", seconds=6e-6)
        comm.recv(0, like=x)


def rendezvous():
    return run(late_receiver, 2, np.ones(1024), cluster=CLUSTER)


def chain(comm, x, seconds):
    comm.compute("forward", seconds=seconds)
    if comm.rank:
        comm.recv(comm.left, like=x)
    if comm.rank < comm.size - 1:
        comm.send(x, comm.right)


def stall(size=8):
    times = [3e-6] * size
    times[2] = 15e-6
    return run(chain, size, np.ones(256), per_rank(times), cluster=CLUSTER)


def test_the_story_of_a_rendezvous():
    film = views.film(rendezvous())
    check_film(film)
    assert repr(film).splitlines() == [
        "2 ranks: 18.0 µs, 25 % computing, 17 % waiting for a rank, 50 % waiting for a transfer, 8 % done",
        "0 s: rank 1 computes long work; rank 0 waits for rank 1",
        "6.00 µs: 8.00 KiB travel from 0 to 1",
        "15.0 µs: rank 0 computes work; rank 1 is done",
    ]


def test_a_message_stands_with_its_sender_until_the_receiver_comes_and_then_travels():
    film = views.film(rendezvous())
    (posted, words), (place, name), (sent, said) = marks(film, "go") + marks(film, "go flow")
    assert (words, name, said) == (["8.00 KiB", "posted"], ["from 0"], ["8.00 KiB"])
    assert (posted["a"], posted["b"]) == (film.second(0, leaves=True), film.second(6_000_000))
    assert posted["y"] == 0
    for one in (place, sent):
        assert (one["a"], one["b"]) == (film.second(6_000_000, leaves=True), film.second(15_000_000))
    assert (place["y"], sent["y"]) == (0, 58 - 22)  # a lane, less what lies between the two places of a lane
    assert sent["x"] == pytest.approx(428 * 9 / 18)  # at the hand of the clock


def test_while_the_clock_stands_at_a_rendezvous_both_ends_are_seen_and_at_the_end_the_message():
    film = views.film(rendezvous())
    seen = [mark for mark in marks(film, "see") if mark[1] in (["8.00 KiB", "posted"], ["from 0"], ["8.00 KiB"])]
    start, come, end = [(film.second(time), film.second(time, leaves=True)) for time in (0, 6_000_000, 15_000_000)]
    assert [((numbers["a"], numbers["b"]), words) for numbers, words in seen] == [
        (start, ["8.00 KiB", "posted"]),
        (come, ["8.00 KiB", "posted"]),
        (come, ["from 0"]),
        (end, ["8.00 KiB"]),
    ]


def test_a_receiver_that_came_first_has_an_empty_place():
    film = views.film(stall())
    check_film(film)
    places = [mark for mark in marks(film, "go flow") if mark[1] == ["from 3"]]
    assert [place["a"] for place, _ in places] == [film.second(3_000_000, leaves=True)]
    assert "15.0 µs: 2.00 KiB travel from 1 to 2" in film.lines


def ring(comm, x):
    for _ in range(3):
        comm.sendrecv(x, comm.right, comm.left)


def test_a_place_belongs_to_its_own_message_and_not_to_the_one_before():
    film = views.film(run(ring, 4, np.ones(256), cluster=CLUSTER))  # three steps of 3 µs
    places = [numbers for numbers, words in marks(film, "go") if words == ["from 0"]]
    assert [(numbers["a"], numbers["b"]) for numbers in places] == [
        (film.second(start, leaves=True), film.second(start + 3_000_000)) for start in (0, 3_000_000, 6_000_000)
    ]


def test_all_bars_are_laid_bare_by_the_clock_and_their_words_are_seen_when_they_are_whole():
    film = views.film(rendezvous())
    lanes, hand = [words for _, words in marks(film, "bare")]
    assert lanes == []
    seen = {word for _, words in marks(film, "see") for word in words}
    assert seen >= {"work", "waits for rank 1", "transfer to rank 1", "long work", "transfer from rank 0"}
    assert hand == []
    assert [numbers for numbers, _ in marks(film, "now")] == [{"x": 428}]


def shift(comm, x):
    comm.compute("work", seconds=1e-6)
    comm.sendrecv(x, comm.right, comm.left)


def test_a_caption_says_all_that_begins_and_names_many_ranks_by_the_first_and_the_last():
    film = views.film(run(shift, 8, np.ones(1024), cluster=CLUSTER))
    assert film.lines == ["0 s: ranks 0 to 7 compute work", "1.00 µs: ranks 0 to 7 send 8.00 KiB to the right"]
    late = views.film(stall())
    assert not [line for line in late.lines if "more" in line or "…" in line]


def test_a_way_is_drawn_only_to_the_next_lane():
    film = views.film(run(shift, 8, np.ones(1024), cluster=CLUSTER))
    assert film.html.count('class="trail" d="M') == 7 + 1  # from 0 to 1, ..., 6 to 7, not from 7 to 0; and the hand


def test_the_first_ranks_of_a_large_run():
    film = views.film(stall(12), ranks=4)
    check_film(film)
    assert "rank 3" in film.html
    assert "rank 4" not in film.html


def test_the_film_of_a_stall_names_all_7_waits_of_the_chain_although_other_sentences_have_no_room():
    story = views.film(labs.patient()).story
    waits = {(rank, peer) for rank, peer in re.findall(r"rank (\d) waits for rank (\d)", story)}
    assert waits == {("4", "5"), ("6", "5"), ("3", "4"), ("7", "6"), ("2", "3"), ("0", "7"), ("1", "0")}
