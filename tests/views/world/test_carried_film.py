"""The film of two ranks and the messages between them: who carries a message, and when it is there."""

import numpy as np
import pytest

from parlab import Cluster, run, views
from parlab.views.world.carried_film import Carried, carried, from_first_computation, idle_parts
from parlab.world import Timeline
from parlab.world.timeline import Span, Transfer
from tests.views.filmed import check_film, marks

CLUSTER = Cluster.uniform(latency=0, bandwidth=1e9)  # a message of 8 kB takes 8 µs


def exchange(comm, x):
    requests = [comm.isend(x, comm.right), comm.irecv(comm.left, like=x)]
    comm.compute("work", seconds=10e-6)
    return [request.wait() for request in requests][1]


def computed(size=2):
    return run(exchange, size, np.ones(1000), cluster=CLUSTER)


def us(*times):
    """Microseconds in picoseconds."""
    return tuple(time * 10**6 for time in times)


NAMES = ("message", "message"), (None, None)
SENT = (0, 1), (1, 0), (8000, 8000), us(0, 1), us(0, 1), us(15, 11), *NAMES
WORK = (0, 1), us(0, 0), us(10, 12), ("work", "work")


def watched(transfers=SENT, computes=WORK):
    """A clock of a watch: both ranks work from 0 on, rank 0 until 10 µs and rank 1 until 12."""
    return Timeline(2, 15 * 10**6, cluster="the wall clock", computes=computes, transfers=transfers)


def in_us(messages):
    return [m._replace(posted=m.posted / 1e6, start=m.start / 1e6, end=m.end / 1e6) for m in messages]


def test_on_a_computed_clock_messages_travel_from_0_to_8_us_beside_the_work():
    assert in_us(carried(computed().timeline)) == [Carried(0, 8000, 0, 0, 8), Carried(1, 8000, 0, 0, 8)]


def test_by_a_watch_a_message_posted_by_hand_lies_until_its_receiver_has_worked_also_while_its_sender_works_on():
    assert in_us(carried(watched())) == [Carried(1, 8000, 1, 10, 11), Carried(0, 8000, 0, 12, 15)]


def test_what_a_helper_carries_passes_beside_the_work_and_a_barrier_is_no_message():
    names = ((0, 1), (1, 0), (8000, 0), us(2, 2), us(2, 2), us(5, 5), ("all_reduce", "barrier"), (None, None))
    assert in_us(carried(watched(transfers=names))) == [Carried(0, 8000, 2, 2, 5)]


def test_the_story_tells_of_each_clock_whether_its_messages_travel():
    film = views.film({"clock": computed(), "watch": watched()}, messages=True)
    check_film(film)
    story = repr(film).splitlines()
    assert story[0] == "clock: there after 8.00 µs; watch: there after 15.0 µs"
    assert story[1:] == [
        "0 s: clock: arrives; watch: lies there",
        "8.00 µs: clock: is there; watch: lies there",
        "10.0 µs: clock: is there; watch: travels",
        "11.0 µs: clock: is there; watch: lies there",
        "12.0 µs: clock: is there; watch: arrives",
    ]


def test_a_message_that_is_posted_before_the_next_stop_lies_there():
    """Posted at 1 µs; the first stop after 0 is at 10 µs, where its receiver has worked."""
    sent = ((0, 1), (1, 0), (8000, 8000), us(1, 1), us(1, 1), us(15, 11), *NAMES)
    film = views.film({"watch": watched(transfers=sent)}, messages=True)
    assert repr(film).splitlines()[1] == "0 s: watch: lies there"


def test_between_the_two_messages_of_a_helper_half_is_there():
    """Each way one from 1 to 3 µs and one from 6 to 8."""
    columns = ((0, 1, 0, 1), (1, 0, 1, 0), (4000,) * 4, us(1, 1, 6, 6), us(1, 1, 6, 6), us(3, 3, 8, 8))
    transfers, work = (*columns, ("all_reduce",) * 4, (None,) * 4), ((0, 1), us(0, 0), us(10, 10), ("work", "work"))
    film = views.film({"watch": watched(transfers=transfers, computes=work)}, messages=True)
    assert repr(film).splitlines()[1:] == [
        "0 s: watch: nothing posted",
        "1.00 µs: watch: travels",
        "3.00 µs: watch: half is there",
        "6.00 µs: watch: arrives",
        "8.00 µs: watch: is there",
        "10.0 µs: watch: is there",
    ]


def test_a_posted_message_stands_dashed_at_its_sender_until_the_receiver_looks():
    film = views.film({"watch": watched()}, messages=True)
    posted = [at for at, words in marks(film, "see") if words == ["7.81 KiB posted"]]
    assert [at["b"] for at in posted] == [
        pytest.approx(film.second(time, leaves=True), abs=0.01) for time in (12_000_000, 10_000_000)
    ]
    moved = [at for at, _ in marks(film, "go") + marks(film, "go flow")]
    assert [at["x"] > 0 for at in moved] == [True, False]


def test_a_clock_whose_first_computation_starts_at_120_begins_there():
    columns = {
        "computes": ((0, 1), (120, 150), (200, 250), ("a", "b")),
        "transfers": ((0, 1), (1, 0), (8, 8), (5, 90), (10, 100), (20, 130), ("barrier", "message"), (None, None)),
        "waits": ((1, 0), (10, 100), (110, 140), (0, 1), ("barrier", "receive"), (60, 130)),
    }
    shown = from_first_computation(Timeline(2, 1000, cluster="the wall clock", **columns))
    assert [(span.start, span.end) for span in shown.computes] == [(0, 80), (30, 130)]
    assert [(t.ready, t.start, t.end) for t in shown.transfers] == [(0, 0, 10)]
    assert [(w.start, w.came, w.end) for w in shown.waits] == [(0, 10, 20)]
    assert shown.makespan == 880


@pytest.mark.parametrize(
    ("busy", "left"),
    [
        ([], [(100, 200)]),
        ([(50, 120)], [(120, 200)]),
        ([(150, 160), (110, 130)], [(100, 110), (130, 150), (160, 200)]),
        ([(90, 150), (140, 300)], []),
        ([(150, 300)], [(100, 150)]),
        ([(200, 300)], [(100, 200)]),
    ],
)
def test_of_the_time_from_100_to_200_the_parts_without_work_are_left(busy, left):
    message = Transfer(0, 1, 8, 100, 100, 200, "message", None)
    assert idle_parts(message, [Span(0, start, end, "compute", "work") for start, end in busy]) == left
