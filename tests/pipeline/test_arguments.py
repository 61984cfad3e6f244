"""Bad input: the call, and what the error says. Each rule once, and each call that keeps it."""

import math
import re
from functools import partial

import numpy as np
import pytest

from parlab import pipeline
from parlab.pipeline import (
    Action,
    Costs,
    MemoryLimit,
    Schedule,
    balance,
    best_schedule,
    dualpipe,
    dualpipe_v,
    gpipe,
    interleaved_one_f_one_b,
    lower_bound,
    partition,
    run_schedule,
    simulate,
    v_controlled,
    validate,
    zb_auto,
    zb_v,
)
from parlab.world import run
from tests.pipeline.models import tanh_model

MAKERS = ["naive", "gpipe", "one_f_one_b", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min", "one_f_one_b_v", "dualpipe"]
MAKERS += ["dualpipe_v", "looped_bfs", "interleaved_one_f_one_b", "zb_auto", "v_controlled", "best_schedule"]
SEARCHES = (zb_auto, v_controlled, best_schedule, lower_bound)
STUCK = [[Action(k, 0, i) for i in (0, 1) for k in "FB"], [Action(k, 1, i) for k in "FB" for i in (1, 0)]]
AMOUNT = "must be a number, at least 0"


def executed(**changed):
    model, _, _, inputs, targets = tanh_model(2, 2)
    arguments = {"schedule": gpipe(2, 2), "stages": model, "inputs": inputs, "targets": targets} | changed
    return lambda: run(run_schedule, 2, **arguments)


def sizes():
    """Each number of a schedule's that is 0, and what the others are."""
    for make in (getattr(pipeline, name) for name in [*MAKERS, "lower_bound"]):
        usual = {"p": 2, "m": 4} | ({"chunks": 2} if "chunks" in make.__code__.co_varnames else {})
        yield from (
            (partial(make, **usual | {name: 0}), f"{name}=0: must be a whole number, at least 1") for name in usual
        )


ROWS = [
    *sizes(),
    (lambda: dualpipe(3, 8), "p=3: two ranks share each stage, so p must be even"),
    (lambda: dualpipe(4, 9), "m=9: half of the microbatches enter at each end: use an even number, at least 2p=8"),
    (lambda: dualpipe(4, 6), "m=6: half of the microbatches"),
    (lambda: dualpipe_v(4, 7), "m=7: needs two microbatches a rank, m ≥ 2p=8"),
    *[
        (partial(interleaved_one_f_one_b, 4, m, 2, group), f"group={said}, m={m}: microbatches go in whole groups")
        for m, group, said in ((9, None, 4), (2, 1, 1), (8, 3, 3), (8, 9, 9))
    ],
    (lambda: interleaved_one_f_one_b(4, 8, 2, 0), "group=0: must be a whole number, at least 1"),
    (lambda: best_schedule(4, 2), "p=4, m=2: all orders can be searched for p ≤ 3 and m ≤ 4"),
    (lambda: best_schedule(2, 5), "p=2, m=5: all orders"),
    # A schedule, costs, limits
    *[(partial(of, 3), "schedule=3: must be a Schedule") for of in (validate, simulate)],
    (executed(schedule=3), "schedule=3: must be a Schedule"),
    (lambda: lower_bound(2, 2, like=3), "like=3: must be a Schedule"),
    (lambda: lower_bound(2, 3, like=zb_v(2, 4)), "p=2, m=3: like has 2 ranks and 4 microbatches"),
    (lambda: lower_bound(2, 3, like=zb_v(1, 4)), "p=2, m=3: like has 1 rank and 4 microbatches"),
    (lambda: simulate(Schedule([[Action("F", 0, 0), *[Action("B", 0, 0)] * 2]])), "0B0 is done twice"),
    (lambda: Costs(forward=[]), "forward=[]: an empty list; give a number, or a list of numbers"),
    (lambda: Costs(transfer=[1, math.inf]), f"transfer=inf: {AMOUNT} and finite"),
    (lambda: Costs(pair=[1, -1]), f"pair=-1: {AMOUNT} and finite"),
    (lambda: Costs(backward_input=math.nan), f"backward_input=nan: {AMOUNT} and finite"),
    (lambda: simulate(gpipe(4, 2), Costs([1, 2, 3])), "forward has 3 costs, but the schedule has 4 stages: give one"),
    (lambda: lower_bound(2, 2, Costs(pair=3)), "pair=3: the bound is for actions that run one after the other"),
    *[(partial(search, 2, 2, 3), "costs=3: must be a Costs") for search in SEARCHES],
    (lambda: simulate(gpipe(2, 2), 3), "costs=3: must be a Costs"),
    (executed(costs=3), "costs=3: must be a Costs"),
    *[(partial(search, 2, 2, memory_limit="2"), f"limit='2': {AMOUNT}") for search in SEARCHES],
    (lambda: validate(gpipe(2, 2), "2"), f"limit='2': {AMOUNT}"),
    (lambda: MemoryLimit([]), "limit=[]: an empty list"),
    (lambda: MemoryLimit(-1), f"limit=-1: {AMOUNT}"),
    (lambda: MemoryLimit(1, -1), f"activation=-1: {AMOUNT} and finite"),
    (lambda: MemoryLimit(1, pending=-1), f"pending=-1: {AMOUNT} and finite"),
    (lambda: MemoryLimit(4, 1, 2), "pending=2 is more than activation=1: an I only frees"),
    (lambda: validate(gpipe(3, 3), [1, 2]), "memory_limit has 2 numbers for 3 ranks: give one a rank"),
    (lambda: zb_auto(2, 2, memory_limit=0), "memory_limit=0: a rank must be able to keep the activations of one"),
    (lambda: lower_bound(2, 2, memory_limit=0), "memory_limit=0: a rank must be able to keep the activations of one"),
    (lambda: v_controlled(4, 8, memory_limit=1), "memory_limit=1: a rank must be able to keep two chunks"),
    *[(partial(search, 2, 2, tries=-1), "tries=-1: must be a whole number, at least 0") for search in SEARCHES[:2]],
    *[
        (partial(of, 2, 2, metric=None), "metric=None: use one of makespan, longest_stage")
        for of in (zb_auto, lower_bound)
    ],
    (lambda: simulate(gpipe(2, 2)).bubble_fraction(["makespan"]), "metric=['makespan']: use one of makespan"),
    (lambda: simulate(gpipe(2, 2)).idle(2), "rank=2: the timeline has ranks 0 to 1"),
    (lambda: simulate(gpipe(2, 2)).busy(2), "rank=2: the timeline has ranks 0 to 1"),
    # A run
    (executed(schedule=Schedule([[Action("F", 0, 0), *[Action("B", 0, 0)] * 2]])), "0B0 is done twice"),
    (executed(schedule=Schedule(STUCK)), "deadlock: 2 ranks wait for each other in a cycle"),
    (executed(schedule=gpipe(3, 2)), "schedule has 3 ranks, comm has 2"),
    (executed(schedule=gpipe(1, 2)), "schedule has 1 rank, comm has 2"),
    (executed(schedule=gpipe(2, 3)), "inputs has 2 microbatches, the schedule 3: give one array each"),
    (executed(targets=[]), "targets has 0 microbatches, the schedule 2"),
    (executed(stages=3), "stages=3: must be a Mapping"),
    (executed(stages={1: None}), "stages: stage 0 of rank 0 is missing"),
    (executed(loss_scale=0), "loss_scale=0: must be a number greater than 0 and finite"),
    (executed(loss_scale=math.inf), "loss_scale=inf: must be a number greater than 0 and finite"),
    (executed(targets=[3]), "targets[0]=3: must be an array"),
    (executed(targets=[np.full((1, 2), -100)] * 2), "targets are all -100, the ignored label"),
    (executed(targets=3), "targets=3: must be a list of arrays, one a microbatch"),
    (executed(inputs={0: np.ones(2)}), "must be a list of arrays, one a microbatch"),
    # Layers
    (lambda: partition(3, 4), "num_layers=3, num_stages=4: each stage needs a layer, use at most 3"),
    (lambda: partition(4, 0), "num_stages=0: must be a whole number, at least 1"),
    (lambda: partition(4.0, 2), "num_layers=4.0: must be a whole number, at least 1"),
    (lambda: balance([1, -2], 2), f"costs[1]=-2: {AMOUNT}"),
    (lambda: balance(3, 1), "costs=3: must be a list of numbers, one a layer"),
    (lambda: balance("123", 1), f"costs[0]='1': {AMOUNT}"),
    (lambda: balance([1, 2], 0), "p=0: must be a whole number, at least 1"),
    (lambda: balance([1, 2], 1, chunks=0), "chunks=0: must be a whole number, at least 1"),
]


@pytest.mark.parametrize(("call", "said"), ROWS, ids=[said for _, said in ROWS])
def test_bad_input_is_refused_by_name_and_value(call, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        call()


def test_costs_of_layers_may_be_an_array():
    assert balance(np.array([1, 1, 1, 3]), 2) == balance([1, 1, 1, 3], 2) == [range(3), range(3, 4)]
