"""The heights of the areas are the bytes held."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from parlab import run, views
from parlab.views.drawing import theme
from parlab.views.timelines.memory import BASE, HEIGHT, stacked
from parlab.world import Timeline
from tests.views.drawn import artists, nothing, ring, title


def drawn_totals(figure, lane, name=None):
    """(time, height of the stack in lanes) just after each time at which an area has a corner."""
    corners = {}
    for area in artists(figure, f"lane {lane}"):
        for path in area.get_paths():
            for time, y in path.vertices:
                corners.setdefault(time, []).append(lane + BASE - y)
    return corners


@pytest.mark.parametrize("size", [1, 2, 4, 17, 64])
def test_the_highest_point_of_each_lane_is_the_most_bytes_of_any_instant(size):
    done = run(ring, size, np.ones(256))
    figure = views.held_bytes(done)
    scale = max(done.timeline.peak_bytes(rank) for rank in range(size)) / HEIGHT
    for rank in range(size):
        highest = max(max(heights) for heights in drawn_totals(figure, rank).values())
        lasting = dict(done.timeline.held(rank))  # of several changes at one time, the last
        assert highest * scale == pytest.approx(max(lasting.values()), rel=1e-12)


def test_layers_add_up_to_what_is_held_at_every_change():
    shown = run(ring, 4, np.ones(256)).timeline
    for rank in range(4):
        times, layers = stacked(shown.held_by_name(rank), shown.makespan)
        held = dict(shown.held(rank))  # of several changes at one time, the last
        totals = {time: sum(column) for time, column in zip(times, zip(*layers, strict=True), strict=True)}
        assert {time: totals[time] for time in held} == held


def test_two_runs_can_be_drawn_on_one_clock():
    axes = views.held_bytes(run(ring, 2, np.ones(8)), end=10**8).axes[0]
    assert axes.get_xlim() == (0, 10**8)


def test_a_name_that_comes_later_starts_at_0():
    times, layers = stacked({"a": [(0, 8)], "b": [(5, 4), (7, 0)]}, 10)
    assert times == [0, 5, 7, 10]
    assert layers == [[8, 8, 8, 8], [0, 4, 0, 0]]


def test_a_rank_that_holds_nothing_has_an_empty_lane():
    figure = views.held_bytes(run(nothing, 3))
    assert "at most 0 B" in title(figure)


def test_the_text_holds_each_peak():
    held = [[(0, 100, "weights"), (5, 50, "received"), (9, -50, "received")], [(0, 70, "weights")]]
    shown = Timeline(2, held=held, makespan=10)
    assert repr(views.held_bytes(shown)).splitlines()[1:] == ["rank 0: peak 150 bytes", "rank 1: peak 70 bytes"]


def test_received_bytes_have_the_colour_of_receiving():
    held = [[(0, 100, "weights"), (5, 50, "received")]]
    figure = views.held_bytes(Timeline(1, held=held, makespan=9))
    colors = {to_hex(area.get_facecolor()[0]).upper() for area in artists(figure, "lane 0")}
    assert theme.KINDS["receive"].color in colors
