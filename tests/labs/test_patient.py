"""The patient of lesson 00: one rank stalls, the stall travels both ways, and overlap swallows it."""

from itertools import count

import numpy as np
import pytest

from parlab import Cluster, labs, run
from parlab.labs import posted_ahead
from parlab.labs.patient import in_turn
from tests.labs.right_answers import with_sends_awaited_last

MS = 10**9  # picoseconds


def waited(done):
    return [done.timeline.waited(rank) / MS for rank in range(8)]


def test_6_ms_of_stall_on_rank_5_are_42_ms_of_waiting_on_7_ranks():
    done, well = labs.patient(), labs.patient(stall=0)
    assert (done.timeline.makespan / MS, well.timeline.makespan / MS) == (84, 78)  # 8·8 + 7·2 + 6
    assert waited(well) == [14] * 8
    assert waited(done) == [20, 20, 20, 20, 20, 14, 20, 20]
    assert sum(waited(done)) - sum(waited(well)) == 42


def test_the_stall_reaches_one_rank_further_each_way_in_each_step():
    first = {}
    for rank, peer, _, came in labs.wait_log(labs.patient()):
        first.setdefault(rank, (peer, came / MS))
    assert first == {4: (5, 24), 6: (5, 24), 3: (4, 34), 7: (6, 34), 2: (3, 44), 0: (7, 44), 1: (0, 54)}


def reduced_in_each_round(comm, x, culprit, late, algorithm):
    for number in range(4):
        comm.compute("work", seconds=14e-3 if (comm.rank, number) == (culprit, late) else 8e-3)
        comm.all_reduce(x, algorithm=algorithm)


@pytest.mark.parametrize(("algorithm", "culprit", "late"), [("ring", 3, 2), ("recursive_doubling", 0, 0)])
def test_the_rank_that_stalls_spends_6_ms_less_in_all_reduces_than_each_other_rank(algorithm, culprit, late):
    done = run(reduced_in_each_round, 8, np.ones(8), culprit, late, algorithm)
    more = [spent - min(waited(done)) for spent in waited(done)]
    assert more == pytest.approx([6 * (rank != culprit) for rank in range(8)])


def test_patient_18_stalls_on_rank_7_in_its_second_work_and_the_stall_ends_on_rank_3():
    done = labs.patient(number=18)
    assert waited(done) == [20, 20, 20, 20, 20, 20, 20, 14]
    log = [(rank, peer, start / MS, came / MS) for rank, peer, start, came in labs.wait_log(done)]
    right = [(0, 7, 18, 24), (1, 0, 28, 34), (2, 1, 38, 44), (3, 2, 48, 54)]
    left = [(6, 7, 20, 24), (5, 6, 30, 34), (4, 5, 40, 44)]
    assert log == sorted(right + left, key=lambda wait: wait[2])


def test_posted_ahead_nobody_waits_and_the_stall_costs_6_ms_once():
    done = labs.patient(posted_ahead)
    assert waited(done) == [0] * 8
    assert done.timeline.makespan / MS == 70  # 8·8 + 6
    assert all((result == 36 + 8).all() for result in done.results)


@pytest.mark.parametrize(("stall", "waits"), [(6e-3, 0), (6.001e-3, 0.001), (9e-3, 3)])
def test_overlap_swallows_a_stall_as_long_as_work_less_message_and_no_longer(stall, waits):
    """8 − 2 = 6 ms. For the rest of a longer stall its two neighbours wait, and their own neighbours do not."""
    late = waited(labs.patient(posted_ahead, stall=stall))
    assert late == pytest.approx([waits * (rank in (4, 6)) for rank in range(8)])


@pytest.mark.parametrize(("stall", "message"), [(6, 1), (15, 2), (28, 5), (18, 8)])
def test_a_rank_d_steps_away_waits_for_stall_less_d_times_work_less_message(stall, message):
    """Rank 5 stalls: 4 and 6 are one step away, 3 and 7 two, 2 and 0 three, 1 four."""
    late = waited(labs.patient(posted_ahead, stall=stall / 1e3, message=message / 1e3))
    steps = [3, 4, 3, 2, 1, 0, 1, 2]
    assert late == pytest.approx([max(0, stall - d * (8 - message)) * (d > 0) for d in steps])


@pytest.mark.parametrize(("work", "takes"), [(2, 84), (5, 84), (6, 90)])
def test_two_stalls_of_6_ms_that_meet_cost_6_and_else_12(work, takes):
    """From its sixth work on, rank 1 has waited for rank 5 before it stalls itself."""
    assert labs.patient(also={1: work}).timeline.makespan / MS == takes


@pytest.mark.parametrize(("work", "least"), [(4, [7]), (5, [3, 7]), (6, [2, 3, 4, 7]), (8, [*range(8)])])
def test_a_stall_of_rank_7_reaches_all_if_4_messages_follow_it_and_else_others_wait_as_little(work, least):
    done = labs.patient(number=18, also={7: work})
    assert [rank for rank in range(8) if waited(done)[rank] == 14] == least
    log = labs.wait_log(done)
    assert labs.to_blame(log, log[-1][0] if log else 7) == 7  # the way back finds it, from a rank that waited last


@pytest.mark.parametrize("stall", [6, 50])
def test_hiding_the_messages_saves_14_ms_with_each_stall_and_nothing_of_the_stall(stall):
    in_turns, ahead = (labs.patient(one, stall=stall / 1e3).timeline.makespan / MS for one in (in_turn, posted_ahead))
    assert (in_turns, ahead) == (78 + stall, 64 + stall)


