"""What is refused: the message holds the argument, its value, and what would be right."""

import numpy as np
import pytest

from parlab import Cluster, run, views
from tests.views.drawn import ring

DONE = run(ring, 4, np.ones(64))
NAN = float("nan")

CASES = [
    (lambda: views.timeline([1, 2]), "run=[1, 2]", "what run() or simulate() returned"),
    (lambda: views.timeline(DONE.results), "run=[", "what run() or simulate() returned"),
    (lambda: views.timeline(DONE, ranks=[]), "ranks=[]", "0 to 3"),
    (lambda: views.timeline(DONE, ranks=[4]), "ranks=[4]", "0 to 3"),
    (lambda: views.timeline(DONE, ranks=-1), "ranks=-1", "0 to 3"),
    (lambda: views.timeline(DONE, ranks="all"), "ranks='all'", "0 to 3"),
    (lambda: views.timeline(DONE, ranks=[1.5]), "ranks=[1.5]", "0 to 3"),
    (lambda: views.timeline(DONE, ranks=[1, 1]), "ranks=[1, 1]", "once"),
    (lambda: views.timeline(DONE, headline=3), "headline=3", "text"),
    (lambda: views.deadlock(ValueError("no")), "error=ValueError('no')", "DeadlockError"),
    (lambda: views.deadlock(DONE), "error=Run", "DeadlockError"),
    (lambda: views.predict("", 3), "question=''", "a text"),
    (lambda: views.predict(3, 3), "question=3", "a string"),
    (lambda: views.predict("How many?", "many"), "truth='many'", "a finite number"),
    (lambda: views.predict("How many?", None), "truth=None", "a finite number"),
    (lambda: views.predict("How many?", NAN), "truth=nan", "a finite number"),
    (lambda: views.predict("How many?", 3, unit=5), "unit=5", "a string"),
    (lambda: views.predict("How many?", 3, named=1), "named=1", "True or False"),
    (lambda: views.predict("How many?", 3, later=1), "later=1", "a string"),
    (lambda: views.predict("How many?", 3, then=4), "then=4", "a function without arguments"),
    (lambda: views.predict("How many?", 3, usual=4), "usual=4", "the reasoning that leads there"),
    (lambda: views.predict("How many?", 3, usual=(NAN, "so")), "usual[0]=nan", "a finite number"),
    (lambda: views.predict("How many?", 3, usual=(4, " ")), "usual[1]=' '", "a text"),
    (lambda: views.predict("How many?", 3, how="seen"), "how='seen'", "counted, computed, measured, published"),
    (lambda: Cluster.uniform(0, 1) and views.timeline(DONE, ranks=True), "ranks=True", "0 to 3"),
]


@pytest.mark.parametrize(("call", "value", "right"), CASES, ids=[f"{value} -> {right}" for _, value, right in CASES])
def test_refused(call, value, right):
    with pytest.raises(ValueError, match=r".") as caught:
        call()
    assert value in str(caught.value)
    assert right in str(caught.value)
