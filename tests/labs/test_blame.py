"""Who is to blame for a wait: the checker's reference against the way back in a run, and refusals of wrong answers."""

import numpy as np
import pytest

from parlab import labs, views
from parlab.labs.blame import CASES, _draw
from tests.labs.answers import blamed, refused
from tests.labs.right_answers import RIGHT


@pytest.mark.parametrize("patient", [{}, {"also": {1: 6}}, {"also": {6: 3, 2: 7}}])
def test_it_is_where_the_way_back_of_the_figure_ends(patient):
    done = labs.patient(**patient)
    for rank in range(8):
        last, guilty = repr(views.trace_back(done, rank)).splitlines()[-1], labs.to_blame(labs.wait_log(done), rank)
        assert guilty == rank if "No rank waits" in last else last.startswith(f"rank {guilty} waited for nob")


def test_of_two_stalls_the_way_passes_the_second_which_is_why_the_lesson_says_one_stall():
    """From 56 to 70 ms rank 1 works for 14, and ranks 0 and 2 wait for it; the way goes on to rank 5."""
    done = labs.patient(also={1: 6})
    assert {(w.rank, w.peer) for w in done.timeline.waits if w.came == 70 * 10**9 > w.start} == {(0, 1), (2, 1)}
    assert {labs.to_blame(labs.wait_log(done), rank) for rank in range(8)} == {5}


def test_of_four_patients_it_is_the_rank_that_waits_least():
    for number in range(1, 5):
        done = labs.patient(number=number)
        waited = [done.timeline.waited(rank) for rank in range(8)]
        blame = {labs.to_blame(labs.wait_log(done), rank) for rank in range(8)}
        assert blame == {waited.index(min(waited))}


def test_drawn_logs_have_a_rank_that_waits_often_and_all_right_answers_agree_on_them():
    random = np.random.default_rng(0)
    for size in (2, 5, 9, 13) * 5:
        case = _draw(random, size)
        most = max(sum(wait[0] == rank for wait in case.waits) for rank in range(case.size))
        assert most >= 2
        assert len({int(answer(list(case.waits), case.rank)) for answer in RIGHT["00.to_blame"]}) == 1


def test_no_peer_comes_at_the_time_at_which_its_own_wait_ended():
    """So "ended before it came" and "ended when it came" are one answer."""
    random = np.random.default_rng(1)
    for case in [*CASES, *(_draw(random, size) for size in (3, 8, 14) * 20)]:
        for _, peer, _, came in case.waits:
            assert not [one for one in case.waits if one[0] == peer and one[3] == came]


def test_the_last_fixed_case_is_patient_0():
    assert sorted(CASES[-1].waits) == sorted(
        (rank, peer, start // 10**9, came // 10**9) for rank, peer, start, came in labs.wait_log(labs.patient())
    )


def back_by(counts, best=lambda wait: wait[3]):
    """The way back on which a peer's wait counts by another rule, or another one of them is the best."""

    def answer(waits, rank):
        last = None
        while own := [one for one in waits if one[0] == rank and (last is None or counts(one, last))]:
            last = max(own, key=best)
            rank = last[1]
        return rank

    return answer


def returns_none(waits, rank):
    blamed(waits, rank)


def in_circles(waits, rank):
    waits_for = {wait[0]: wait[1] for wait in waits}
    while rank in waits_for:
        rank = waits_for[rank]
    return rank


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (back_by(lambda one, last: one[3] < last[2]), "not only before the other began to wait"),
        (back_by(lambda one, last: one[3] < last[3], lambda one: one[3] - one[2]), "last one counts, not the longest"),
        (returns_none, "returned None, expected the number of a rank: 1"),
        (in_circles, "rank 1 came at 14, so its wait until 35 did not make it late; it leads in circles"),
        (lambda waits, rank: blamed(waits, rank) // (len(waits) < 2), "raised ZeroDivisionError"),  # where two circle
    ],
)
def test_a_wrong_answer_is_told_why(answer, said):
    text = refused("00.to_blame", answer, said, seconds=0.5)
    assert ("still running after 0.5 s; at line" in text) == ("leads in circles" in text) == (answer is in_circles)


def test_of_an_answer_that_never_ends_before_waits_lead_in_circles_no_cause_is_told():
    def that_never_moves(waits, rank):
        while waits:
            rank = max(rank, waits[0][1])

    assert "likely cause" not in refused("00.to_blame", that_never_moves, "still running after 0.5 s", seconds=0.5)
