"""The share of a rank in a microbatch: the sizes from which its work, its traffic and its activations follow.

Invariant: all ranks of a pipeline stage have equal shares, because every axis cuts evenly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parlab.pipeline.closed_forms import Column
from parlab.plan.layout import Layout
from parlab.plan.sizes import Sizes
from parlab.plan.software import Software


class Share(NamedTuple):
    """Of one microbatch, on one rank.

    Fields:
        tokens: cp cuts them; between tensor parallelism's regions `token_ranks` divide them once more.
        token_ranks: tp with sequence parallelism, else 1.
        input_bytes: of a layer's input, on all of `token_ranks`.
        kv_heads: key/value heads. Where tp is more than the model has, ranks share a head and hold it each.
        attention_pairs: (query, key, head) triples that attention computes.
        expert_rows: rows that it sends to experts, and at an even load gets from others.
        loss_columns: columns of the logits over which its loss runs.
        logit_bytes: of all logits.
    """

    tokens: Column
    token_ranks: Column
    input_bytes: Column
    kv_heads: Column
    attention_pairs: Column
    expert_rows: Column
    loss_columns: Column
    logit_bytes: Column

    @property
    def own_tokens(self) -> Column:
        """Tokens that it has between tensor parallelism's regions."""
        return self.tokens / self.token_ranks

    @property
    def own_input_bytes(self) -> Column:
        """Bytes of a layer's input that it holds there."""
        return self.input_bytes / self.token_ranks


def share_of(model: Sizes, layout: Layout, sequence: int, itemsize: int, software: Software) -> Share:
    """The record of columns of layouts; `itemsize` of an activation's element."""
    tokens = layout.microbatch * sequence / layout.cp
    token_ranks = np.where(layout.sequence_parallel, layout.tp, 1)
    return Share(
        tokens=tokens,
        token_ranks=token_ranks,
        input_bytes=itemsize * tokens * model.hidden_size,
        kv_heads=np.maximum(model.kv_heads / layout.tp, 1),
        # The zigzag layout gives each rank of cp equally many
        attention_pairs=layout.microbatch * model.pairs(sequence) * model.heads / (layout.tp * layout.cp),
        expert_rows=tokens / token_ranks * model.experts_per_token,
        loss_columns=model.vocab_size / layout.tp if software.cuts_logits else model.vocab_size,
        logit_bytes=itemsize * tokens * model.vocab_size,
    )
