"""The film of moves tells each move with what it saves, and refuses schedules that are no reordering of each other."""

import re

import pytest

from parlab import views
from parlab.pipeline import (
    Costs,
    KeptBytes,
    Schedule,
    gpipe,
    interleaved_one_f_one_b,
    one_f_one_b,
    simulate,
    v_controlled,
    zb_auto,
    zb_h1,
)
from parlab.pipeline.actions import Action
from parlab.views.pipeline.moves_film import LEFT, RIGHT
from parlab.views.pipeline.panels import color_of
from tests.views.drawn import check_refused


def swapped(schedule, rank, kind, microbatch):
    """The schedule with one action a place earlier."""
    rows = [list(row) for row in schedule.actions]
    at = rows[rank].index(Action(kind, rank, microbatch))
    rows[rank][at - 1 : at + 1] = rows[rank][at], rows[rank][at - 1]
    return Schedule(rows)


START = zb_auto(3, 4, memory_limit=2, tries=0, metric="makespan")
ONE = swapped(START, 1, "F", 1)
TWO = swapped(ONE, 1, "F", 3)


def test_two_moves_take_a_schedule_from_19_to_17_units():
    film = views.film([START, ONE, TWO], bound=16)
    assert film.story.splitlines() == [
        "2 moves: from 19 to 17 units",
        "start: rank 1 does F1 before I0: 19 → 18 units",
        "1: rank 1 does F3 before I2: 18 → 17 units",
    ]
    assert "none is below" in film.html
    assert len(film.html) < 30_000


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
    film = views.film(ROOMS, costs=LONG_I, bound=35, waiting=0)
    assert film.story.splitlines() == [
        "room for 4, 5, 6, 7: from 38 to 35 units",
        "room for 4: with room for 5 rank 0 does F4 before I0: 38 → 37 units",
        "room for 5: with room for 6 rank 0 does F5 before I0: 37 → 36 units",
        "room for 6: with room for 7 rank 0 does F6 before I0: 36 → 35 units",
    ]
    assert film.html.count('class="wait"') == 4
    assert re.findall(r"waits (\d)", film.html) == ["6", "5", "4"]  # 3 has no room for the word
    assert len(film.html) < 25_000


def test_places_are_of_a_whole_rank_also_where_it_has_two_chunks():
    less = [v_controlled(2, 4, Costs(0.5, 0.5, 0.5), limit, tries=0) for limit in (2, 4)]
    film = views.film(less, costs=Costs(0.5, 0.5, 0.5))
    assert film.headline.startswith("room for 1, 2: ")


CUT = Schedule(
    [
        [Action(kind, a.stage, a.microbatch) for a in row for kind in {"F": "F", "B": "IW"}[a.kind]]
        for row in one_f_one_b(3, 3).actions
    ]
)
LATER = Schedule(
    [*CUT.actions[:2], [CUT.actions[2][place] for place in (0, 1, 2, 3, 4, 6, 7, 5, 8)]]
)  # W1 after F2, I2
KEPT = KeptBytes(activation=[100, 100, 120], pending=[140, 140, 160], message=1)


def boxes(film, kind):
    """(x, y, width, height) of each box of bytes in the colour of a kind, in three stops of three ranks each."""
    paths = re.findall(rf'<path d="(M[^"]*)" fill="{color_of(kind)}"', film.html)
    each = r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)H[\d.]+z"
    return [[tuple(map(float, found)) for found in re.findall(each, path)] for path in paths]


