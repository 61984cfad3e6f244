"""A layout that is not possible is refused before any work: which knob, its value, what would be right."""

from __future__ import annotations

import numpy as np
import pytest

from parlab.nn import LlamaConfig
from parlab.plan import GPT_22B, LLAMA_8B, LLAMA_405B, GPTConfig, Layout, estimate, search
from parlab.world import CLASSROOM, DGX_H100

REFUSED = [
    (dict(dp=0), "dp=0: must be at least 1"),
    (dict(tp=2.5), "tp=2.5: whole numbers"),
    (dict(tp=3), "tp=3: num_attention_heads 32 .* a divisor of 32"),
    (dict(zero=4), "zero=4: use stage 0, 1, 2 or 3"),
    (dict(zero=True), "zero=True: whole numbers are needed"),
    (dict(schedule="2f2b"), "schedule='2f2b': use one of 1f1b, gpipe, looped_bfs"),
    (dict(recompute="some"), "recompute='some': use one of none, selective, mlp.hidden, full"),
    (dict(dp=3), "dp=3, microbatch=1: batch 16 must be a multiple"),
    (dict(pp=32), "pp=32: batch 16 has fewer microbatches a replica"),
    (dict(pp=5, chunks=2, batch=15), r"pp=5, chunks=2: 32 layers .* must divide 32, 33 or 34"),
    (dict(pp=33, batch=64), "pp=33: 32 layers are fewer than so many stages: at most 32"),
    (dict(chunks=2), "chunks=2: one stage a rank where pp is 1"),
    (dict(pp=2, chunks=2, schedule="gpipe"), "chunks=2: gpipe has one stage a rank"),
    (dict(pp=16, chunks=2, dp=1, microbatch=1, cp=3), r"cp=3: sequence 4096 must be a multiple of 2·cp"),
    (
        dict(pp=4, chunks=2, dp=1, microbatch=1, batch=6),
        "pp=4, chunks=2: interleaving needs a batch .6. of whole groups",
    ),
    (dict(tp=8, cp=1, sequence=100, sequence_parallel=True), "cp=1, tp=8: sequence parallelism cuts sequence 100"),
]


@pytest.mark.parametrize(("knobs", "text"), REFUSED, ids=lambda x: str(x)[:40])
def test_refusals_name_the_knob_and_what_would_be_right(knobs, text):
    given = {"batch": 16, "sequence": 4096} | {name: knobs[name] for name in ("batch", "sequence") if name in knobs}
    layout = Layout(**{name: value for name, value in knobs.items() if name not in given})
    with pytest.raises(ValueError, match=text):
        estimate(LLAMA_8B, CLASSROOM, layout, **given)


@pytest.mark.parametrize(
    ("config", "tp", "text"),
    [
        (GPTConfig(64, 48, 2, 24), 32, "tp=32: num_attention_heads 24"),
        (LlamaConfig(64, 48, 90, 2, 12), 12, "tp=12: intermediate_size 90"),
        (LlamaConfig(64, 48, 96, 2, 12, 4), 6, "tp=6: use a divisor or a multiple of num_key_value_heads 4"),
        (GPTConfig(4, 64, 2, 8), 8, "tp=8: at most vocab_size 4"),
    ],
)
def test_a_models_sizes_that_do_not_divide_are_refused(config, tp, text):
    with pytest.raises(ValueError, match=text):
        estimate(config, CLASSROOM, Layout(tp=tp), batch=1, sequence=8)


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
        (Layout(pp=2, chunks=3, group=3), 3, 8),  # a whole group, which pp does not divide
    ],
    ids=str,
)
def test_what_is_just_possible_is_estimated(layout, batch, sequence):
    found = estimate(GPTConfig(8, 64, 6, 8), DGX_H100, layout, batch=batch, sequence=sequence)
    assert 0 < found.total_seconds < 1


@pytest.mark.parametrize(
    ("knob", "text"),
    [
        (dict(sequence_parallel=[False, "no"]), "sequence_parallel='no': must be True or False"),
        (dict(zero=[1, 4]), "zero=4: use stage 0, 1, 2 or 3"),
        (dict(cp=0), "cp=0: must be at least 1"),
        (dict(tp=[1, "2"]), "tp='2': whole numbers are needed"),
        (dict(tpp=1), "tpp=1: the knobs are tp, cp"),
        (dict(tp=(5, 6)), r"tp=\(5, 6\): no layout is possible"),
    ],
    ids=str,
)
def test_a_search_refuses_each_value_of_a_knob_that_is_none(knob, text):
    with pytest.raises(ValueError, match=text):
        search(LLAMA_8B, DGX_H100, 8, batch=8, sequence=4096, **knob)


def test_a_column_with_one_impossible_layout_names_that_one():
    with pytest.raises(ValueError, match="tp=5: num_attention_heads 64"):
        estimate(GPT_22B, CLASSROOM, Layout(tp=np.array([1, 5, 8])), batch=1, sequence=2048)


def test_when_nothing_fits_the_sentence_says_how_much_the_leanest_layout_needs():
    plans = search(LLAMA_405B, DGX_H100, 64, batch=64, sequence=8192)
    assert len(plans) == 0
    assert repr(plans) == f"Plans: of {len(plans.layouts)} layouts 0 fit in 74.5 GiB"
    assert list(plans) == plans.front() == []
    with pytest.raises(ValueError, match=r"none of \d+ layouts fits in 74.5 GiB; the leanest needs 97.4 GiB"):
        _ = plans.best


def test_a_layout_reads_as_text_and_as_columns():
    assert str(Layout(2, 4, 1, 8)) == "dp 2, pp 4, cp 1, tp 8, ZeRO-1, 1f1b"
    assert str(Layout(pp=2, chunks=3, microbatch=2)) == "dp 1, pp 2, cp 1, tp 1, chunks 3, microbatch 2, ZeRO-1, 1f1b"
    columns = Layout(dp=np.array([1, 2]), tp=4, recompute="full", offload=True)
    assert len(columns) == 2
    assert columns[1] == Layout(2, 1, 1, 4, recompute="full", offload=True)
    assert columns.ranks.tolist() == [4, 8]
    assert str(columns) == "columns of 2 layouts"
