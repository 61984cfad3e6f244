"""The figures' tables of rules: each argument is refused by its own name, before any work."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from parlab import run, views
from parlab.pipeline import gpipe
from parlab.plan import LLAMA_8B
from parlab.world import Cluster
from tests.views.drawn import title

FREE = Cluster.uniform(0, math.inf, flops=math.inf, memory_bandwidth=math.inf)
TIMELINE = run(lambda comm: None, 2).timeline

ROWS = [
    (lambda: views.tensor(S=0), "S=0: must be a whole number, at least 1"),
    (lambda: views.tensor(S="no"), "S='no': must be a whole number, at least 1"),
    (lambda: views.tensor(S=10**19), "S=10000000000000000000: must be at most 2147483648"),
    (lambda: views.tensor(model=[]), "model=[]: use one of Llama 3 8B"),
    (lambda: views.tensor(ranks_per_node=3), "ranks_per_node=3: groups of 1, 2, 4, 8, 16, 32, 64 ranks must fill"),
    (lambda: views.tensor(ranks_per_node=0), "ranks_per_node=0: must be a whole number, at least 1"),
    (lambda: views.ring_masks(causal="no"), "causal='no': must be True or False"),
    (lambda: views.ring_masks(causal=[]), "causal=[]: must be True or False"),
    (lambda: views.ring_overlap(size=1), "size=1: must be a whole number from 2 to 16"),
    (lambda: views.ring_overlap(kv_heads=1.0), "kv_heads=1.0: must be a whole number"),
    (lambda: views.packed_ring(8), "documents=8: a list of whole numbers is needed"),
    (lambda: views.packed_ring({"a": 1}), "documents={'a': 1}: a list of whole numbers is needed"),
    (lambda: views.packed_ring([0, 2.5]), "documents[1]=2.5: must be a whole number"),
    (lambda: views.attention_map(H=None), "H=None: must be a whole number, at least 1"),
    (lambda: views.attention_map(G=1.0), "G=1.0: must be a whole number, at least 1"),
    (lambda: views.attention_map(D=True), "D=True: must be a whole number, at least 1"),
    (lambda: views.attention_map(D=10**19), "D=10000000000000000000: must be at most 2147483648"),
    (lambda: views.attention_map(step=-1), "step=-1: must be a number, at least 0 and finite"),
    (lambda: views.attention_map(step="1"), "step='1': must be a number, at least 0 and finite"),
    (lambda: views.attention_map(cluster=[]), "cluster=[]: must be a Cluster"),
    (lambda: views.attention_map(method=np.array([])), "method=array([], dtype=float64): use one of fastest, ring"),
    (lambda: views.memory_levels(LLAMA_8B, "8", 2), "S='8': must be a whole number, at least 1"),
    (lambda: views.memory_levels(LLAMA_8B, 64, 2, B=0), "B=0: must be a whole number, at least 1"),
    (lambda: views.memory_levels(LLAMA_8B, 64, 2, B="x"), "B='x': must be a whole number, at least 1"),
    (lambda: views.memory_levels(LLAMA_8B, 64, 2, itemsize=3), "itemsize=3: an element of a floating dtype has"),
    (lambda: views.collectives(nodes=10**6), "nodes=1000000, ranks_per_node=8: they have 8000000; at least 2"),
    (lambda: views.collectives(ranks_per_node=10**19), "ranks_per_node=10000000000000000000: must be at most"),
    (lambda: views.collectives(algorithm=[]), "algorithms: [] is none of ring"),
    (lambda: views.all_reduce_times(size=10**6), "size=1000000: must be at most 4096"),
    (
        lambda: views.sharded_block(LLAMA_8B, 4, sequence_parallel="yes"),
        "sequence_parallel='yes': must be True or False",
    ),
    (lambda: views.wrong_gradients(3, {"a": np.ones(2)}), "found=3: must have one value or more, by name"),
    (lambda: views.wrong_gradients({"a": np.ones(2)}, 3), "expected=3: must have one value or more, by name"),
    (lambda: views.attention_cuts(None, {}), "lab=None: must be a LabAttention"),
    (lambda: views.schedule(gpipe(2, 2), memory="no"), "memory='no': must be True or False"),
    (lambda: views.schedule(gpipe(2, 2), critical_path="no"), "critical_path='no': must be True or False"),
    (lambda: views.compare_schedules([gpipe(2, 2)], memory=1), "memory=1: must be True or False"),
    (lambda: views.placements(None), "schedules=None: "),
    (lambda: views.timeline(TIMELINE, end=True), "end=True: the time axis must end after 0"),
]


@pytest.mark.parametrize(("call", "said"), ROWS, ids=[said for _, said in ROWS])
def test_bad_input_is_refused_by_name_and_value(call, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        call()


def test_where_nothing_takes_time_all_methods_take_as_long():
    figure = views.attention_map(S=4096, size=8, cluster=FREE, step=0, method="ring")
    assert title(figure) == "Ring, Ulysses, USP 2 and all-gather tie: 4096 tokens on 8 ranks, at 65 % of the peak"
    assert repr(figure).count("1.0 ×") == 7 * 11
    figure._repr_png_()