def test_the_bytes_of_each_microbatch_stand_below_the_actions_from_f_to_i_and_from_i_to_w():
    film = views.film([CUT, LATER, zb_h1(3, 3)], kept=KEPT)
    assert film.story.splitlines() == [
        "bytes below actions: from 13 to 11 units",
        "start: rank 2 puts off W1: 13 → 12 units; at most 340 B on a rank",  # rank 0: 2 · 100 + 140
        "1: rank 1 puts off W0 W1, rank 2 puts off W0: 12 → 11 units; at most 480 B on a rank",  # rank 2: 3 · 160
    ]
    a, pending = boxes(film, "F"), boxes(film, "I")
    assert [len(of) for of in (a, pending)] == [9, 9]
    unit = (RIGHT - LEFT) / 13
    for stop, made in enumerate((CUT, LATER, zb_h1(3, 3))):
        timeline = simulate(made)
        for rank in range(3):
            when = {step.actions[0]: (step.start, step.end) for step in timeline.steps(rank)}
            at = [[when[Action(kind, rank, i)] for i in range(3)] for kind in "FIW"]
            spans = [
                sum(one[1] - f[0] for f, one in zip(at[0], at[1], strict=True)),
                sum(w[1] - one[1] for one, w in zip(at[1], at[2], strict=True)),
            ]  # an activation is kept from the start of F to the end of I, then to the end of W
            for found, span, nbytes in zip((a, pending), spans, (KEPT.activation, KEPT.pending), strict=True):
                here = found[3 * stop + rank]
                assert sum(width for _, _, width, _ in here) == pytest.approx(unit * span, abs=0.5)
                assert all(abs(height - 50 * nbytes[rank] / 480) < 0.06 for *_, height in here)
            both = a[3 * stop + rank] + pending[3 * stop + rank]
            floor = max(y + height for _, y, _, height in both)
            most = max(level for _, level in timeline.kept_bytes(rank, *KEPT[:2]))  # the boxes stand on each other
            assert floor - min(y for _, y, _, _ in both) == pytest.approx(50 * most / 480, abs=0.2)
    assert len(film.html) < 25_000


def test_a_w_that_is_put_off_travels_above_its_lane_and_the_bytes_stay_until_the_next_are_there():
    film = views.film([CUT, LATER], kept=KEPT)
    going = r'<g class="go" style="[^"]*--x:([\d.]+);--y:0;--w:([-\d.]+)"[^>]*>(.*?)</g>'
    ((by, aside, moved),) = re.findall(going, film.html)
    unit = (RIGHT - LEFT) / 13
    assert float(by) == pytest.approx(unit * 2, abs=0.1)  # W1, from 7 to 9
    assert (float(aside), re.findall(r">(\d)<", moved)) == (-20, ["1"])
    strips = re.findall(r'<g class="see" style="--b:([\d.]+)"[^>]*><text[^>]*>\d+ B<', film.html)
    assert len(strips) == 3
    assert all(film.second(0, leaves=True) < float(until) <= film.second(1) for until in strips)


def test_w_s_that_are_put_off_are_named_and_where_none_is_the_first_move_is():
    film = views.film([CUT, swapped(CUT, 1, "F", 2), LATER], kept=KEPT)
    assert [line.split(": ")[1] for line in film.lines] == ["rank 1 puts off W0", "rank 2 puts off W1"]
    back = views.film([LATER, CUT], kept=KEPT)
    assert back.lines == ["start: rank 2 does W1 before F2: 12 → 13 units; at most 340 B on a rank"]


