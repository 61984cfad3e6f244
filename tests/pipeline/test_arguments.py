"""Bad input: the call, and what the error says."""

import math
import re

import numpy as np
import pytest

from parlab.pipeline import (
    Costs,
    MemoryLimit,
    balance,
    dualpipe_v,
    gpipe,
    lower_bound,
    run_schedule,
    simulate,
    v_controlled,
    zb_auto,
)
from parlab.world import run
from tests.pipeline.models import tanh_model


def executed(**changed):
    model, _, _, inputs, targets = tanh_model(2, 2)
    arguments = {"schedule": gpipe(2, 2), "stages": model, "inputs": inputs, "targets": targets} | changed
    return lambda: run(run_schedule, 2, **arguments)


ROWS = [
    (lambda: Costs(forward=[]), "forward=[]: an empty list; give a number, or a list of numbers"),
    (lambda: Costs(np.array([])), "forward=[]: an empty list"),
    (lambda: Costs(transfer=[1, math.inf]), "transfer=inf: must be a number, at least 0 and finite"),
    (lambda: Costs(pair=[1, -1]), "pair=-1: must be a number, at least 0 and finite"),
    (lambda: Costs(backward_input=math.nan), "backward_input=nan: must be a number, at least 0 and finite"),
    (lambda: simulate(gpipe(4, 2), Costs([1, 2, 3])), "forward has 3 costs, but the schedule has 4 stages: give one"),
    (lambda: simulate(gpipe(2, 2)).idle(2), "rank=2: the timeline has ranks 0 to 1"),
    (lambda: MemoryLimit([]), "limit=[]: an empty list"),
    (lambda: MemoryLimit(1, pending=[1, -1]), "pending=-1: must be a number, at least 0 and finite"),
    (lambda: zb_auto(2, 2, tries=-1), "tries=-1: must be a whole number, at least 0"),
    (lambda: v_controlled(2, 2, costs=None), "costs=None: must be a Costs"),
    (lambda: v_controlled(2, 2, memory_limit="2"), "limit='2': must be a number, at least 0"),
    (lambda: lower_bound(2, 2, like=3), "like=3: must be a Schedule"),
    (lambda: zb_auto(2, 2, metric=None), "metric=None: use one of makespan, longest_stage"),
    (lambda: simulate(gpipe(2, 2)).bubble_fraction(["makespan"]), "metric=['makespan']: use one of makespan"),
    (lambda: dualpipe_v(2, True), "m=True: must be a whole number, at least 1"),
    (executed(costs=3), "costs=3: must be a Costs"),
    (executed(loss_scale=0), "loss_scale=0: must be a number greater than 0 and finite"),
    (executed(loss_scale=math.inf), "loss_scale=inf: must be a number greater than 0 and finite"),
    (executed(targets=[3]), "targets[0]=3: must be an array"),
    (executed(targets=[np.full((1, 2), -100)] * 2), "targets are all -100, the ignored label"),
    (executed(targets=3), "targets=3: must be a list of arrays, one a microbatch"),
    (executed(inputs={0: np.ones(2)}), "must be a list of arrays, one a microbatch"),
    (lambda: balance(3, 1), "costs=3: must be a list of numbers, one a layer"),
    (lambda: balance("123", 1), "costs[0]='1': must be a number, at least 0"),
    (lambda: balance([1, 2], 1, chunks=0), "chunks=0: must be a whole number, at least 1"),
]


@pytest.mark.parametrize(("call", "said"), ROWS, ids=[said for _, said in ROWS])
def test_bad_input_is_refused_by_name_and_value(call, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        call()


def test_costs_of_layers_may_be_an_array():
    assert balance(np.array([1, 1, 1, 3]), 2) == balance([1, 1, 1, 3], 2) == [range(3), range(3, 4)]
