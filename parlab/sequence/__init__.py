"""Strategies that cut the sequence: attention over shards of it."""

from parlab.sequence.allgather import allgather_attention, allgather_attention_backward, allgather_cost
from parlab.sequence.costs import (
    AttentionShape,
    RankCost,
    attention_flops,
    backward_bytes_held,
    bytes_per_hop,
    bytes_sent,
    forward_bytes_held,
    hops,
    load_ratio,
    overlap_tokens,
    score_bytes,
    score_memory_savings,
    striped_speedup,
    unmasked_pairs,
)
from parlab.sequence.double_ring import double_ring_attention, double_ring_attention_backward, double_ring_cost
from parlab.sequence.layouts import LAYOUTS, positions, shard, unshard
from parlab.sequence.patterns import PATTERNS
from parlab.sequence.ring import ring_attention, ring_attention_backward
from parlab.sequence.schedule import Block, RingSchedule, RingStep
from parlab.sequence.tree import tree_attention, tree_attention_backward, tree_cost
from parlab.sequence.ulysses import ulysses_attention, ulysses_attention_backward, ulysses_cost
from parlab.sequence.usp import usp_attention, usp_attention_backward, usp_cost
from parlab.sequence.window import window_attention, window_attention_backward, window_cost

__all__ = [
    "LAYOUTS",
    "PATTERNS",
    "AttentionShape",
    "Block",
    "RankCost",
    "RingSchedule",
    "RingStep",
    "allgather_attention",
    "allgather_attention_backward",
    "allgather_cost",
    "attention_flops",
    "backward_bytes_held",
    "bytes_per_hop",
    "bytes_sent",
    "double_ring_attention",
    "double_ring_attention_backward",
    "double_ring_cost",
    "forward_bytes_held",
    "hops",
    "load_ratio",
    "overlap_tokens",
    "positions",
    "ring_attention",
    "ring_attention_backward",
    "score_bytes",
    "score_memory_savings",
    "shard",
    "striped_speedup",
    "tree_attention",
    "tree_attention_backward",
    "tree_cost",
    "ulysses_attention",
    "ulysses_attention_backward",
    "ulysses_cost",
    "unmasked_pairs",
    "unshard",
    "usp_attention",
    "usp_attention_backward",
    "usp_cost",
    "window_attention",
    "window_attention_backward",
    "window_cost",
]
