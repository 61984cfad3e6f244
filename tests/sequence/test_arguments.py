"""Bad input to the sequence room is refused by name and value, before any work or message.

Each argument of each function gets what it cannot take; and each rule with words of its own is one row.
"""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

from parlab import run, sequence
from parlab.nn import LlamaConfig
from parlab.sequence import (
    AttentionShape,
    CheckpointedBlock,
    Chunk,
    RingSchedule,
    allgather_cost,
    analyse_attention,
    best_size,
    imbalance,
    level_bytes,
    method_times,
    packed_work,
    positions,
    ring_cost,
    shard,
    split_by_attention,
    split_by_memory,
    split_by_text,
    split_by_work,
    split_equal,
    unshard,
    usp_cost,
    usp_time,
    weight_cut,
)
from parlab.sequence.heads import heads_of_ranks
from parlab.world import DGX_H100
from tests.sequence.methods import METHODS, pair
from tests.sequence.test_methods import NEEDED

SHAPE = AttentionShape(S=12, H=12, G=12, D=2, itemsize=4)
CONFIG = LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
MAP = np.full((1, 6, 6), 1 / 6)
RANKS = {"size": 1, "rank": 0, "ranks_per_node": 1}
TEXT = {"text": "One. Two.", "ranks": 1, "limit": 9, "unit": "sentence"}

GOOD = {  # the arguments of each function that it checks, with values that it takes
    "positions": {"S": 8, "size": 2, "layout": "zigzag", "documents": [0, 4, 8]},
    "unmasked_pairs": {"S": 8, "size": 2, "layout": "zigzag", "causal": True},
    "score_memory_savings": {"P": 2},
    "pair_flops": {"pairs": 1, "B": 1, "H": 2, "D": 4, "backward": False},
    "AttentionShape": {"S": 16, "H": 4, "G": 2, "D": 4, "itemsize": 2, "B": 1},
    "ring_cost": {"size": 2, "rank": 1, "causal": True, "layout": "zigzag", "documents": [0, 12], "backward": True},
    "allgather_cost": RANKS | {"causal": True, "layout": "zigzag", "documents": [0, 12]},
    "double_ring_cost": RANKS | {"backward": True},
    "ulysses_cost": RANKS | {"backward": True},
    "usp_cost": RANKS | {"ulysses": 1, "backward": True},
    "method_times": {"size": 2, "cluster": DGX_H100, "kernel": 1, "step_cost": 0},
    "usp_time": {"size": 2, "cluster": DGX_H100, "ulysses": 1, "way": "flat", "step_cost": 0},
    "least_step_cost": {"size": 2, "cluster": DGX_H100},
    "level_bytes": {"B": 1, "S": 8, "size": 2, "level": "low", "itemsize": 4},
    "split_equal": {"length": 8, "limit": 4, "overlap": 1, "ranks": 2},
    "split_by_memory": {"length": 8, "budgets": [9], "bytes_per_token": 1},
    "best_size": {"length": 8, "bytes_per_token": 1, "bytes_per_rank": 9, "world": 2},
    "split_by_work": {"work": [1, 2], "ranks": 2},
    "split_by_text": TEXT,
    "split_by_attention": {"weights": MAP, "ranks": 2, "limit": 4, "overlap": 1},
    "analyse_attention": {"weights": MAP, "sentences": [6]},
    "weight_cut": {"weights": MAP, "chunks": [Chunk(0, 0, 0, 6)]},
    "causal_work": {"S": 4},
    "packed_work": {"documents": [0, 4]},
    "imbalance": {"chunks": [Chunk(0, 0, 0, 1)], "work": [1], "ranks": 1},
    "sequence_statistics": {"run": run(lambda comm: None, 1)},
    "RingSchedule": {"rank": 0, "size": 2},
}
OF_A_SHAPE = {"method_times", "usp_time"} | {name for name in GOOD if name.endswith("_cost")}
FREE = {("pair_flops", "pairs")}  # of any number, as a formula has it


@pytest.mark.parametrize("bad", [2.5j, "no", -1], ids=str)
@pytest.mark.parametrize("name", GOOD)
def test_an_argument_that_cannot_be_is_refused_by_its_name(name, bad):
    first = {"level_bytes": [CONFIG]}.get(name, [SHAPE] if name in OF_A_SHAPE else [])
    call = partial(getattr(sequence, name), *first)
    call(**GOOD[name])
    for argument in GOOD[name]:
        if (name, argument) not in FREE and not (bad == "no" and argument in ("text", "word")):
            with pytest.raises(ValueError, match=rf"^{argument}\b|sequence length -1|documents|a ring of -1"):
                call(**GOOD[name] | {argument: bad})