def test_slack_is_spent_once_so_for_two_stalls_of_6_ms_one_after_the_other_the_neighbours_wait():
    works = count()

    def work(comm, piece):
        with comm.compute("work", seconds=14e-3 if comm.rank == 7 and next(works) in (1, 2) else 8e-3):
            return piece + 1

    done = run(posted_ahead, 8, np.ones(8), work, cluster=Cluster.uniform(2e-3, np.inf))
    assert waited(done) == [6, 0, 0, 0, 0, 0, 6, 0]


def test_a_rank_that_is_slow_by_2_ms_in_each_work_waits_for_14_ms_and_the_others_for_22_to_28():
    done, ahead = (labs.patient(one, number=18, stall=2e-3, always=True) for one in (in_turn, posted_ahead))
    assert (waited(done), done.timeline.makespan / MS) == ([28, 26, 24, 22, 24, 26, 28, 14], 94)
    assert ahead.timeline.makespan / MS == 80


def test_of_two_stalls_that_meet_mending_one_gains_nothing():
    assert labs.patient(stall=6e-3).timeline.makespan == labs.patient(also={1: 5}).timeline.makespan


def _sends_awaited_at_the_end(comm, x, work, pieces):
    """A send returns at once, as if it were copied into a buffer; `pieces` receives them, each when it is asked."""
    total, piece, sent = work(comm, x), x, []
    for _ in range(comm.size - 1):
        sent.append(comm.isend(piece, comm.right))
        piece = next(pieces)
        total = total + work(comm, piece)
    for request in sent:
        request.wait()
    return total


def buffered(comm, x, work):
    """A message stays with its sender until the receiver asks for it."""
    return _sends_awaited_at_the_end(comm, x, work, (comm.recv(comm.left, like=x) for _ in range(comm.size - 1)))


def test_with_buffered_sends_the_stall_travels_to_the_right_only_and_rank_4_waits_as_little_as_rank_5():
    done = labs.patient(buffered)
    assert [rank for rank, *_ in labs.wait_log(done)] == [6, 7, 0, 1, 2, 3]
    assert waited(done) == [20, 20, 20, 20, 14, 14, 20, 20]


def buffered_by_the_receiver(comm, x, work):
    """A message leaves when it is sent, and lies with the receiver until that asks for it: MPI's eager protocol."""
    places = [comm.irecv(comm.left, like=x) for _ in range(comm.size - 1)]
    return _sends_awaited_at_the_end(comm, x, work, (place.wait() for place in places))


def test_with_a_buffer_at_the_receiver_the_stall_travels_to_the_right_too_and_rank_5_waits_least():
    """By hand: until it has caught up, rank 5 finds three messages there already, and waits 14 − 3 · 2 = 8 ms."""
    done = labs.patient(buffered_by_the_receiver)
    assert waited(done) == [14, 16, 18, 20, 14, 8, 14, 14]


def receives_posted_first(comm, x, work):
    """Right as the exercise 00.overlap is, but all receives are posted before the first round."""
    arriving = [comm.irecv(comm.left, like=x) for _ in range(comm.size - 1)]
    total, piece = 0, x
    for following in arriving:
        sent = comm.isend(piece, comm.right)
        total = total + work(comm, piece)
        sent.wait()
        piece = following.wait()
    return total + work(comm, piece)


@pytest.mark.parametrize(("program", "pieces"), [(in_turn, 1), (posted_ahead, 2)])
def test_while_it_works_a_rank_holds_one_piece_in_turn_and_two_with_overlap_and_the_peak_is_2_mib(program, pieces):
    timeline = labs.patient(program).timeline
    assert timeline.peak_bytes(0) == 2 * 2**20
    second = sorted(span for span in timeline.computes if span.rank == 0)[1]  # in the first one it has received nothing
    steps = timeline.held_by_name(0)["received"]
    held = [nbytes for time, nbytes in steps if time <= second.start]
    assert held[-1] == pieces * 2**20
    assert not [time for time, _ in steps if second.start < time < second.end]


def keeps_every_piece(comm, x, work, rounds=7):
    """Each round waits for both its messages, and is not over before the next one: it keeps its piece."""
    if not rounds:
        return work(comm, x)
    sent, arriving = comm.isend(x, comm.right), comm.irecv(comm.left, like=x)
    total = work(comm, x)
    sent.wait()
    return total + keeps_every_piece(comm, arriving.wait(), work, rounds - 1)


@pytest.mark.parametrize(
    ("program", "peak"),
    [(posted_ahead, 2), (keeps_every_piece, 7), (with_sends_awaited_last, 7), (receives_posted_first, 8)],
)
def test_the_peak_is_2_mib_but_7_or_8_if_sends_are_awaited_last_pieces_are_kept_or_receives_posted_first(program, peak):
    done = labs.patient(program)
    assert waited(done) == [0] * 8
    assert [done.timeline.peak_bytes(rank) for rank in range(8)] == [peak * 2**20] * 8


def test_each_number_is_a_patient_of_its_own_and_the_same_each_time():
    patients = [waited(labs.patient(number=number)) for number in range(1, 24)]
    assert {late.index(14) for late in patients} == set(range(8))
    assert waited(labs.patient(number=7)) == patients[6]
    assert all(sorted(late) == [14] + [20] * 7 for late in patients)


def test_a_program_that_is_none_and_a_stall_below_0_are_refused():
    for given, said in (
        ({"program": 3}, "program=3"),
        ({"number": -1}, "number=-1"),
        ({"stall": -1e-3}, "stall=-0.001"),
        ({"message": np.inf}, "message=inf"),
        ({"also": {8: 1}}, "also=8"),
        ({"also": {1: 0}}, r"also\[1\]=0"),
        ({"also": {1: 9}}, "also={1: 9}: a rank has 8 works"),
    ):
        with pytest.raises(ValueError, match=f"^{said}"):
            labs.patient(**given)
