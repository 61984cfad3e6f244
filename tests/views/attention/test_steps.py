"""The ring's steps: who holds whose K/V, and where the gradients travel."""

import pytest
from matplotlib.colors import to_hex

from parlab import views
from parlab.sequence import RingSchedule
from parlab.views.drawing import marks, theme
from tests.views.attention.ring_runs import SIZES
from tests.views.drawn import artists, boxes


@pytest.fixture
def written(monkeypatch):
    """The words that are written into boxes: (middle, lane, text), as they are drawn."""
    words = []
    write = marks._write

    def record(axes, x, y, texts, colors, size):
        words.extend(zip(x, y, texts, strict=True))
        write(axes, x, y, texts, colors, size)

    monkeypatch.setattr(marks, "_write", record)
    return words


def cells(figure, name):
    """(column, rank, colour) of every box."""
    (drawn,) = artists(figure, name)
    colors = [to_hex(color).upper() for color in drawn.get_facecolors()]
    places = [(int(left), round((low + high) / 2)) for left, _, low, high in boxes(figure, name)]
    return dict(zip(places, colors, strict=True))


@pytest.mark.parametrize("size", SIZES)
def test_each_cell_has_the_colour_and_the_number_of_the_kv_that_the_rank_holds_then(size, written):
    held = {(0, rank): rank for rank in range(size)} | {
        (step.step + 1, rank): step.kv_source for rank in range(size) for step in RingSchedule(rank, size).steps
    }
    figure = views.ring_steps(size)
    assert cells(figure, "K/V") == {place: theme.rank_color(source) for place, source in held.items()}
    said = {(int(x), round(y)): text for x, y, text in written}
    assert {place: int(text.split()[-1]) for place, text in said.items()} == held
    for rank in range(size):
        assert f"rank {rank}: K/V of {', '.join(str(held[hop, rank]) for hop in range(size))}" in repr(figure)


@pytest.mark.parametrize("size", SIZES[1:])
def test_gradients_follow_their_kv_collect_n_shares_and_hop_n_comes_home(size, written):
    figure = views.ring_steps(size, backward=True)
    # What starts at rank s is on rank s + hop after each hop, and has a share of each rank it has been on.
    held = {(hop, rank): (rank - hop) % size for hop in range(size + 1) for rank in range(size)}
    assert cells(figure, "dK/dV") == {place: theme.rank_color(source) for place, source in held.items()}
    assert {held[size, rank] - rank for rank in range(size)} == {0}
    for x, y, text in written:
        hop, rank = int(x), round(y)
        source, _, shares = text.removeprefix("dK/dV ").partition(": ")
        assert int(source) == held[hop, rank]
        assert shares in ("", f"{min(hop + 1, size)}/{size}")
    assert len(written) == len(held)


def test_a_ring_that_is_shifted_by_one_would_be_noticed(monkeypatch, written):
    monkeypatch.setitem(
        views.ring_steps.__globals__, "RingSchedule", lambda rank, size: RingSchedule((rank + 1) % size, size)
    )
    with pytest.raises(AssertionError):
        test_each_cell_has_the_colour_and_the_number_of_the_kv_that_the_rank_holds_then(4, written)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_every_arrow_leads_from_a_rank_to_its_right_into_the_next_column(size, backward):
    arrows = artists(views.ring_steps(size, backward=backward), "arrows")
    segments = [segment for drawn in arrows for segment in drawn.get_segments()]
    hops = 0 if size == 1 else size - 1 + backward
    assert len(segments) == hops * size
    for (x, y), (tip, end) in segments:
        assert int(tip) == int(x) + 1
        assert end == (y + 1) % size
