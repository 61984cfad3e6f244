"""The pieces that rank 0 sends: three algorithms of the papers, counted in boxes."""

import numpy as np
import pytest

from parlab import run, views
from parlab.views.engine import theme
from tests.views.drawn import artists, boxes, check_text, title


def of_8(algorithm, size=8):
    return run(lambda comm, x: comm.all_reduce(x, algorithm=algorithm), size, np.ones(16 * size))


RUNS = {"doubling": of_8("recursive_doubling"), "halving": of_8("rabenseifner"), "ring": of_8("ring")}


def test_of_8_pieces_doubling_sends_24_in_3_steps_halving_14_in_6_and_the_ring_14_in_14():
    """log₂P steps of the whole; P/2, P/4, ..., 1 and back; 2(P − 1) steps of one piece (Thakur et al. 2005)."""
    rows = str(views.pieces_sent(RUNS)).splitlines()[1:]
    widths = [[len(step.split()) for step in row.partition(": ")[2].partition(";")[0].split("|")] for row in rows]
    assert widths == [[8, 8, 8], [4, 2, 1, 1, 2, 4], [1] * 14]
    assert [row.partition("; ")[2] for row in rows] == [
        "3 steps, 24 pieces",
        "6 steps, 14 pieces",
        "14 steps, 14 pieces",
    ]


def test_a_box_stands_for_each_piece_and_has_its_ranks_colour():
    figure = views.pieces_sent(RUNS)
    check_text(figure)
    assert len(boxes(figure, "piece")) == 24 + 14 + 14
    (first,) = artists(views.pieces_sent({"ring": of_8("ring", 4)}), "piece")[:1]
    assert theme.to_hex(first.get_facecolor()[0]).upper() == theme.rank_color(3)


def test_the_headline_is_the_given_one():
    assert title(views.pieces_sent(RUNS, headline="Few steps")) == "Few steps"
    assert title(views.pieces_sent(RUNS)) == "Rank 0 sends, of 8 pieces:"


@pytest.mark.parametrize(("algorithm", "across"), [("rabenseifner", 8), ("ring", 2)])
def test_through_the_middle_8_ranks_send_at_once_when_they_exchange_halves_and_2_in_a_ring(algorithm, across):
    timeline = of_8(algorithm).timeline
    crossing = {}
    for t in timeline.transfers:
        crossing[t.start] = crossing.get(t.start, 0) + ((t.src < 4) != (t.dst < 4))
    assert max(crossing.values()) == across
