"""`views.film` chooses the film by the type of what it is given."""

import os
import subprocess
import sys

import numpy as np

from parlab import run, views
from parlab.pipeline import gpipe, one_f_one_b, simulate
from tests.views.filmed import check_film
from tests.views.world.test_timeline_film import stall

SAME_BYTES = """
import hashlib
from tests.views.test_film import SOURCES
from parlab import views
for make in SOURCES.values():
    print(hashlib.sha256(views.film(make()).html.encode()).hexdigest())
"""


SOURCES = {
    "schedule": lambda: one_f_one_b(4, 8),
    "simulated": lambda: simulate(one_f_one_b(4, 8)),
    "schedules": lambda: [gpipe(2, 3), one_f_one_b(2, 3)],
    "run": stall,
    "timeline": lambda: stall().timeline,
    "clocks": lambda: {"computed": stall(4), "again": stall(4)},
}


def test_every_source_has_a_film_under_60_kB():
    for make in SOURCES.values():
        check_film(views.film(make()))


def test_the_bytes_are_the_same_whatever_the_hash_seed():
    said = [
        subprocess.run(
            [sys.executable, "-c", SAME_BYTES],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert len(said[0].splitlines()) == len(SOURCES)


def test_a_simulated_schedule_has_the_film_of_its_schedule():
    schedule = one_f_one_b(4, 8)
    assert views.film(simulate(schedule)).html == views.film(schedule).html


def test_a_runs_film_is_that_of_its_type_whatever_the_run_does():
    """No name or label of a run leads to another film."""

    def all_reduce(comm, x):
        with comm.compute("ring, causal=True, layout=zigzag", flops=1):
            return comm.all_reduce(x)

    assert views.film(run(all_reduce, 4, np.ones(8))).headline.startswith("4 ranks: ")
