"""What the planner refuses, by the argument's name and value; and clusters on which nothing takes time."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from parlab.nn import LlamaConfig
from parlab.plan import (
    LLAMA_8B,
    Hardware,
    Layout,
    Software,
    estimate,
    search,
    software_of,
    validation,
    why,
)
from parlab.world import CLASSROOM, DGX_H100, Cluster

FREE = Cluster.uniform(0, math.inf, flops=math.inf, memory_bandwidth=math.inf)


def asked(layout=None, batch=8, sequence=64, **options):
    return lambda: estimate(
        LLAMA_8B, DGX_H100, Layout() if layout is None else layout, batch=batch, sequence=sequence, **options
    )


def sought(ranks=8, batch=8, sequence=64, **options):
    return lambda: search(LLAMA_8B, DGX_H100, ranks, batch=batch, sequence=sequence, **options)


def hardware(**fields):
    return lambda: Hardware(**fields)


def software(**fields):
    return lambda: Software(**fields)


ROWS = [
    # a fraction of the data sheet
    (hardware(products=1000), "products=1000: a fraction of the data sheet, greater than 0 and at most 1"),
    *[(hardware(**{name: 2}), f"{name}=2: a fraction of the data sheet") for name in ("attention", "memory", "intra")],
    (hardware(products="1"), "products='1': must be a number greater than 0"),
    (hardware(inter=math.nan), "inter=nan: must be a number greater than 0"),
    (hardware(host_link=None), "host_link=None: must be a number greater than 0"),
    (hardware(processors=0), "processors=0: must be a whole number, at least 1"),
    (hardware(usable=80), "usable=80: must be two numbers of GiB, the least and the most"),
    (hardware(usable=(80, 72)), "usable=(80, 72): the least comes first"),
    (hardware(collective=-1), "collective=-1: must be"),
    # habits of software
    (software(hides={"everything"}), "hides={'everything'}: a set of some of tp, cp, pp, dp is needed"),
    (software(hides="tp"), "hides='tp': a set of some of"),
    (software(order=["tp", "cp", "pp", "dp"]), "a tuple of tp, cp, pp, dp, the innermost first"),
    (software(order=("tp", "tp", "pp", "dp")), "order=('tp', 'tp', 'pp', 'dp'): a tuple"),
    (software(gradient=3), "gradient=3: an element of a floating dtype"),
    (software(one_stream=1), "one_stream=1: must be True or False"),
    (software(logit=-1), "logit=-1: must be a whole number, at least 0"),
    (lambda: software_of("A100"), "cluster='A100': must be a Cluster"),
    (hardware(rails="no"), "rails='no': must be True or False"),
    (hardware(source=None), "source=None: must be a string"),
    (lambda: validation(3), "hardware=3: must be a Hardware"),
    # an estimate
    (asked(itemsize=3), "itemsize=3: an element of a floating dtype has 1, 2, 4 or 8 bytes"),
    (asked(batch=10**19), "batch=10000000000000000000: must be at most 1000000000000"),
    (asked(state=None), "state=None: must be a StateBytes"),
    (lambda: estimate(None, DGX_H100, Layout(), batch=1, sequence=1), "config=None: a LlamaConfig or a GPTConfig"),
    (lambda: estimate(LLAMA_8B, DGX_H100, None, batch=1, sequence=1), "layout=None: must be a Layout"),
    # a layout
    (asked(Layout(offload=1)), "offload=1: must be True or False"),
    (asked(Layout(offload=np.array([0, 1]))), "offload=0: must be True or False"),
    (asked(Layout(tp=np.array([]))), "layout=columns of 0 layouts: at least one layout is needed"),
    (
        asked(Layout(dp=np.array([1, 2]), tp=np.array([1, 2, 4]))),
        "layout: columns of the shapes dp [2], tp [3]: make them as long as each other",
    ),
    (asked(Layout(dp=2**21)), "dp=2097152: must be at most 1048576"),
    (
        asked(Layout(dp=2**18, tp=8)),
        "tp=8, cp=1, pp=1, dp=262144: their product, the number of ranks, must be at most 1048576",
    ),
    # a search
    (sought(2**20 + 1), "ranks=1048577: must be at most 1048576"),
    (sought(memory=math.nan), "memory=nan: must be a number greater than 0"),
    (lambda: why(None), "plans=None: must be a Plans"),
    (lambda: why(sought(batch=1, sequence=8, tp=8)(), 3), "layout=3: must be a Layout"),
]


@pytest.mark.parametrize(("call", "said"), ROWS, ids=[said for _, said in ROWS])
def test_bad_input_is_refused_by_name_and_value(call, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        call()


@pytest.mark.parametrize("hides", [(), ["tp", "cp", "pp", "dp"], frozenset({"pp"})])
def test_what_software_hides_is_any_collection_of_the_four_kinds(hides):
    assert Software(hides=hides).hides is hides


def test_narrow_columns_are_multiplied_without_overflow():
    """16 replicas of microbatches of 16 are 256 sequences; in 8 bits they would be none."""
    narrow = Layout(dp=np.array([16], np.uint8), microbatch=np.array([16], np.uint8))
    wide = Layout(dp=16, microbatch=16)
    found = estimate(LLAMA_8B, DGX_H100, narrow, batch=256, sequence=64)[0]
    assert found.seconds == estimate(LLAMA_8B, DGX_H100, wide, batch=256, sequence=64).seconds


def test_the_largest_ranks_and_the_largest_batch_are_searched():
    most = 10**12 // 2**20 * 2**20
    plans = search(LLAMA_8B, DGX_H100, 2**20, batch=most, sequence=2**20, zero=1)
    assert plans.best.layout.ranks == 2**20


def test_on_a_cluster_on_which_nothing_takes_time_each_neighbour_takes_as_long():
    plans = search(LLAMA_8B, FREE, 8, batch=8, sequence=64)
    assert plans.best.total_seconds == 0
    neighbours = why(plans)
    assert {(n.change, n.binds) for n in neighbours} == {(0.0, "nothing: it takes as long")}
    assert plans.best.mfu == 0
    assert (plans.grid.mfu == 0).all()


def test_beside_a_step_that_takes_no_time_an_optimizer_on_the_host_is_infinitely_slower_and_all_else_as_fast():
    plans = search(LLAMA_8B, FREE, 8, batch=8, sequence=64, offload=True, hardware=Hardware(host_link=1e-3))
    assert plans.best.total_seconds == 0
    change = {(n.field, n.change, n.binds.partition(":")[0]) for n in why(plans)}
    assert ("offload", math.inf, "optimizer") in change
    assert {change for knob, change, _ in change if knob != "offload"} == {0.0}


def test_a_peak_without_end_is_never_used():
    found = estimate(LLAMA_8B, Cluster.uniform(1e-6, 1e9, flops=math.inf), Layout(tp=2), batch=1, sequence=64)
    assert found.total_seconds > 0
    assert found.mfu == 0


def test_sizes_of_a_model_beyond_all_models_are_estimated_without_overflow():
    huge = LlamaConfig(2**31, 2**20, 2**22, 2**10, 2**10)
    found = estimate(huge, CLASSROOM, Layout(tp=2), batch=10**6, sequence=10**6)
    assert math.isfinite(found.total_seconds)
    assert math.isfinite(found.total_bytes)
