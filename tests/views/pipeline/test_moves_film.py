"""The film of moves tells each move with what it saves, and refuses schedules that are no reordering of each other."""

import re

import pytest

from parlab import views
from parlab.pipeline import (
    Costs,
    Schedule,
    interleaved_one_f_one_b,
    simulate,
    v_controlled,
    zb_auto,
)
from parlab.pipeline.actions import Action
from parlab.views.pipeline.moves_film import LEFT, RIGHT
from parlab.views.pipeline.panels import color_of


def swapped(schedule, rank, kind, microbatch):
    """The schedule with one action a place earlier."""
    rows = [list(row) for row in schedule.actions]
    at = rows[rank].index(Action(kind, rank, microbatch))
    rows[rank][at - 1 : at + 1] = rows[rank][at], rows[rank][at - 1]
    return Schedule(rows)


START = zb_auto(3, 4, memory_limit=2, tries=0, metric="makespan")
ONE = swapped(START, 1, "F", 1)
TWO = swapped(ONE, 1, "F", 3)


def at_each_stop(film):
    """Where each bar stands at each stop, from its own place at the last one."""
    found = []
    for way, marks in re.findall(r'<g class="slide" style="--x:(.*?)">(.*?)</g>', film.html):
        parts = re.findall(r"([-\d.]+)\*\(1 - clamp\(0,\(var\(--t\) - ([\d.]+)\)/([\d.]+),1\)\)", way)
        assert len(parts) == way.count("clamp")
        stops = [film.second(time) for time in film.times]
        places = [
            sum(float(by) * (1 - min(max((stop - float(leaves)) / float(takes), 0), 1)) for by, leaves, takes in parts)
            for stop in stops
        ]
        found += [places] * marks.count("<rect")
    return found


def test_each_action_stands_where_it_starts_at_each_stop():
    starts = []
    for one in (START, ONE, TWO):
        timeline = simulate(one)
        starts.append({step.actions[0]: step.start for rank in range(3) for step in timeline.steps(rank)})
    film = views.film([START, ONE, TWO])
    unit = (RIGHT - LEFT) / 19
    moved = [[unit * (of[action] - starts[-1][action]) for of in starts] for action in starts[0]]
    moved = sorted(way for way in moved if any(way))
    assert len(moved) > 5
    assert sorted(at_each_stop(film)) == [pytest.approx(way, abs=0.11) for way in moved]
    assert "none is below" not in film.html  # no bound is given


LONG_I = Costs(1, 2, 1)
ROOMS = [zb_auto(4, 8, LONG_I, limit, tries=0, metric="makespan") for limit in (4, 5, 6, 7)]


def test_with_each_place_more_rank_0_does_one_more_forward_in_its_wait_when_i_takes_2():
    film = views.film(ROOMS, costs=LONG_I, bound=35)
    assert film.story.splitlines() == [
        "room for 4, 5, 6, 7: from 38 to 35 units",
        "room for 4: with room for 5 rank 0 does F4 before I0: 38 → 37 units",
        "room for 5: with room for 6 rank 0 does F5 before I0: 37 → 36 units",
        "room for 6: with room for 7 rank 0 does F6 before I0: 36 → 35 units",
    ]
    assert len(film.html) < 25_000


def test_places_are_of_a_whole_rank_also_where_it_has_two_chunks():
    less = [v_controlled(2, 4, Costs(0.5, 0.5, 0.5), limit, tries=0) for limit in (2, 4)]
    film = views.film(less, costs=Costs(0.5, 0.5, 0.5))
    assert film.headline.startswith("room for 1, 2: ")


def test_named_stops_say_what_the_fullest_rank_keeps_and_later_chunks_are_paler():
    orders = [interleaved_one_f_one_b(p=4, m=8, chunks=2, group=group) for group in (4, 6, 8)]
    names = ["N = 4", "N = 6", "N = 8"]
    film = views.film(orders, names=names)
    assert film.story.splitlines() == [
        "N = 4: 57 units, N = 6: 62 units, N = 8: 57 units",
        "N = 4: to N = 6: 5.5 → 6.5 microbatches kept, 57 → 62 units",
        "N = 6: to N = 8: 6.5 → 7.5 microbatches kept, 62 → 57 units",
    ]
    kept = re.findall(r"([\d.]+) microbatches on the fullest rank", film.html)
    assert [float(one) for one in kept] == [max(simulate(one).peak_activations) / 2 for one in orders]
    colors = [color_of(kind, white) for kind in "FB" for white in (0, 0.55)]
    of_chunks = [film.html.count(f'height="28" fill="{color}"') for color in colors]
    assert of_chunks == [4 * 8] * 4  # 4 ranks, 8 microbatches
