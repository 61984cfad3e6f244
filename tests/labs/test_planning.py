"""The checkers of notebook 08 refuse what learners write on the way there."""

from functools import partial
from operator import eq

import pytest

from tests.labs.answers import memory as held
from tests.labs.answers import refused
from tests.labs.answers import step_time as timed


def floored(params, kept, d, p, t, m, zero, state):
    """`memory` with // where a parameter's bytes are divided."""
    divided = sum(size // (d if zero >= stage else 1) for size, stage in zip(state, (3, 2, 1), strict=True))
    return params * divided / (p * t) + min(p, m) * kept / (p * t)


WRONG = [
    ("08.memory", "one_in_flight", partial(held, flight=lambda p, m: 1), "before the first backward reaches"),
    ("08.memory", "no_activations", partial(held, flight=lambda p, m: 0), "activations are missing"),
    ("08.memory", "no_master_weights", partial(held, optimizer=8), "float32 copy"),
    ("08.memory", "stage_2_is_not_1_too", partial(held, cuts=eq), "a ZeRO stage cuts what the stages before it cut"),
    ("08.memory", "always_2_2_12", lambda *args: held(*args[:-1], (2, 2, 12)), "not always 2, 2 and 12"),
    ("08.memory", "no_zero", partial(held, among=lambda d, p, t: 1), "ZeRO-1 cuts the optimizer's state"),
    ("08.memory", "zero_over_all", partial(held, among=lambda d, p, t: d * p * t), "the dp replicas"),
    ("08.memory", "params_of_all_stages", partial(held, cut=lambda p, t: t), "its own layers only"),
    ("08.memory", "params_not_cut_by_t", partial(held, cut=lambda p, t: p), "cuts parameters too"),
    ("08.memory", "activations_not_cut_by_t", partial(held, acts=lambda p, t: p), "cuts activations too"),
    ("08.memory", "acts_cut_by_d", lambda w, kept, d, *more: held(w, kept / d, d, *more), "dp does not cut its acti"),
    ("08.memory", "whole_bytes_a_parameter", floored, "drop a remainder"),
    ("08.memory", "in_gib", lambda *args: held(*args) / 2**30, "return bytes, not GB or GiB"),
    ("08.step_time", "no_bubble", partial(timed, ends=lambda p, v: 0), "the bubble is missing"),
    ("08.step_time", "all_p_wait", partial(timed, ends=lambda p, v: p / v), "pp - 1 others'"),
    ("08.step_time", "whole_batch", partial(timed, m=lambda batch, d: batch), "batch / dp"),
    ("08.step_time", "no_traffic", partial(timed, hop=lambda t: 0), "traffic is missing"),
    ("08.step_time", "bytes_cut_again", partial(timed, hop=lambda t: (t - 1) / t**2), "of one rank's turns"),
    ("08.step_time", "work_not_shared", partial(timed, share=lambda t: 1), "tp ranks share the work"),
    ("08.step_time", "one_stage", partial(timed, stages=lambda p: 1), "1/pp of the layers"),
    ("08.step_time", "turns_of_all_layers", partial(timed, late=lambda p: p), "the turns of its own layers"),
    ("08.step_time", "overlapped", partial(timed, join=max), "nothing hides the traffic"),
]


@pytest.mark.parametrize(("name", "answer", "said"), [(n, a, s) for n, _, a, s in WRONG], ids=[w[1] for w in WRONG])
def test_a_wrong_answer_is_refused_and_explained(name, answer, said):
    refused(name, answer, said)
