"""A deadlock is drawn as it is: one node a rank, one arrow a wait, the cycle or the chain in red."""

import pytest
from matplotlib.colors import to_hex

from parlab import views
from parlab.views.engine import theme
from tests.views.drawn import artists, both_send_first, last_returns_early, one_skips, stuck


def arrows(figure):
    """Of every arrow: who waits, for whom, and whether it is red."""
    return {
        (*arrow.get_gid().split(" waits for "), to_hex(arrow.get_edgecolor()).upper() == theme.ALARM)
        for arrow in _all(figure)
    }


def _all(figure):
    return figure.findobj(lambda artist: " waits for " in (artist.get_gid() or ""))


@pytest.mark.parametrize("size", [1, 2, 5, 64])
def test_a_circle_of_waits_has_one_red_arrow_a_rank(size):
    error = stuck(both_send_first, size)
    wanted = {(str(rank), str((rank + 1) % size), True) for rank in range(size)}
    assert arrows(views.deadlock(error)) == wanted


@pytest.mark.parametrize("size", [2, 5, 64])
def test_a_chain_ends_at_the_rank_that_returned_which_is_a_square(size):
    figure = views.deadlock(stuck(last_returns_early, size))
    assert arrows(figure) == {(str(rank), str(rank + 1), True) for rank in range(size - 1)}
    markers = {node.get_gid(): node.get_marker() for rank in range(size) for node in artists(figure, f"rank {rank}")}
    assert [markers[f"rank {rank}"] for rank in range(size)] == ["o"] * (size - 1) + ["s"]


def test_a_collective_that_one_rank_skips_has_one_red_arrow_and_the_others_grey():
    figure = views.deadlock(stuck(one_skips, 8))
    wanted = {("0", "1", True), *((str(rank), "1", False) for rank in range(2, 8))}
    assert arrows(figure) == wanted


def test_a_wait_that_leads_into_a_cycle_is_not_red():
    def rank_0_waits_for_a_pair_that_waits_for_each_other(comm, x):
        comm.recv({0: 1, 1: 2, 2: 1}[comm.rank], like=x)

    figure = views.deadlock(stuck(rank_0_waits_for_a_pair_that_waits_for_each_other, 3))
    assert arrows(figure) == {("0", "1", False), ("1", "2", True), ("2", "1", True)}
    (title,) = (text.get_text() for text in figure.texts if text.get_text().startswith("Deadlock"))
    assert title == "Deadlock: 2 ranks wait for each other in a circle, and 1 for them"


def test_two_circles_with_one_rank_in_both_are_red_and_ranks_off_the_chain_are_written_after_it():
    def a_ring_where_rank_2_turns_the_other_way(comm, x):
        to, source = (comm.left, comm.right) if comm.rank == 2 else (comm.right, comm.left)
        for _ in range(comm.size - 1):
            comm.sendrecv(x, to, source)

    figure = views.deadlock(stuck(a_ring_where_rank_2_turns_the_other_way, 5))
    (beside,) = (text.get_text() for text in figure.texts if "Likely cause" in text.get_text())
    assert {(a, b) for a, b, red in arrows(figure) if red} == {("1", "2"), ("2", "1"), ("2", "3"), ("3", "2")}
    (title,) = (text.get_text() for text in figure.texts if text.get_text().startswith("Deadlock"))
    assert title == "Deadlock: 3 ranks wait for each other, and 2 for them"
    assert [line[:6] for line in beside.splitlines() if line.startswith("rank")] == [f"rank {r}" for r in range(5)]


def test_nodes_have_the_colours_of_their_ranks():
    figure = views.deadlock(stuck(both_send_first, 17))
    for rank in range(17):
        (node,) = artists(figure, f"rank {rank}")
        assert node.get_markerfacecolor() == theme.rank_color(rank)


def test_the_text_is_the_errors():
    error = stuck(both_send_first, 2)
    assert repr(views.deadlock(error)) == str(error)


def test_the_likely_cause_and_the_first_8_waits_are_written_beside_it():
    figure = views.deadlock(stuck(both_send_first, 64))
    (beside,) = (text.get_text() for text in figure.texts if "Likely cause" in text.get_text())
    assert "rank 7 waits for 8" in beside
    assert "rank 8 waits" not in beside
    assert "... and 56 more in the same chain" in beside
