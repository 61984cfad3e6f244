"""The pieces that rank 0 sends: three algorithms of the papers, counted in boxes."""

import numpy as np
import pytest

from parlab import run, views
from parlab.views.engine import theme
from tests.views.drawn import artists, boxes


def of_8(algorithm, size=8):
    return run(lambda comm, x: comm.all_reduce(x, algorithm=algorithm), size, np.ones(16 * size))


RUNS = {"doubling": of_8("recursive_doubling"), "halving": of_8("rabenseifner"), "ring": of_8("ring")}


def test_a_box_stands_for_each_piece_and_has_its_ranks_colour():
    figure = views.pieces_sent(RUNS)
    assert len(boxes(figure, "piece")) == 24 + 14 + 14
    (first,) = artists(views.pieces_sent({"ring": of_8("ring", 4)}), "piece")[:1]
    assert theme.to_hex(first.get_facecolor()[0]).upper() == theme.rank_color(3)


@pytest.mark.parametrize(("algorithm", "across"), [("rabenseifner", 8), ("ring", 2)])
def test_through_the_middle_8_ranks_send_at_once_when_they_exchange_halves_and_2_in_a_ring(algorithm, across):
    timeline = of_8(algorithm).timeline
    crossing = {}
    for t in timeline.transfers:
        crossing[t.start] = crossing.get(t.start, 0) + ((t.src < 4) != (t.dst < 4))
    assert max(crossing.values()) == across