ROWS = [  # rules with words of their own
    (lambda: AttentionShape(16, 4, 3, 4, 2), "H=4: must be a multiple of G=3"),
    (lambda: RingSchedule(2, 2), "rank=2: a ring of 2 has ranks 0 to 1"),
    (lambda: RingSchedule(0, 4).tile(4, 2), "source=4: a ring of 4 has ranks 0 to 3"),
    (lambda: ring_cost(SHAPE, 3, 3), "rank=3: the ranks of this group are 0 to 2"),
    (lambda: ring_cost(SHAPE, 5), "sequence length 12 does not divide into 5 shards"),
    (lambda: allgather_cost(SHAPE, 8), "sequence length 12 does not divide into 8 shards"),
    (lambda: usp_cost(SHAPE, 4, ulysses=3), "ulysses=3: must divide the 4 ranks: use one of [1, 2, 4]"),
    (lambda: usp_time(SHAPE, 2, DGX_H100, ulysses=2, way="grid"), "way='grid': groups of 2 ranks fill no nodes of 8"),
    (lambda: method_times(SHAPE, 2, DGX_H100, 1.1), "kernel=1.1: must be at most 1, the peak"),
    (
        lambda: positions(10, 4),
        "sequence length 10 does not divide into 4 shards: use a multiple of 4 (zigzag needs 8)",
    ),
    (lambda: positions(3, 1, "zigzag"), "sequence length 3 does not divide into 2 chunks, two for each of 1 rank: use"),
    (lambda: positions(12, 0, "striped"), "size=0: there must be at least 1 rank"),
    (lambda: positions(16, 4, "zigzag", [0, 4, 16]), "document 0 has 4 tokens, which do not divide into 8 chunks"),
    (lambda: positions(16, 4, "zigzag", [0, 4, 16]), "two for each of 4 ranks: pad it with 4 to 8"),
    (lambda: positions(8, 2, documents="08"), "documents='08': must be a list"),
    (lambda: shard(np.zeros((4, 2)), 2, axis=2), "axis=2: the array has 2 axes"),
    (lambda: unshard([np.zeros((2, 2)), np.zeros((3, 2))]), "shards have the shapes [(2, 2), (3, 2)]: all must have"),
    (lambda: unshard([]), "shards have the shapes []: all must have the same, and there must be one"),
    (lambda: level_bytes(CONFIG, 1, 9, 2, "none"), "sequence length 9 does not divide into 2 shards"),
    (lambda: CheckpointedBlock(None, None, "most"), "level='most': use one of none, low, medium, high, extreme"),
    (lambda: split_equal(10, 5, 5), "overlap=5: must be at least 0 and below limit=5"),
    (lambda: split_by_attention(MAP, 2, limit=0), "limit=0: must be a whole number, at least 1"),
    (lambda: split_by_attention(MAP, 2, overlap="1"), "overlap='1': must be a whole number"),
    (lambda: split_by_memory(10, [], 1), "budgets=0: must be a whole number, at least 1"),
    (lambda: split_by_memory(10, [9, 100], 10), "budgets[0]=9: no memory for one token of 10 bytes"),
    (lambda: split_by_memory(11, [40, 65], 10), "budgets=[40, 65]: room for 10 tokens of 10 bytes, 11 are needed"),
    (lambda: split_by_memory(10, [9], 0), "bytes_per_token=0: must be a number greater than 0 and finite"),
    (lambda: best_size(10, 8, 7, 4), "bytes_per_rank=7: no memory for one token of 8 bytes"),
    (lambda: best_size(10, 8, 16, 4), "world=4: 10 tokens of 8 bytes need 5 ranks of 16"),
    (lambda: split_by_work([], 2), "work is empty: there must be at least 1 token"),
    (lambda: split_by_work([1, -1], 2), "work[1]=-1: must be a number, at least 0 and finite"),
    (lambda: packed_work([]), "sequence length 0: there must be at least 1 token"),
    (lambda: packed_work([0, 4, 4]), "documents=[0, 4, 4]: must rise from 0"),
    (lambda: imbalance([Chunk(0, 2, 0, 1)], [1], 2), "there are ranks=2 and work for 1 tokens"),
    (lambda: imbalance([Chunk(0, 0, 0, 2)], [1], 2), "there are ranks=2 and work for 1 tokens"),
    (lambda: split_by_text(**TEXT | {"text": b"One."}), "text=b'One.': a string with at least one character is needed"),
    (lambda: split_by_text(**TEXT | {"text": ""}), "text='': a string with at least one character is needed"),
    (lambda: split_by_text("a字", 1, 2), "limit=2: the text has a character of 3 bytes"),
    (lambda: split_by_attention(np.ones((1, 4, 5)), 2), "weights has shape (1, 4, 5): an array [H, S, S] is needed"),
    (lambda: split_by_attention(np.ones((1, 4, 4), int), 2), "weights of int64: finite numbers"),
    (lambda: split_by_attention(MAP * np.nan, 2), "weights of float64: finite numbers, none of them negative"),
    (lambda: weight_cut(-MAP, []), "weights of float64: finite numbers, none of them negative, are needed"),
    (lambda: weight_cut(MAP, [Chunk(0, 0, 0, 7)]), "chunks[0] ends at 7: the map has 6 tokens"),
    (lambda: analyse_attention(MAP, [3, 3]), "sentences=[3, 3]: where each sentence ends is needed, growing, within 1"),
    (lambda: analyse_attention(MAP, [0, 3]), "sentences=[0, 3]: where each sentence ends is needed"),
    (lambda: analyse_attention(MAP, [7]), "sentences=[7]: where each sentence ends is needed"),
    (lambda: heads_of_ranks(1, 1, 2), "2 ranks share 1 query head: a rank needs at least one, so use at most 1 rank"),
]


