"""Bad input: refused before any work, with the argument's name, its value and what would be right."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from parlab import run
from parlab.tensor import (
    Collective,
    ColumnParallelLinear,
    ParallelAttention,
    ParallelLlama,
    ParallelMLP,
    RowParallelLinear,
    VocabParallelEmbedding,
    block_collectives,
    block_time,
    gradients_of_ranks,
    llama_kept_by_place,
    shard_weights,
    traffic,
    unshard_weights,
    vocab_parallel_cross_entropy,
    weight_slices,
)
from parlab.world import CLASSROOM
from tests.tensor.models import config, model, text

CONFIG, MODEL = config(), model()
MATRIX, LOGITS, TARGETS = np.ones((4, 8)), np.zeros((1, 3, 2)), np.array([[0, 1, 3]])
WHOLE, FLAG = "must be a whole number, at least 1", "must be True or False"


def on_paper(function, **changed):
    """A closed form with one argument changed."""
    usual = {"config": CONFIG, "B": 1, "S": 8, "size": 2, "itemsize": 4}
    if function is block_time:
        usual["cluster"] = CLASSROOM
    return lambda: function(**{**usual, **changed})


def on_ranks(function, *args, size=2, **options):
    """A layer made by 2 ranks."""
    return lambda: run(lambda comm: function(comm, *args, **options), size)


ROWS = [
    *[
        (on_paper(function, config=None), "config=None: must be a LlamaConfig")
        for function in (block_collectives, block_time, llama_kept_by_place)
    ],
    *[
        (
            on_paper(function, size=3),
            "num_attention_heads 8 do not divide among 3 tensor-parallel ranks: use a multiple",
        )
        for function in (block_time, llama_kept_by_place)
    ],
    *[
        (on_paper(function, sequence_parallel="no"), f"sequence_parallel='no': {FLAG}")
        for function in (block_collectives, llama_kept_by_place)
    ],
    *[(on_paper(function, backward="no"), f"backward='no': {FLAG}") for function in (block_collectives, block_time)],
    (
        on_paper(llama_kept_by_place, S=7, sequence_parallel=True),
        "sequence length 7 does not divide among 2 tensor-parallel ranks: use a multiple of 2",
    ),
    (on_paper(block_collectives, S=8.0), f"S=8.0: {WHOLE}"),
    (on_paper(block_time, cluster="H100"), "cluster='H100': must be a Cluster"),
    (on_paper(block_time, algorithm="tree"), "algorithm='tree': use one of ring, rings"),
    (
        on_paper(block_time, size=4, algorithm="rings", cluster=replace(CLASSROOM, ranks_per_node=3)),
        "size=4: a ring through each card needs whole nodes of 3 ranks",
    ),
    (lambda: traffic(3, 2), "collectives=3: must be a list of Collective"),
    (lambda: traffic([3], 2), "collectives=[3]: must be a list of Collective"),
    (lambda: traffic([Collective("all_reduce", "y", 8, 4, 2)], 0), f"size=0: {WHOLE}"),
    (lambda: weight_slices("llama", 0, 2), "config='llama': must be a LlamaConfig"),
    (lambda: weight_slices(CONFIG, 2, 2), "rank=2: the ranks of this group are 0 to 1"),
    (lambda: shard_weights(CONFIG, None, 0, 2), "weights=None: must be a Mapping"),
    (lambda: unshard_weights(CONFIG, []), "shards=[]: must be a list with a dictionary of arrays for each rank"),
    (lambda: unshard_weights(CONFIG, 3), "shards=3: must be a list with a dictionary of arrays for each rank"),
    (lambda: unshard_weights("llama", [MODEL.weights]), "config='llama': must be a LlamaConfig"),
    (lambda: unshard_weights(CONFIG, [3]), "shards=[3]: must be a list with a dictionary of arrays for each rank"),
    (on_ranks(ColumnParallelLinear.from_full, [1.0]), "weight=[1.0]: must be a matrix"),
    (
        on_ranks(ColumnParallelLinear.from_full, MATRIX[0]),
        "weight=array([1., 1., 1., 1., 1., 1., 1., 1.]): must be a matrix",
    ),
    (on_ranks(ColumnParallelLinear, [MATRIX]), "weights=[array("),
    *[
        (on_ranks(layer.from_full, MATRIX, 3), "name=3: must be a string")
        for layer in (ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding)
    ],
    (on_ranks(ColumnParallelLinear.from_full, MATRIX, sequence_parallel="no"), f"sequence_parallel='no': {FLAG}"),
    (on_ranks(VocabParallelEmbedding.from_full, None), "weight=None: must be a matrix"),
    (on_ranks(VocabParallelEmbedding, {"weight": MATRIX}, "weight", 0), f"vocab_size=0: {WHOLE}"),
    (on_ranks(VocabParallelEmbedding, None, "weight", 4), "weights=None: must be a Mapping"),
    (on_ranks(ParallelMLP.from_full, MODEL.weights, "mlp"), "weights hold no 'mlp.gate_proj.weight': look at prefix"),
    (on_ranks(ParallelMLP.from_full, MODEL.weights, 3), "weights hold no '3.gate_proj.weight': look at prefix"),
    (
        on_ranks(ParallelMLP.from_full, MODEL.weights, "model.layers.0.mlp", sequence_parallel="no"),
        f"sequence_parallel='no': {FLAG}",
    ),
    (on_ranks(ParallelMLP.from_full, [MATRIX], "mlp"), "weights=[array("),
    (on_ranks(ParallelAttention.from_full, [MATRIX], "a", 2, None), "weights=[array("),
    (on_ranks(ParallelAttention.from_full, MODEL.weights, None, 2, None), "weights hold no 'None.q_proj.weight'"),
    (on_ranks(ParallelAttention.from_full, MODEL.weights, "a", 2, None), "weights hold no 'a.q_proj.weight'"),
    (
        on_ranks(ParallelAttention.from_full, MODEL.weights, "model.layers.0.self_attn", 0, None),
        f"head_dim=0: {WHOLE}",
    ),
    (
        on_ranks(ParallelAttention.from_full, MODEL.weights, "model.layers.0.self_attn", 99, None),
        "head_dim=99: must divide the 16 columns of the weights",
    ),
    (on_ranks(vocab_parallel_cross_entropy, None, TARGETS), "logits=None: must be an array"),
    (on_ranks(vocab_parallel_cross_entropy, LOGITS, [1]), "targets=[1]: must be an array"),
    (on_ranks(vocab_parallel_cross_entropy, LOGITS, TARGETS, 1.5), f"vocab_size=1.5: {WHOLE}"),
    (on_ranks(vocab_parallel_cross_entropy, LOGITS, TARGETS + 1), "targets hold 1..4: the vocabulary has 0..3"),
    (
        on_ranks(vocab_parallel_cross_entropy, LOGITS, TARGETS[0]),
        "targets have shape (3,), logits (1, 3, 2): one target a token is needed, (1, 3)",
    ),
    (
        on_ranks(vocab_parallel_cross_entropy, LOGITS, TARGETS, 5),
        "logits hold 2 tokens of the vocabulary: of 5, rank 0 of 2 owns 3",
    ),
    (
        on_ranks(ColumnParallelLinear.from_full, MATRIX, size=3),
        "the number of columns 8 does not divide among 3 tensor-parallel ranks: use a multiple of 3",
    ),
    (
        on_ranks(ParallelAttention.from_full, MODEL.weights, "model.layers.0.self_attn", 2, None, size=3),
        "num_attention_heads 8 do not divide among 3 tensor-parallel ranks: use a multiple of 3",
    ),
    (on_ranks(ParallelLlama.from_full, "llama"), "model='llama': must be a Llama"),
    (on_ranks(ParallelLlama, "llama", {}), "config='llama': must be a LlamaConfig"),
    (on_ranks(ParallelLlama, CONFIG, None), "weights=None: must be a Mapping"),
    (on_ranks(ParallelLlama.from_full, MODEL, sequence_parallel="no"), f"sequence_parallel='no': {FLAG}"),
    (lambda: gradients_of_ranks("llama", *text(), 2), "model='llama': must be a Llama"),
    (
        lambda: gradients_of_ranks(MODEL, None, text()[1], 2),
        "tokens: an array [batch, sequence] of whole numbers is needed",
    ),
    (lambda: gradients_of_ranks(MODEL, text()[0], None, 2), "targets: an array [batch, sequence] of whole numbers"),
    (lambda: gradients_of_ranks(MODEL, *text(), 0), f"size=0: {WHOLE}"),
    (lambda: gradients_of_ranks(MODEL, *text(), 2, "nothing"), "change='nothing': must be a function"),
]


@pytest.mark.parametrize(("call", "message"), ROWS, ids=[f"{i} {row[1]:.40}" for i, row in enumerate(ROWS)])
def test_bad_input_is_a_value_error_that_says_what_would_be_right(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
