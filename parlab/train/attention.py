"""Context parallelism in the trainer: attention over cp, by one of three methods."""

from __future__ import annotations

from functools import partial
from typing import Any

from parlab import sequence
from parlab.nn.layers import CAUSAL_ATTENTION, Core
from parlab.world import Comm

METHODS: dict[str, tuple[Any, Any]] = {  # forward, backward
    "ring": (sequence.ring_attention, sequence.ring_attention_backward),
    "ulysses": (sequence.ulysses_attention, sequence.ulysses_attention_backward),
    "allgather": (sequence.allgather_attention, sequence.allgather_attention_backward),
}


def attention_core(cp: Comm, attention: str, layout: str) -> Core:
    """Causal attention over the ranks of `cp`; serial attention on one rank."""
    if cp.size == 1:
        return CAUSAL_ATTENTION
    forward, backward = METHODS[attention]
    options: dict[str, Any] = {"causal": True}
    if attention != "ulysses":  # which takes contiguous shards alone
        options["layout"] = layout
    return Core(partial(forward, cp, **options), partial(backward, cp, **options))
