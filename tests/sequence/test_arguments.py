"""Bad input to the sequence room: one row each, refused by name and value before any work."""

from __future__ import annotations

import re

import numpy as np
import pytest

from parlab import run
from parlab.nn import LlamaConfig
from parlab.sequence import (
    AttentionShape,
    Chunk,
    RingSchedule,
    allgather_attention,
    analyse_attention,
    best_size,
    causal_work,
    double_ring_attention,
    double_ring_cost,
    head_tail,
    imbalance,
    lab_attention,
    level_bytes,
    level_flops,
    load_ratio,
    loads_of,
    longest_first,
    method_times,
    overlap_tokens,
    packed_work,
    per_document,
    positions,
    ring_attention,
    ring_cost,
    sequence_statistics,
    shard,
    split_by_attention,
    split_by_memory,
    split_by_text,
    split_by_work,
    split_equal,
    stem,
    tree_attention,
    tree_cost,
    ulysses_attention,
    unmasked_pairs,
    usp_attention,
    usp_time,
    weight_cut,
    window_attention,
    window_cost,
)
from parlab.world import DGX_H100

SHAPE = AttentionShape(S=12, H=12, G=12, D=2, itemsize=4)
CONFIG = LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
Q = np.ones((1, 2, 4, 3))
MAP = np.full((1, 6, 6), 1 / 6)


def attended(method, **how):
    return lambda: run(method, 2, Q, Q, Q, **how)


def shaped(**changes):
    return lambda: AttentionShape(**{"S": 16, "H": 4, "G": 2, "D": 4, "itemsize": 2} | changes)


