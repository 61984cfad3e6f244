"""Refusals of the planner, once a rule: the argument or the field, its value, and what would be right."""

from __future__ import annotations

import math
import re
from functools import partial

import numpy as np
import pytest

from parlab.nn import LlamaConfig
from parlab.nn.published_mixtures import MIXTRALS
from parlab.plan import (
    GPT_22B,
    LLAMA_8B,
    LLAMA_405B,
    GPTConfig,
    Layout,
    Software,
    estimate,
    hardware_of,
    memory_on_paper,
    search,
    seconds_on_paper,
    software_of,
    validation,
    why,
)
from parlab.world import CLASSROOM, DGX_H100

JOB = {"config": LLAMA_8B, "cluster": DGX_H100, "batch": 16, "sequence": 4096}
CALLS = {  # each with arguments that are right
    "estimate": partial(estimate, layout=Layout(), software=Software(), **JOB),
    "search": partial(search, ranks=8, **JOB),
    "memory": partial(memory_on_paper, params=1, kept=0, dp=1, pp=1, tp=1, m=1, zero=0),
    "seconds": partial(seconds_on_paper, work=1, nbytes=1, speed=1, dp=1, pp=1, tp=1, chunks=1, batch=1),
    "software": Software,
    "hardware_of": hardware_of,
    "software_of": software_of,
    "validation": validation,
    "why": why,
}
WHOLE, AMOUNT, POSITIVE = "must be a whole number, at least 1", "must be a number", "must be a number greater than 0"
SWITCH = "must be True or False"
CONFIG, CLUSTER = "a LlamaConfig or a GPTConfig is needed", "must be a Cluster"

# A call, its arguments, each with one value that is wrong; how the sentence goes on after it
ARGUMENTS = [
    *[
        row
        for both in ("estimate", "search")
        for row in (
            (both, {"config": None, "cluster": "A100"}, (CONFIG, CLUSTER)),
            (both, {"batch": 0, "sequence": 0}, (WHOLE, WHOLE)),
            (both, {"batch": 10**19, "sequence": 10**13}, ["must be at most 1000000000000"] * 2),
        )
    ],
    ("estimate", {"layout": 3, "state": None}, ("must be a Layout", "must be a StateBytes")),
    ("estimate", {"software": 3}, ["must be a Software"]),
    ("estimate", {"itemsize": 3}, ["an element of a floating dtype has 1, 2, 4 or 8 bytes"]),
    ("search", {"ranks": 0, "memory": math.nan, "offload": 1}, (WHOLE, POSITIVE, SWITCH)),
    ("search", {"ranks": 2**20 + 1, "speed": 2}, ("must be at most 1048576", "the knobs are tp, cp, pp, dp")),
    ("search", {"cp": 0, "tp": (5, 6)}, ("must be at least 1", "no layout is possible for these")),
    ("memory", {"params": -1, "kept": -1}, (AMOUNT, AMOUNT)),
    ("memory", dict.fromkeys(("dp", "pp", "tp", "m"), 0), [WHOLE] * 4),
    ("memory", {"zero": -1}, ["must be a whole number, at least 0"]),
    ("seconds", {"work": -1, "nbytes": -1, "speed": 0}, (AMOUNT, AMOUNT, POSITIVE)),
    ("seconds", dict.fromkeys(("dp", "pp", "tp", "chunks", "batch"), 0), [WHOLE] * 5),
    ("software", {"hides": {"all"}, "order": ["tp", "cp", "pp", "dp"]}, ("a set of some of", "a tuple of tp, cp")),
    ("software", {"hides": "tp", "order": ("tp", "tp", "pp", "dp")}, ("a set of some of", "a tuple of tp, cp")),
    ("software", {"gradient": 3, "source": None}, ("an element of a floating dtype", "must be a string")),
    ("software", {"logit": -1}, ["must be a whole number, at least 0"]),
    *[("software", {habit: 1}, [SWITCH]) for habit, usual in vars(Software()).items() if isinstance(usual, bool)],
    *[(name, {"cluster": "A100"}, [CLUSTER]) for name in ("hardware_of", "software_of")],
    ("validation", {"without": "head"}, ["use one of products, attention"]),
    ("why", {"plans": None}, ["must be a Plans"]),
]
EACH = [
    (call, name, arguments[name], right)
    for call, arguments, rights in ARGUMENTS
    for name, right in zip(arguments, rights, strict=True)
]


