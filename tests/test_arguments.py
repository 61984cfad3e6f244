"""Bad input to the serial model and to the strategies that are no rank programs: one row each, refused by name and
value before any work. World and ZeRO have tables of their own, one row for each argument.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from parlab import run
from parlab.arguments import amount, checked_axis, checked_rank, finite, flag, instance, one_of, positive, text, whole
from parlab.nn.attention import attention
from parlab.nn.config import LlamaConfig
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW, clip_gradients
from parlab.nn.rotary import Rotary
from parlab.pipeline import (
    Action,
    Pair,
    Schedule,
    gpipe,
    run_schedule,
    validate,
)
from parlab.tensor.slices import weight_slices
from parlab.zero import model_state_bytes

CONFIG = LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=4)
W = {"w": np.ones(2)}
Q = np.ones((1, 1, 2, 2))
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
NO_NUMBERS = ["1", None, [1.0], 1j, True]


def config(**changes):
    return lambda: replace(CONFIG, **changes)


def rope(**scaling):
    return config(rope_scaling={"rope_type": "llama3", "factor": 8.0, **LLAMA3, **scaling})


def step(weights=W, gradients=W):
    return lambda: AdamW().step(weights, gradients)


def actions(*row):
    return lambda: Schedule([row])


def executed(stages):
    return lambda: run(lambda comm: run_schedule(comm, gpipe(1, 1), stages, [Q], [Q]), 1)


ROWS = [
    # AdamW
    (lambda: AdamW(lr=math.inf), "lr=inf: must be a number, at least 0 and finite"),
    (lambda: AdamW(eps="small"), "eps='small': must be a number"),
    (lambda: AdamW().update(*(np.ones(2),) * 4, step=1, lr=math.nan), "lr=nan: must be a number"),
    (lambda: AdamW().update(*(np.ones(2),) * 4, step=1.5), "step=1.5: must be a whole number, at least 1"),
    (lambda: AdamW(betas=None), "betas=None: two numbers"),
    (step({"w": np.ones(2, int)}), "weights['w']=array([1, 1]): an array of a floating dtype"),
    (step(None), "weights=None: arrays by name"),
    (step(gradients=None), "gradients=None: arrays by name"),
    (lambda: clip_gradients({"w": [1.0]}, 1.0), "gradients['w']=[1.0]: an array"),
    (lambda: clip_gradients(W, "1"), "max_norm='1': must be a number greater than 0"),
    # the model
    (config(rms_norm_eps=math.inf), "rms_norm_eps=inf: must be a number greater than 0 and finite"),
    (config(rope_theta=math.inf), "rope_theta=inf: must be a number greater than 0 and finite"),
    (config(initializer_range=-1), "initializer_range=-1: must be a number, at least 0 and finite"),
    (config(tie_word_embeddings="no"), "tie_word_embeddings='no': must be True or False"),
    (rope(factor=math.nan), "factor=nan: must be a number greater than 0 and finite"),
    (rope(low_freq_factor=math.inf), "low_freq_factor=inf: must be a number greater than 0 and finite"),
    (rope(rope_type=["llama3"]), "rope_scaling: type=['llama3']: use one of default, linear, llama3"),
    (lambda: Rotary(8, positions=3), "positions=3: an array of numbers, [S] or [B, S]"),
    (lambda: Rotary(8, positions=np.asarray(["a"])), "positions=array(['a'], dtype='<U1'): an array of numbers"),
    (lambda: Rotary(8, positions=np.ones((1, 1, 2))), "positions=array([[[1., 1.]]]): an array of numbers, [S] or"),
    (lambda: attention(Q, Q, Q, scale=math.nan), "scale=nan: must be a finite number"),
    # tensor
    (lambda: weight_slices(CONFIG, 0, 0), "size=0: must be a whole number, at least 1"),
    # zero
    (lambda: model_state_bytes(1, 4, True), "stage=True: must be a whole number"),
    # pipeline
    (lambda: Schedule(None), "ranks=None: give a list of actions for each rank"),
    (lambda: Schedule([None]), "ranks=[None]: give a list of actions for each rank"),
    (lambda: Schedule("0F0"), "ranks[0][0]='0': give an Action"),
    (actions(Action(["F"], 0, 0)), "ranks[0][0]=Action(kind=['F'], stage=0, microbatch=0): give an Action"),
    (actions(Action("F", 0.5, 0)), "ranks[0][0]=Action(kind='F', stage=0.5"),
    (actions(Action("F", 0, True)), "microbatch=True): give an Action"),
    (actions(Pair(Action("F", 0, 0), "0B1")), "ranks[0][0]=Pair(F=Action(kind='F', stage=0, microbatch=0), B='0B1')"),
    (executed(stages=[abs]), "stages[0]=<built-in function abs>: the schedule has 1, each with forward and backward"),
    (executed(Llama.random(CONFIG).stages([range(1)]) * 2), ": the schedule has 1, each with forward"),
    (lambda: validate(gpipe(2, 2), [1, "4"]), "limit='4': must be a number, at least 0"),
]


@pytest.mark.parametrize(("call", "said"), ROWS, ids=[said for _, said in ROWS])
def test_bad_input_is_refused_by_name_and_value(call, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        call()


def test_a_refused_step_of_adamw_counts_nothing_and_changes_nothing():
    optimizer, weights = AdamW(), {"w": np.ones(2)}
    with pytest.raises(ValueError, match="lr=nan"):
        optimizer.step(weights, W, lr=math.nan)
    assert (optimizer.steps, optimizer.moments) == (0, {})
    assert (weights["w"] == 1).all()


# The checks themselves, at their edges


@pytest.mark.parametrize("value", [0, np.int64(0), 10**30])
def test_whole_takes_what_counts_as_an_index(value):
    assert whole("n", value, 0) == value
    assert type(whole("n", value)) is int


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (
            amount,
            [0, 0.0, np.float32(1), Fraction(1, 3)],
            [-1e-300, math.inf, math.nan, 10**400, *NO_NUMBERS],
        ),
        (lambda n, x: amount(n, x, least=1, below=2), [1, 1.99], [0.99, 2]),
        (positive, [1e-300, math.inf], [0, -1, math.nan, *NO_NUMBERS]),
        (lambda n, x: positive(n, x, finite=True), [1e-300, 1e300], [0, math.inf, math.nan]),
        (finite, [-1, 0, 1e300], [math.inf, -math.inf, math.nan, *NO_NUMBERS]),
        (flag, [True, False], [0, 1, None, "no"]),
        (text, ["", "a"], [None, 1, b"a"]),
        (lambda n, x: checked_rank(x, n, 3), [0, 2, np.int64(1)], [3, -1, 1.0, True]),
        (lambda n, x: checked_axis(x, n, np.ones((2, 2))), [0, 1, -2], [2, -3, "0"]),
        (lambda n, x: one_of(n, x, ("a", "b")), ["a", "b"], ["c", "", None, ["a"]]),
        (lambda n, x: instance(n, x, Schedule), [gpipe(1, 1)], [None, Schedule, [[]]]),
    ],
)
def test_each_check_takes_what_is_right_and_names_what_is_not(check, good, bad):
    for value in good:
        check("name", value)
    for value in bad:
        with pytest.raises(ValueError, match=re.escape(f"name={value!r:.60}: ")):
            check("name", value)