@pytest.mark.parametrize(("call", "said"), ROWS, ids=[said for _, said in ROWS])
def test_each_rule_says_what_would_be_right(call, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        call()


# The methods: on 4 ranks, 16 tokens, 4 query heads; the backward refuses the same

TAKES = {  # beside causal and scale
    "ring": ["layout", "documents"],
    "ulysses": ["documents", "ranks_per_node"],
    "allgather": ["layout", "documents", "ranks_per_node"],
    "usp": ["ulysses", "layout", "ranks_per_node"],
    "double_ring": ["ranks_per_node", "crossing", "layout"],
    "tree": ["replicated"],
    "window": ["window"],
}
FORMS = {"dout": (1, 4, 4, 3), "q": (1, 4, 4, 3), "k": (1, 4, 4, 3), "v": (1, 4, 4, 3)}
BAD_FORMS = {
    "q has shape (4, 4, 3): [batch, heads, sequence, head size] is needed": {"q": (4, 4, 3)},
    "k has shape (1, 4, 4, 3) and v (1, 4, 4, 5): they must be equal": {"v": (1, 4, 4, 5)},
    "4 query heads do not divide among 3 key/value heads": {"k": (1, 3, 4, 3), "v": (1, 3, 4, 3)},
    "q has sequence length 4 and k 6: they must be equal": {"k": (1, 4, 6, 3), "v": (1, 4, 6, 3)},
}
BAD = [
    ("ulysses", {"documents": [0, 5]}, "documents=[0, 5]: must rise from 0 to the sequence length 16"),
    ("ring", {"documents": [0, 9, 9, 16]}, "documents=[0, 9, 9, 16]: must rise from 0 to the sequence length 16"),
    ("ring", {"documents": [0, 3, 16], "layout": "zigzag"}, "document 0 has 3 tokens, which do not divide into 8"),
    ("ulysses", {"ranks_per_node": 3}, "ranks_per_node=3: must divide the 4 ranks: use one of [1, 2, 4]"),
    ("usp", {"ulysses": 2, "layout": "striped"}, "layout='striped': a group's tokens would be no stripe"),
    ("double_ring", {"crossing": "first"}, "crossing='first': use one of early, late"),
    ("window", {"window": None}, "window=None: neighbours alone give a sliding window's attention only; pass window=1"),
    ("window", {"window": 17}, "window=17: a query sees itself and the tokens before it, 1 to 16 in all"),
    ("window", {"window": 2, "causal": False}, "causal=False: a sliding window sees no later token"),
]


def refused(method, how, text, backward, size=4, **forms):
    """Assert that this pass refuses these arguments, and shapes of arrays, before any message."""
    forms = FORMS | {"out": FORMS["q"], "lse": (1, 4, 4)} | forms
    names = ("dout", "q", "k", "v", "out", "lse") if backward else ("q", "k", "v")

    def program(comm):
        pair(method)[backward](comm, *(np.zeros(forms[name]) for name in names), **how)

    with pytest.raises(ValueError, match=text) as caught:
        run(program, size)
    assert not caught.value.run.timeline.transfers


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_each_argument_of_a_method_is_checked_and_no_other_is_taken(method, backward):
    for name in ["causal", "scale", *TAKES[method]]:
        refused(method, NEEDED.get(method, {}) | {name: "no"}, rf"^{name}='no'", backward)
    with pytest.raises(TypeError, match="unexpected keyword argument 'heads'"):
        pair(method)[backward](None, *range(6 if backward else 3), heads=1)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("method", "how", "text"), BAD)
def test_what_a_method_cannot_do_is_refused(method, how, text, backward):
    refused(method, how, re.escape(text), backward)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("text", BAD_FORMS)
def test_arrays_that_are_no_shards_are_refused(text, backward):
    refused("ring", {}, re.escape(text), backward, **BAD_FORMS[text])


def test_what_depends_on_the_sizes_is_refused():
    odd = dict.fromkeys((*FORMS, "out"), (1, 4, 3, 3)) | {"lse": (1, 4, 3)}
    refused("ring", {"layout": "zigzag"}, "sequence length 12 does not divide into 8 chunks", False, **odd)
    refused("ulysses", {}, "8 ranks share 4 query heads: .* use at most 4 ranks", True, size=8)
    refused("usp", {"ulysses": 4, "ranks_per_node": 6}, "ranks_per_node=6: must divide the group of 4", False, size=12)
    refused("tree", {"replicated": True}, "q has 17 queries: the sequence has 16 tokens", False, q=(1, 4, 17, 3))
    for name in ("dout", "out", "lse"):
        refused("ring", {}, rf"{name} has shape \(1, 4, 5\) and is float64", True, **{name: (1, 4, 5)})


def test_a_tuple_of_arrays_is_no_q():
    x = np.ones((1, 2, 4, 3))
    with pytest.raises(TypeError, match="q is a tuple: an array"):
        run(sequence.ring_attention, 2, (x,) * 4, x, x)
