"""Strategies that cut the sequence: attention over shards of it."""

from parlab.sequence.allgather import allgather_attention, allgather_attention_backward, allgather_cost
from parlab.sequence.costs import (
    AttentionShape,
    RankCost,
    hidden_from,
    overlap_tokens,
    pair_flops,
    score_memory_savings,
    unmasked_pairs,
)
from parlab.sequence.double_ring import (
    double_ring_attention,
    double_ring_attention_backward,
    double_ring_cost,
)
from parlab.sequence.layouts import LAYOUTS, positions, shard, unshard
from parlab.sequence.memory import MEMORY_LEVELS, CheckpointedBlock, level_bytes, level_flops
from parlab.sequence.ring import ring_attention, ring_attention_backward, ring_cost
from parlab.sequence.ring_schedule import RingSchedule, RingStep
from parlab.sequence.splitting.analysis import (
    AttentionAnalysis,
    HeadPattern,
    analyse_attention,
    split_by_attention,
    stem,
    weight_cut,
)
from parlab.sequence.splitting.balance import (
    causal_work,
    head_tail,
    imbalance,
    loads_of,
    longest_first,
    packed_work,
    per_document,
    split_by_work,
)
from parlab.sequence.splitting.chunks import Chunk, best_size, split_by_memory, split_equal
from parlab.sequence.splitting.lab import LabAttention, lab_attention, lab_loss, words_of
from parlab.sequence.splitting.text import split_by_text, unit_ends
from parlab.sequence.statistics import SequenceStatistics, sequence_statistics, synchronise_gradients
from parlab.sequence.tiles import Tile
from parlab.sequence.times import FLASH_ATTENTION_3, METHODS, MethodTime, method_times, ring_time, step_time, usp_time
from parlab.sequence.tree import tree_attention, tree_attention_backward
from parlab.sequence.ulysses import ulysses_attention, ulysses_attention_backward
from parlab.sequence.usp import ulysses_cost, usp_attention, usp_attention_backward, usp_cost
from parlab.sequence.window import window_attention, window_attention_backward

PATTERNS = {  # of communication, by name: each computes exact attention, or says for which window it does
    "ring": (ring_attention, ring_attention_backward),  # with the neighbours, P − 1 times
    "tree": (tree_attention, tree_attention_backward),  # halves of the group, halves of those, ...
    "point_to_point": (window_attention, window_attention_backward),  # the nearest on the left, once: `window=` only
    "all_to_all": (ulysses_attention, ulysses_attention_backward),  # each with each
    "hierarchical": (double_ring_attention, double_ring_attention_backward),  # in the node, and between nodes
}
