"""Rings on one clock: each work has the number of the K/V that it attends."""

from parlab import views
from parlab.views.engine import theme
from parlab.views.sequence.compare_rings import _named
from tests.views.drawn import coloured
from tests.views.sequence.test_ring_film import ran


def test_each_work_of_8_ranks_has_the_number_and_the_colour_of_its_k_and_v_in_their_order():
    done = ran(8, "contiguous", c=8)
    figure = views.compare_rings({"contiguous": done})
    for rank in range(8):
        colors = [color for lane, *_, color in coloured(figure, "computes") if lane == rank]
        assert colors == [theme.RANKS[source] for source in range(rank, -1, -1)]
        names = [span.name for span in _named("contiguous", done.timeline).computes if span.rank == rank]
        assert names == [f"K/V {source}" for source in range(rank, -1, -1)]
    assert {span.name for span in done.timeline.computes} == {"attend"}  # the run's own keep their names