METHODS = [ring_attention, allgather_attention, ulysses_attention, double_ring_attention, tree_attention]
ROWS = [
    # the methods
    *[(attended(method, causal="no"), "causal='no': must be True or False") for method in METHODS],
    (attended(usp_attention, ulysses=2, causal="no"), "causal='no': must be True or False"),
    (attended(usp_attention, ulysses="2"), "ulysses='2': must be a whole number"),
    (attended(window_attention, window=2, causal="no"), "causal='no': must be True or False"),
    (attended(window_attention, window=2.0), "window=2.0: must be a whole number, at least 1"),
    (attended(window_attention, window=9), "window=9: a query sees itself and the tokens before it, 1 to 8 in all"),
    (attended(tree_attention, replicated="yes"), "replicated='yes': must be True or False"),
    (attended(ring_attention, documents=8), "documents=8: must be a list"),
    (attended(ring_attention, documents="08"), "documents='08': must be a list"),
    (attended(allgather_attention, kv_heads=1.0), "kv_heads=1.0: must be a whole number"),
    (attended(double_ring_attention, crossing="first"), "crossing='first': use one of early, late"),
    (attended(double_ring_attention, ranks_per_node=1.0), "ranks_per_node=1.0: must be a whole number"),
    # who has which tokens
    (lambda: RingSchedule(0.0, 2), "rank=0.0: must be a whole number"),
    (lambda: RingSchedule(0, 2.0), "size=2.0: must be a whole number"),
    (lambda: RingSchedule(2, 2), "rank=2: a ring of 2 has ranks 0 to 1"),
    (lambda: positions(8.0, 2), "S=8.0: must be a whole number"),
    (lambda: positions(8, "2"), "size='2': must be a whole number"),
    (lambda: positions(8, 2, documents=8), "documents=8: must be a list"),
    (lambda: shard(Q, 2.0), "size=2.0: must be a whole number"),
    (lambda: shard(Q, 2, documents=8), "documents=8: must be a list"),
    # what it costs
    *[(shaped(**{name: 0}), f"{name}=0: must be a whole number, at least 1") for name in ("S", "H", "G", "D", "B")],
    (shaped(S=16.0), "S=16.0: must be a whole number"),
    (shaped(itemsize=0), "itemsize=0: must be a whole number, at least 1"),
    (shaped(G=3), "H=4: must be a multiple of G=3"),
    (lambda: ring_cost(SHAPE, 2, backward="no"), "backward='no': must be True or False"),
    (lambda: ring_cost(SHAPE, 0), "size=0: must be a whole number, at least 1"),
    (lambda: window_cost(SHAPE, 4, window=99), "window=99: a query sees itself and the tokens before it, 1 to 12"),
    (lambda: tree_cost(SHAPE, 4, queries=99), "queries=99: the sequence has 12 tokens"),
    (lambda: double_ring_cost(SHAPE, 4, ranks_per_node=0), "ranks_per_node=0: must divide the 4 ranks: use one of"),
    (lambda: unmasked_pairs(16, 4, causal="no"), "causal='no': must be True or False"),
    (lambda: unmasked_pairs(16, 4.0), "size=4.0: must be a whole number"),
    (lambda: load_ratio(16.0, 4), "S=16.0: must be a whole number"),
    (lambda: overlap_tokens(0, 1e9), "flops_per_second=0: must be a number greater than 0"),
    (lambda: overlap_tokens(1e9, "fast"), "bytes_per_second='fast': must be a number greater than 0"),
    (lambda: overlap_tokens(1e9, 1e9, half_masked="no"), "half_masked='no': must be True or False"),
    (lambda: method_times(SHAPE, 0, DGX_H100), "size=0: must be a whole number, at least 1"),
    (lambda: method_times(SHAPE, 2, None), "cluster=None: must be a Cluster"),
    (lambda: method_times(SHAPE, 2, DGX_H100, kernel=0), "kernel=0: must be a number greater than 0"),
    (lambda: method_times(SHAPE, 2, DGX_H100, step=-0.5), "step=-0.5: must be a number, at least 0 and finite"),
    (lambda: usp_time(SHAPE, 2, DGX_H100, ulysses=1, step=float("nan")), "step=nan: must be a number, at least 0"),
    (lambda: method_times(SHAPE, 2, DGX_H100, 1.1), "kernel=1.1: must be at most 1, the peak"),
    (lambda: usp_time(SHAPE, 2, DGX_H100, ulysses=1, way="ring"), "way='ring': use one of flat, grid, two levels"),
    (lambda: usp_time(SHAPE, 2, DGX_H100, ulysses=2, way="grid"), "way='grid': groups of 2 ranks fill no nodes of 8"),
    (attended(ulysses_attention, exchange="tree"), "exchange='tree': use one of hierarchical, grid"),
    (lambda: usp_time(SHAPE, 2, None, ulysses=1), "cluster=None: must be a Cluster"),
    (lambda: double_ring_cost(SHAPE, 1, ranks_per_node=2), "ranks_per_node=2: must divide the 1 rank: use one of [1]"),
    (lambda: usp_time(SHAPE, 4, DGX_H100, ulysses=0), "ulysses=0: must divide the 4 ranks: use one of [1, 2, 4]"),
    (lambda: level_bytes(CONFIG, 1, 9, 2, "none"), "sequence length 9 does not divide into 2 shards"),
    (lambda: level_bytes(CONFIG, 1, -8, 2, "none"), "sequence length -8: there must be at least 1 token"),
    (lambda: level_bytes(CONFIG, 0, 8, 2, "none"), "B=0: must be a whole number, at least 1"),
    (lambda: level_bytes(CONFIG, 1, 8, 0, "none"), "size=0: there must be at least 1 rank"),
    (lambda: level_bytes(CONFIG, 1, 8, 2, "none", itemsize=0), "itemsize=0: must be a whole number, at least 1"),
    (lambda: level_flops(CONFIG, 1, 6, 2, "none"), "sequence length 6 does not divide into 4 chunks"),
    # cuts
    (lambda: split_equal(8, 4, overlap="x"), "overlap='x': must be a whole number"),
    (lambda: split_by_memory(10, 5, 1), "budgets=5: must be a list"),
    (lambda: split_by_memory("10", [5], 1), "length='10': must be a whole number"),
    (lambda: best_size(10, 1, 1, "2"), "world='2': must be a whole number"),
    (lambda: split_by_work(3, 2), "work=3: must be a list"),
    (lambda: split_by_work([3], "2"), "ranks='2': must be a whole number"),
    (lambda: split_by_attention(MAP, "2"), "ranks='2': must be a whole number"),
    (lambda: split_by_attention(MAP, 2, overlap="x"), "overlap='x': must be a whole number"),
    (lambda: split_by_attention(MAP, 2, limit=4.0), "limit=4.0: must be a whole number"),
    (lambda: split_by_text("One. Two.", 1.0, 10), "ranks=1.0: must be a whole number"),
    (lambda: split_by_text(b"One.", 1, 10), "text=b'One.': a string with at least one character is needed"),
    (lambda: causal_work(4.0), "S=4.0: must be a whole number"),
    (lambda: packed_work(8), "documents=8: must be a list"),
    (lambda: head_tail(8.0, 2), "S=8.0: must be a whole number"),
    (lambda: per_document(8, 2), "documents=8: must be a list"),
    (lambda: longest_first([0, 8], 2.0), "ranks=2.0: must be a whole number"),
    (lambda: loads_of(None, [1], 1), "chunks=None: must be a list"),
    (lambda: imbalance([Chunk(0, 0, 0, 1)], None, 1), "work=None: must be a list"),
    # what an attention map says
    (lambda: analyse_attention(MAP, words=[1] * 6), "words[0]=1: must be a string"),
    (lambda: analyse_attention(MAP, sentences=3), "sentences=3: must be a list"),
    (lambda: weight_cut(MAP, [Chunk(0, 0, 0, 7)]), "chunks[0] ends at 7: the map has 6 tokens"),
    (lambda: weight_cut(MAP, 7), "chunks=7: must be a list"),
    (lambda: stem(3), "word=3: must be a string"),
    (lambda: lab_attention(1.0), "layer=1.0: must be a whole number"),
    (lambda: lab_attention(2), "layer=2: the model has the layers 0 and 1"),
    (lambda: sequence_statistics(None), "run=None: must be a Run or a Timeline"),
]


@pytest.mark.parametrize(("call", "said"), ROWS)
def test_bad_input_is_refused_by_name_and_value(call, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        call()
