"""The film of several clocks: each starts at its first computation, and is done at its own end."""

import numpy as np
import pytest

from parlab import Cluster, run, views
from tests.views.drawn import check_refused
from tests.views.filmed import check_film, marks

CLUSTER = Cluster.uniform(latency=0, bandwidth=1e9)


def works(seconds, size=2):
    def program(comm):
        for number in range(2):
            comm.compute(f"0F{number}", seconds=seconds * (comm.rank + 1))

    return run(program, size, cluster=CLUSTER)


def test_a_clock_of_4_us_is_done_while_one_of_10_us_has_ended_2_of_4_actions():
    film = views.film({"told": works(1e-6), "paid": works(2.5e-6)})
    check_film(film)
    story = repr(film).splitlines()
    assert story[0] == "told 4.00 µs; paid 10.0 µs"
    assert story[1] == "0 s: told: 0 of 4 actions done; paid: 0 of 4 actions done"
    assert "4.00 µs: told: done; paid: 1 of 4 actions done" in story
    assert "5.00 µs: told: done; paid: 3 of 4 actions done" in story


def test_the_words_done_come_at_each_clocks_own_end():
    film = views.film({"told": works(1e-6), "paid": works(2.5e-6)})
    seen = {words[0]: at["a"] for at, words in marks(film, "see") if words and words[0].startswith("done: ")}
    assert seen == {
        "done: 4.00 µs": pytest.approx(film.second(4_000_000), abs=0.01),
        "done: 10.0 µs": pytest.approx(film.second(10_000_000), abs=0.01),
    }


def test_the_legend_names_the_kinds_of_work_in_both_runs_and_the_wait_once_each():
    def program(comm):
        comm.compute("0F0", seconds=1e-6)
        comm.compute("0B0", seconds=1e-6)

    film = views.film({"told": run(program, 2, cluster=CLUSTER), "paid": works(1e-6)})
    shown = film.html
    assert [shown.count(f">{name}<") for name in ("forward", "backward", "waits")] == [1, 1, 1]
    assert ">backward for the input<" not in shown


def test_a_clock_starts_with_its_first_computation():
    def program(comm):
        comm.compute("0F0", seconds=3e-6)

    def later(comm):
        if comm.rank == 0:
            comm.send(np.zeros(500), 1)  # 4 µs
        else:
            comm.recv(0, like=np.zeros(500))
        comm.compute("0F0", seconds=3e-6)

    film = views.film({"at once": run(program, 2, cluster=CLUSTER), "later": run(later, 2, cluster=CLUSTER)})
    assert repr(film).splitlines()[0] == "at once 3.00 µs; later 3.00 µs"


def test_what_cannot_race_is_refused_by_name():
    one = works(1e-6)
    check_refused(lambda: views.film(dict.fromkeys("abcd", one)), "runs=", "1 to 3")
    check_refused(lambda: views.film({"wide": works(1e-6, size=5)}), "source", "4 ranks of each run")
