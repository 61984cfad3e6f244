"""What holds for all of ZeRO's figures: text that is read, the same pixels twice, bad input."""

import math

import pytest

from parlab import Cluster, views
from parlab.views.drawing.picture import png
from tests.views.drawn import check_refused, check_text
from tests.views.zero_redundancy.zero_runs import CONFIG, PSI, WEIGHTS, S, stages, step

STAGES = stages()
OVERLAP = {prefetch: {S * rows: step(3, rows=rows, prefetch=prefetch) for rows in (1, 8)} for prefetch in (0, 1)}


FIGURES = {
    "state of runs": lambda: views.zero(7.5e9, 4, 3, runs={s: step(s) for s in range(4)}, runs_params=PSI),
    "overlap": lambda: views.gather_overlap(OVERLAP, CONFIG, S),
    "overlap of short ones": lambda: views.gather_overlap({1: {8: OVERLAP[1][8]}}, CONFIG, S),
    **{
        f"paper {stage} {params:g} on {P}{' offloaded' * offload}": (
            lambda stage=stage, params=params, P=P, offload=offload: views.zero(params, P, stage, offload=offload)
        )
        for stage in range(4)
        for params, P in ((1e9, 1), (175e9, 1024), (1e12, 1))
        for offload in (False, True)
    },
}


@pytest.mark.parametrize("name", FIGURES)
def test_all_text_is_on_the_canvas_large_enough_and_free_of_other_text(name):
    check_text(FIGURES[name]())


@pytest.mark.parametrize("name", ["state of runs", "overlap"])
def test_drawn_twice_gives_the_same_pixels(name):
    assert png(FIGURES[name]()) == png(FIGURES[name]())


def test_the_runs_of_these_tests_are_of_9872_weights():
    assert sum(weight.size for weight in WEIGHTS.values()) == 9872


ONE = step(3, size=1)
THREE = step(3, size=3)
DONE = STAGES["stage 3"]

REFUSED = [
    (lambda: views.zero(7.5e9, 4, runs=DONE), "runs=Run", "{stage: run}"),
    (lambda: views.zero(7.5e9, 4, runs={4: DONE}), "4 is no stage", "0, 1, 2 and 3"),
    (lambda: views.zero(7.5e9, 4, runs={3: 5}), "runs[3]=5", "what run()"),
    (lambda: views.zero(7.5e9, 4, runs={3: THREE}), "3 ranks", "ranks=4"),
    (lambda: views.zero(7.5e9, 4, runs={3: ONE}), "has 1 rank, but", "ranks=4"),
    (
        lambda: views.zero(7.5e9, 4, runs={3: DONE}, runs_params=-1),
        "runs_params=-1",
        "greater than 0",
    ),
    (lambda: views.gather_overlap({}, CONFIG, S), "[] ranks", "2 or more"),
    (lambda: views.gather_overlap({1: DONE}, CONFIG, S), "runs={1: Run", "{prefetch: {tokens a rank: run}}"),
    (lambda: views.gather_overlap({-1: {16: DONE}}, CONFIG, S), "prefetch -1", "knows 0 and 1"),
    (lambda: views.gather_overlap({1: {16: DONE.timeline}}, CONFIG, S), "runs[1][16]=Timeline", "what run() returned"),
    (lambda: views.gather_overlap({1: {15: DONE}}, CONFIG, S), "15 tokens", "multiple of S=8"),
    (lambda: views.gather_overlap({1: {16: ONE}}, CONFIG, S), "[1] ranks", "2 or more"),
    (lambda: views.gather_overlap({1: {16: DONE}}, 4, S), "config=4", "a LlamaConfig"),
    (lambda: views.gather_overlap({1: {16: DONE}}, CONFIG, 0), "S=0", "at least 1"),
    (
        lambda: views.gather_overlap({1: {16: step(3, cluster=Cluster.uniform(0, math.inf))}}, CONFIG, S),
        "cluster=uniform",
        "finite bandwidth",
    ),
    (lambda: views.zero(-1), "num_params=-1", "at least 0"),
    (lambda: views.zero(0), "params=0", "has parameters"),
    (lambda: views.zero(P=0), "P=0", "at least 1"),
    (lambda: views.zero(stage=4), "stage=4", "the stages are"),
    (lambda: views.zero(state=16), "state=16", "StateBytes"),
]


@pytest.mark.parametrize(
    ("call", "value", "right"), REFUSED, ids=[f"{value} -> {right}" for _, value, right in REFUSED]
)
def test_refused(call, value, right):
    check_refused(call, value, right)
