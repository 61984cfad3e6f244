"""The ends of what can be asked: narrow and huge columns, and clusters on which nothing takes time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from parlab.nn import LlamaConfig
from parlab.plan import CLOCK, LLAMA_8B, Layout, estimate, search, why
from parlab.world import CLASSROOM, DGX_H100, Cluster

FREE = Cluster.uniform(0, math.inf, flops=math.inf, memory_bandwidth=math.inf)


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


def test_beside_a_step_that_takes_no_time_an_optimizer_on_the_host_is_infinitely_slower_and_all_else_as_fast(
    monkeypatch,
):
    monkeypatch.setattr("parlab.plan.machine.CLOCK", replace(CLOCK, host_link=1e-3))
    plans = search(LLAMA_8B, FREE, 8, batch=8, sequence=64, offload=True)
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


def test_a_layout_reads_as_text_and_as_columns():
    assert str(Layout(2, 4, 1, 8)) == "dp 2, pp 4, cp 1, tp 8, ZeRO-1, 1f1b"
    assert str(Layout(pp=2, chunks=3, microbatch=2)) == "dp 1, pp 2, cp 1, tp 1, chunks 3, microbatch 2, ZeRO-1, 1f1b"
    columns = Layout(dp=np.array([1, 2]), tp=4, recompute="full", offload=True)
    assert len(columns) == 2
    assert columns[1] == Layout(2, 1, 1, 4, recompute="full", offload=True)
    assert columns.ranks.tolist() == [4, 8]
    assert str(columns) == "columns of 2 layouts"
