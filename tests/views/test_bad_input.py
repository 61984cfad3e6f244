"""What is refused: the message holds the argument, its value, and what would be right."""

import math

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
    (lambda: views.timeline(DONE, end=0), "end=0", "after 0"),
    (lambda: views.timeline(DONE, end=-1), "end=-1", "after 0"),
    (lambda: views.timeline(DONE, end=NAN), "end=nan", "after 0"),
    (lambda: views.timeline(DONE, end=math.inf), "end=inf", "after 0"),
    (lambda: views.timeline(DONE, end="5 µs"), "end='5 µs'", "after 0"),
    (lambda: views.timeline(DONE, headline=3), "headline=3", "text"),
    (lambda: views.all_reduce_times([DONE]), "runs=[", "{algorithm: {bytes: run}}"),
    (lambda: views.all_reduce_times({"ring": DONE}), "runs={", "{algorithm: {bytes: run}}"),
    (lambda: views.all_reduce_times({"ring": {64: DONE.timeline}}), "runs", "what run() returned"),
    (lambda: views.all_reduce_times({"ring": {0: DONE}}), "runs: 0", "bytes"),
    (lambda: views.all_reduce_times({"ring": {"512": DONE}}), "runs: '512'", "bytes"),
    (lambda: views.all_reduce_times({"ring": {512: DONE}}, size=8), "4 ranks", "size=8"),
    (lambda: views.all_reduce_times({"star": {512: DONE}}), "'star'", "ring, recursive_doubling, circulant"),
    (lambda: views.all_reduce_times(size=1), "size=1", "at least 2"),
    (lambda: views.all_reduce_times(size=2.5), "size=2.5", "at least 2"),
    (lambda: views.all_reduce_times(algorithms=["bruck"]), "'bruck'", "ring, recursive_doubling, circulant"),
    (lambda: views.all_reduce_times(algorithms="ring"), "algorithms='ring'", "list"),
    (lambda: views.all_reduce_times(algorithms=[]), "algorithms=[]", "list"),
    (lambda: views.all_reduce_times(size=17, algorithms=["hierarchical"]), "size=17", "multiple of the cluster's 8"),
    (lambda: views.all_reduce_times(cluster="classroom"), "cluster='classroom'", "a Cluster"),
    (lambda: views.all_reduce_times(cluster=Cluster.uniform(0, math.inf)), "cluster=uniform", "a finite bandwidth"),
    (lambda: views.all_reduce_times({"ring": {}}, size=1), "size=1", "at least 2"),
    (lambda: views.deadlock(ValueError("no")), "error=ValueError('no')", "DeadlockError"),
    (lambda: views.deadlock(DONE), "error=Run", "DeadlockError"),
    (lambda: views.two_ranks("sideways"), "order='sideways'", "in turn: send, recv"),
    (lambda: views.two_ranks(nbytes=-1), "nbytes=-1", "at least 0"),
    (lambda: views.two_ranks(nbytes=1.5), "nbytes=1.5", "whole number"),
    (lambda: views.two_ranks(latency=-1e-6), "latency=-1e-06", "at least 0"),
    (lambda: views.two_ranks(bandwidth=0), "bandwidth=0", "greater than 0"),
    (lambda: views.collectives(nodes=0), "nodes=0", "at least 1"),
    (lambda: views.collectives(nodes=1.5), "nodes=1.5", "at least 1"),
    (lambda: views.collectives(ranks_per_node=0), "ranks_per_node=0", "at least 1"),
    (lambda: views.collectives(nodes=1, ranks_per_node=1), "nodes=1, ranks_per_node=1", "at least 2"),
    (lambda: views.collectives(algorithm="star"), "'star'", "ring, recursive_doubling, circulant"),
    (lambda: views.collectives(latency=NAN), "latency=nan", "at least 0"),
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
