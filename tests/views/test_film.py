"""`views.film` chooses the film by what it is given."""

import os
import subprocess
import sys

import numpy as np

from parlab import run, views
from parlab.pipeline import one_f_one_b
from parlab.sequence import ring_attention
from tests.views.drawn import check_refused
from tests.views.filmed import check_film
from tests.views.world.test_timeline_film import stall

SAME_BYTES = """
import hashlib
from tests.views.test_film import SOURCES
from parlab import views
for make in SOURCES.values():
    print(hashlib.sha256(views.film(make()).html.encode()).hexdigest())
"""


def all_reduce(comm, x):
    return comm.all_reduce(x)


def ring(comm, x):
    return ring_attention(comm, x, x, x)


SOURCES = {
    "attention": lambda: run(ring, 4, np.ones((1, 4, 8, 2))),
    "schedule": lambda: one_f_one_b(4, 8),
    "timeline": stall,
    "all-reduce": lambda: run(all_reduce, 4, np.ones(8)),
    "race": lambda: {name: run(all_reduce, 2, np.ones(8)) for name in ("one", "two")},
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


def test_anything_else_is_refused_by_name():
    check_refused(lambda: views.film("ring"), "source='ring'", "no film")
    check_refused(lambda: views.film(SOURCES["all-reduce"](), S=32), "S:", "no options")