@pytest.mark.parametrize(
    ("call", "name", "value", "right"), EACH, ids=[f"{call}: {name}: {right}" for call, name, _, right in EACH]
)
def test_an_argument_that_cannot_be_is_refused_by_name_and_value(call, name, value, right):
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r}: {right}")):
        CALLS[call](**{name: value})


@pytest.mark.parametrize(
    ("call", "field", "said"),
    [
        ("search", {"zero": [1, 4]}, "zero=4: use stage 0, 1, 2 or 3"),
        ("search", {"tp": [1, "2"]}, "tp='2': whole numbers are needed"),  # in one column both would be texts
    ],
)
def test_of_several_values_the_one_that_is_wrong_is_named(call, field, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        CALLS[call](**field)


def test_why_takes_plans_and_a_layout():
    with pytest.raises(ValueError, match="layout=3: must be a Layout"):
        why(search(LLAMA_8B, DGX_H100, 8, batch=1, sequence=8, tp=8), 3)


META = Layout(dp=64, pp=16, tp=8, chunks=8, zero=2, sequence_parallel=True)
OF_META = {"config": LLAMA_405B, "batch": 2048, "sequence": 8192}
MIXTRAL = MIXTRALS["mixtral-8x7b"]

# A layout, what the job has otherwise, and the sentence
LAYOUTS = [
    # each field alone
    (Layout(dp=0), {}, "dp=0: must be at least 1"),
    (Layout(tp=2.5), {}, "tp=2.5: whole numbers are needed"),
    (Layout(zero=True), {}, "zero=True: whole numbers are needed"),
    (Layout(recompute_layers=-1), {}, "recompute_layers=-1: must be at least 0"),
    (Layout(dp=2**21), {}, "dp=2097152: must be at most 1048576"),
    (Layout(dp=2**18, tp=8), {}, "tp=8, cp=1, pp=1, dp=262144: their product, the number of ranks, must be at most"),
    (Layout(zero=4), {}, "zero=4: use stage 0, 1, 2 or 3"),
    (Layout(schedule="2f2b"), {}, "schedule='2f2b': use one of 1f1b, gpipe, looped_bfs"),
    (Layout(recompute="some"), {}, "recompute='some': use one of none, selective, mlp.hidden, full"),
    (Layout(offload=1), {}, "offload=1: must be True or False"),
    # columns
    (Layout(offload=np.array([0, 1])), {}, "offload=0: must be True or False"),
    (Layout(offload=np.array([0, 2])), {}, "offload=2: must be True or False"),
    (Layout(tp=np.array([])), {}, "layout=columns of 0 layouts: at least one layout is needed"),
    (
        Layout(dp=np.array([1, 2]), tp=np.array([1, 2, 4])),
        {},
        "layout: columns of the shapes dp [2], tp [3]: make them as long as each other",
    ),
    (Layout(tp=np.array([1, 5, 8])), {"config": GPT_22B}, "tp=5: num_attention_heads 64"),  # the first that breaks it
    # sizes that tp divides
    (Layout(tp=3), {}, "tp=3: num_attention_heads 32 does not divide among so many: use a divisor of 32"),
    (Layout(tp=12), {"config": LlamaConfig(64, 48, 90, 2, 12)}, "tp=12: intermediate_size 90"),
    (Layout(tp=6), {"config": LlamaConfig(64, 48, 96, 2, 12, 4)}, "tp=6: use a divisor or a multiple of num_key_value"),
    (Layout(tp=8), {"config": GPTConfig(4, 64, 2, 8)}, "tp=8: at most vocab_size 4"),
    # the sequence, and the batch
    (Layout(cp=3, pp=16, chunks=2), {}, "cp=3: sequence 4096 must be a multiple of 2·cp, two chunks a rank (zigzag)"),
    (Layout(tp=8, sequence_parallel=True), {"sequence": 100}, "cp=1, tp=8: sequence parallelism cuts sequence 100"),
    (Layout(dp=3), {}, "dp=3, microbatch=1: batch 16 must be a multiple"),
    (Layout(pp=32), {}, "pp=32: batch 16 has fewer microbatches a replica, batch / (dp 1 · microbatch 1)"),
    # the schedule
    (Layout(chunks=2), {}, "chunks=2: one stage a rank where pp is 1"),
    (Layout(pp=2, chunks=2, schedule="gpipe"), {}, "chunks=2: gpipe has one stage a rank"),
    (Layout(pp=4, chunks=2), {"batch": 6}, "pp=4, chunks=2: interleaving needs a batch (6) of whole groups"),
    # the layers
    (Layout(pp=33), {"batch": 64}, "pp=33: 32 layers are fewer than so many stages: at most 32"),
    (
        Layout(pp=5, chunks=2),
        {"batch": 15},
        "pp=5, chunks=2: 32 layers do not divide into so many stages: pp·ch",
    ),
    (META.but(recompute_layers=9), OF_META, "pp=16, recompute_layers=9: at most the layers of a rank: 126 of pp 16"),
    (Layout(recompute_layers=1, recompute="full"), {}, "recompute_layers=1: all are recomputed already: use 0"),
    (Layout(recompute="mlp.hidden"), {"config": GPT_22B}, "recompute='mlp.hidden': no layer of the model has such an"),
    (Layout(recompute="mlp.hidden"), {"config": MIXTRAL}, "recompute='mlp.hidden': no layer of the model has such an"),
    # experts
    (Layout(dp=4, ep=3), {"config": MIXTRAL}, "ep=3: use a divisor of num_local_experts 8"),
    (Layout(dp=4, ep=8), {"config": MIXTRAL}, "dp=4, cp=1, ep=8: ep must divide dp · cp"),
    (Layout(dp=4, ep=2), {}, "ep=2: the model has no experts: use 1"),
]


@pytest.mark.parametrize(("layout", "job", "said"), LAYOUTS, ids=[said for *_, said in LAYOUTS])
def test_a_layout_that_is_not_possible_is_refused_by_its_fields_and_what_would_be_right(layout, job, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        estimate(layout=layout, **JOB | job)


@pytest.mark.parametrize(
    ("layout", "batch", "sequence"),
    [
        (Layout(), 1, 101),  # an odd sequence on one rank
        (Layout(cp=4), 1, 8),  # two chunks of one token
        (Layout(tp=8), 1, 8),  # a row of the vocabulary each
        (Layout(pp=6), 6, 8),  # a layer a stage; as many microbatches
        (Layout(pp=5), 8, 8),  # six layers on five stages
        (Layout(dp=2, microbatch=4), 8, 8),
        (Layout(pp=2, chunks=3), 2, 8),
        (Layout(pp=2, chunks=3, schedule="looped_bfs"), 3, 8),  # no groups of pp microbatches
    ],
    ids=str,
)
def test_what_is_just_possible_is_estimated(layout, batch, sequence):
    found = estimate(GPTConfig(8, 64, 6, 8), CLASSROOM, layout, batch=batch, sequence=sequence)
    assert 0 < found.total_seconds < 1


@pytest.mark.parametrize("hides", [(), ["tp", "cp", "pp", "dp"], frozenset({"pp"})])
def test_what_software_hides_is_any_collection_of_the_four_kinds(hides):
    assert Software(hides=hides).hides is hides


def test_when_nothing_fits_the_sentence_says_how_much_the_leanest_layout_needs():
    plans = search(LLAMA_405B, DGX_H100, 64, batch=64, sequence=8192)
    assert len(plans) == 0
    assert repr(plans) == f"Plans: of {len(plans.layouts)} layouts 0 fit in 74.5 GiB"
    assert list(plans) == plans.front() == []
    with pytest.raises(ValueError, match=r"none of \d+ layouts fits in 74.5 GiB; the leanest needs 97.4 GiB"):
        _ = plans.best
