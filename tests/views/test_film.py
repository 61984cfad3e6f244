"""`views.film` chooses the film by the type of what it is given."""

import hashlib
import os
import subprocess
import sys

from parlab import views
from parlab.pipeline import gpipe, one_f_one_b, simulate
from tests.views.filmed import check_film
from tests.views.world.test_timeline_film import stall

SOURCES = {
    "schedule": lambda: one_f_one_b(4, 8),
    "simulated": lambda: simulate(one_f_one_b(4, 8)),
    "schedules": lambda: [gpipe(2, 3), one_f_one_b(2, 3)],
    "run": stall,
    "timeline": lambda: stall().timeline,
    "clocks": lambda: {"computed": stall(4), "again": stall(4)},
}


def digests():
    """Of the film of each source."""
    films = [views.film(make()) for make in SOURCES.values()]
    for film in films:
        check_film(film)
    return [hashlib.sha256(film.html.encode()).hexdigest() for film in films]


def test_every_source_has_a_film_under_60_kB_with_the_same_bytes_whatever_the_hash_seed():
    elsewhere = [sys.executable, "-c", "from tests.views.test_film import digests; print(digests())"]
    known = os.environ | {"PYTHONHASHSEED": "1"}
    said = subprocess.run(elsewhere, env=known, capture_output=True, text=True, check=True)
    assert said.stdout == f"{digests()}\n"


def test_a_simulated_schedule_has_the_film_of_its_schedule():
    schedule = one_f_one_b(4, 8)
    assert views.film(simulate(schedule)).html == views.film(schedule).html