def test_a_whole_b_lies_over_its_halves_until_the_film_cuts_it():
    costs = Costs(1, 2, 1)
    film = views.film([one_f_one_b(3, 3), CUT], costs=costs, kept=KEPT)
    assert film.lines == ["start: each B is cut in two: 20 → 18 units; at most 340 B on a rank"]  # two W less
    seen = re.findall(r'<g class="see" style="--b:([\d.]+)"[^>]*>(.*?)</g>', film.html)
    (over,) = [(until, marks) for until, marks in seen if f'fill="{color_of("B")}"' in marks]
    assert float(over[0]) == film.second(0, leaves=True)
    unit, whole = (RIGHT - LEFT) / 20, simulate(one_f_one_b(3, 3), costs)
    backwards = [step for rank in range(3) for step in whole.steps(rank) if step.actions[0].kind == "B"]
    spans = [(float(x), float(w)) for x, w in re.findall(r'<rect x="([\d.]+)"[^>]*? width="([\d.]+)"', over[1])]
    expected = sorted(LEFT + unit * step.start for step in backwards)
    assert sorted(x for x, _ in spans) == pytest.approx(expected, abs=0.5)
    assert [width for _, width in spans] == pytest.approx(9 * [3 * unit], abs=0.5)
    cut = {step.actions[0]: step.start for rank in range(3) for step in simulate(CUT, costs).steps(rank)}
    halves = {}  # where each half starts in a whole B, and where it starts when cut
    for rank in range(3):
        for step in whole.steps(rank):
            action = step.actions[0]
            for kind, late in {"F": [("F", 0)], "B": [("I", 0), ("W", 2)]}[action.kind]:
                halves[action._replace(kind=kind)] = step.start + late
    ways = [[unit * (halves[action] - cut[action]), 0] for action in cut if halves[action] != cut[action]]
    assert sorted(at_each_stop(film)) == [pytest.approx(way, abs=0.11) for way in sorted(ways)]
    drawn = boxes(film, "F")[2]  # rank 2 of the first stop: from F to the end of B
    assert sum(width for _, _, width, _ in drawn) == pytest.approx(unit * 3 * 4, abs=0.5)


def test_bytes_are_of_one_stage_a_rank():
    less = [v_controlled(2, 4, Costs(0.5, 0.5, 0.5), limit, tries=0) for limit in (2, 4)]
    four = KeptBytes([1] * 4, [1] * 4, 1)
    check_refused(lambda: views.film(less, costs=Costs(0.5, 0.5, 0.5), kept=four), "kept=", "one stage")
    check_refused(lambda: views.film([CUT, LATER], kept=four), "kept=", "each of the 3 stages")


@pytest.mark.parametrize(
    ("source", "value", "right"),
    [
        ([START], "1 schedules", "2 to 12"),
        ([zb_h1(3, 4), gpipe(3, 4)], "source", "the same actions"),
        ([one_f_one_b(3, 4), one_f_one_b(2, 4)], "source", "the same actions"),
    ],
)
def test_what_is_no_improvement_by_moves_is_refused(source, value, right):
    check_refused(lambda: views.film(source), value, right)


@pytest.mark.parametrize(("waiting", "right"), [(3, "0 to 2"), (-1, "0"), (0.5, "whole")])
def test_a_rank_that_is_not_there_cannot_wait(waiting, right):
    check_refused(lambda: views.film([START, ONE], waiting=waiting), f"waiting={waiting}", right)


def test_named_stops_say_what_the_fullest_rank_keeps_and_later_chunks_are_paler():
    orders = [interleaved_one_f_one_b(p=4, m=8, chunks=2, group=group) for group in (4, 6, 8)]
    names = ["N = 4", "N = 6", "N = 8"]
    film = views.film(orders, names=names)
    assert film.story.splitlines() == [
        "room for 5.5, 6.5, 7.5: from 57 to 57 units",
        "N = 4: with room for 6.5 rank 0 does F4 before F0: 57 → 62 units",
        "N = 6: with room for 7.5 rank 0 does F6 before F0: 62 → 57 units",
    ]
    kept = re.findall(r"([\d.]+) microbatches on the fullest rank", film.html)
    assert [float(one) for one in kept] == [max(simulate(one).peak_activations) / 2 for one in orders]
    colors = [color_of(kind, white) for kind in "FB" for white in (0, 0.55)]
    of_chunks = [film.html.count(f'height="28" fill="{color}"') for color in colors]
    assert of_chunks == [4 * 8] * 4  # 4 ranks, 8 microbatches


@pytest.mark.parametrize("options", [{"names": ["a"]}, {"names": ["a", "b"], "kept": KEPT}])
def test_names_of_another_number_of_schedules_or_beside_bytes_are_refused(options):
    check_refused(lambda: views.film([CUT, LATER], **options), "names=", "one for each of 2 schedules")
