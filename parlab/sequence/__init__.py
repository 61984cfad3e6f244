"""Strategies that cut the sequence: attention over shards of it."""

from parlab.sequence.analysis import AttentionAnalysis, HeadPattern, analyse_attention, stem
from parlab.sequence.attention_split import split_by_attention
from parlab.sequence.balance import (
    causal_work,
    head_tail,
    imbalance,
    loads_of,
    longest_first,
    packed_work,
    per_document,
    split_by_work,
)
from parlab.sequence.chunks import Chunk, best_size, split_by_memory, split_equal
from parlab.sequence.costs import (
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
from parlab.sequence.lab import LabAttention, lab_attention, words_of
from parlab.sequence.layouts import LAYOUTS, positions, shard, unshard
from parlab.sequence.memory import MEMORY_LEVELS, CheckpointedBlock, MemoryLevel, level_bytes, level_flops
from parlab.sequence.ring import ring_attention, ring_attention_backward
from parlab.sequence.schedule import Block, RingSchedule, RingStep
from parlab.sequence.statistics import SequenceStatistics, sequence_statistics, synchronise_gradients
from parlab.sequence.text_split import split_by_text, unit_ends

__all__ = [
    "LAYOUTS",
    "MEMORY_LEVELS",
    "AttentionAnalysis",
    "Block",
    "CheckpointedBlock",
    "Chunk",
    "HeadPattern",
    "LabAttention",
    "MemoryLevel",
    "RingSchedule",
    "RingStep",
    "SequenceStatistics",
    "analyse_attention",
    "attention_flops",
    "backward_bytes_held",
    "best_size",
    "bytes_per_hop",
    "bytes_sent",
    "causal_work",
    "forward_bytes_held",
    "head_tail",
    "hops",
    "imbalance",
    "lab_attention",
    "level_bytes",
    "level_flops",
    "load_ratio",
    "loads_of",
    "longest_first",
    "overlap_tokens",
    "packed_work",
    "per_document",
    "positions",
    "ring_attention",
    "ring_attention_backward",
    "score_bytes",
    "score_memory_savings",
    "sequence_statistics",
    "shard",
    "split_by_attention",
    "split_by_memory",
    "split_by_text",
    "split_by_work",
    "split_equal",
    "stem",
    "striped_speedup",
    "synchronise_gradients",
    "unit_ends",
    "unmasked_pairs",
    "unshard",
    "words_of",
]
