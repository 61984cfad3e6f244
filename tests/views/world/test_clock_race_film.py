"""The film of several clocks over each other: each starts at its first computation, and is done at its own end."""

import re

import numpy as np
import pytest

from parlab import Cluster, run, views
from parlab.pipeline import Costs, simulate, zb_h1
from parlab.views.world import clock_race_film as race_module
from parlab.world import Timeline
from tests.views.filmed import check_film, marks, tree_of

CLUSTER = Cluster.uniform(latency=0, bandwidth=1e9)


def works(seconds, size=2):
    def program(comm):
        for number in range(2):
            comm.compute(f"0F{number}", seconds=seconds * (comm.rank + 1))

    return run(program, size, cluster=CLUSTER)


def race():
    return views.film({"told": works(1e-6), "paid": works(2.5e-6)})


def test_a_clock_of_4_us_is_done_while_one_of_10_us_has_ended_2_of_4_actions():
    film = race()
    check_film(film)
    story = repr(film).splitlines()
    assert story[0] == "told 4.00 µs; paid 10.0 µs"
    assert story[1:] == [
        "0 s: by 2.50 µs: told 3 of 4, paid 1; F0 of rank 0: 1.50 µs late",
        "2.50 µs: by 4.00 µs: told 4 of 4, paid 1; F0 of rank 0: 1.50 µs late",
        "4.00 µs: by 5.00 µs: told 4 of 4, paid 3; F0 of rank 1: 3.00 µs late",
        "5.00 µs: by 7.50 µs: told 4 of 4, paid 3; F0 of rank 1: 3.00 µs late",
        "7.50 µs: by 10.0 µs: told 4 of 4, paid 4; F1 of rank 1: 6.00 µs late",
    ]


@pytest.mark.parametrize(
    ("end", "stops"),
    [(1400, [0, 400, 800, 1200, 1400]), (2140, [0, 500, 1000, 1500, 2000, 2140]), (3, [0, 1, 2, 3])],
)
def test_the_clock_stops_at_round_times(end, stops):
    shown = Timeline(1, end, computes=((0,), (0,), (end,), ("0F0",)))
    assert views.film({"one": shown, "two": shown}).times == stops


def test_an_action_that_ends_before_the_first_clock_says_so_is_early():
    story = repr(views.film({"told": works(2.5e-6), "paid": works(1e-6)}))
    assert "2.50 µs: by 4.00 µs: told 1 of 4, paid 4; F1 of rank 1: 6.00 µs early" in story


def test_a_line_joins_the_end_of_each_action_in_one_row_to_its_end_in_the_next():
    film = race()
    lines = [
        (float(start), float(end))
        for path in tree_of(film).iter("path")
        for start, end in re.findall(r"M([\d.]+) [\d.]+L([\d.]+) [\d.]+", path.get("d"))
    ]
    told, paid = (1, 2, 2, 4), (2.5, 5, 5, 10)
    assert lines == [(film.x(a * 10**6), film.x(b * 10**6)) for a, b in zip(told, paid, strict=True)]


def test_of_20_actions_7_have_a_line_every_third_and_the_last():
    def many(seconds):
        return run(
            lambda comm: [comm.compute(f"0F{number}", seconds=seconds) for number in range(20)], 1, cluster=CLUSTER
        )

    film = views.film({"told": many(1e-6), "paid": many(2e-6)})
    (path,) = [path for path in tree_of(film).iter("path") if "L" in path.get("d")]
    starts = [float(x) for x in re.findall(r"M([\d.]+)", path.get("d"))]
    assert starts == [film.x(number * 10**6) for number in (2, 5, 8, 11, 14, 17, 20)]


def test_a_number_stands_on_a_bar_that_has_room_for_it():
    film = views.film({"told": works(1e-6), "paid": works(50e-6)})
    said = [text.text for text in tree_of(film).iter("tspan")]
    assert said == ["0", "1"] * 2  # on the bars of 50 and 100 µs, not on those of 1 and 2


def test_the_words_done_come_at_each_clocks_own_end():
    film = race()
    seen = {words[0]: at["a"] for at, words in marks(film, "see") if words and ": done at " in words[0]}
    assert seen == {
        "told: done at 4.00 µs": pytest.approx(film.second(4_000_000), abs=0.01),
        "paid: done at 10.0 µs": pytest.approx(film.second(10_000_000), abs=0.01),
    }


def test_a_legend_of_five_signs_takes_a_second_line_and_stays_inside_the_drawing():
    step = simulate(zb_h1(2, 2), Costs(1, 1, 1))
    legend, lines = race_module._legend([step])
    assert lines == 2
    for name in ("forward", "backward for the input", "backward for the weights", "waits", "the same action ends"):
        left = float(re.search(rf'translate\(([\d.]+) [\d.]+\)">(?:(?!translate).)*>{name}<', legend)[1])
        assert left + 20 + 8 * len(name) <= 640


def test_a_clock_starts_with_its_first_computation():
    def program(comm, later):
        if later:
            comm.sendrecv(np.zeros(500), comm.right, comm.left)  # 4 µs
        comm.compute("0F0", seconds=3e-6)

    at_once, later = (run(program, 2, later, cluster=CLUSTER) for later in (False, True))
    film = views.film({"at once": at_once, "later": later})
    assert repr(film).splitlines()[0] == "at once 3.00 µs; later 3.00 µs"
