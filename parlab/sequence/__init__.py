"""Strategies that cut the sequence: attention over shards of it.

Begin with `ring`: its box is the algorithm. Each method has its own file, with its messages and most with their cost:

`ring`                             K/V around a ring; `packed_ring`: with documents; `homeward`: the way of dK/dV back
`double_ring`, `usp`               a ring in each node and one between them; Ulysses in groups of ranks, and their ring
`ulysses`                          all-to-alls, by the tables of `heads`; `two_levels`: for ranks in nodes
`allgather`, `tree`, `window`      all K/V gathered; the queries gathered; K/V of the nearest neighbours

All of them use `layouts` (which rank has which tokens), `tiles` (the mask between two ranks) and `attend` (the work
between the messages). On paper: `costs`, `heads_cost`, `memory` and `times`. Beside them: `ring_schedule` (the hops as
data), `statistics` (of a run), `gradients` (their mean over the ranks), `checkpointed` (a block that keeps less for its
backward), and `splitting` (a text cut into chunks).

How many ranks does a text need, and which tokens go to a rank with less memory?

>>> from parlab import per_rank, run, sequence
>>> sequence.best_size(length=4096, bytes_per_token=2048, bytes_per_rank=3e6, world=8)
3
>>> [chunk.length for chunk in sequence.split_by_memory(4096, budgets=[6e6, 3e6], bytes_per_token=2048)]
[2730, 1366]

Five patterns of communication compute the same attention; their statistics differ. The hops of one rank are data:

>>> import numpy as np
>>> q = per_rank(sequence.shard(np.ones((1, 4, 16, 8)), 4))
>>> runs = {name: run(sequence.PATTERNS[name][0], 4, q, q, q) for name in ("ring", "tree", "all_to_all")}
>>> {name: sequence.sequence_statistics(done).attention_bytes[0] for name, done in runs.items()}
{'ring': 6144, 'tree': 6528, 'all_to_all': 3168}
>>> ring = sequence.RingSchedule(rank=1, size=4)
>>> [(step.kv_source, ring.mask(step.kv_source)) for step in ring.steps]
[(0, 'full'), (3, 'none'), (2, 'none')]

After the backward, gradients of weights are averaged over the ranks of a sequence:

>>> run(sequence.synchronise_gradients, 2, per_rank([{"w": np.array([1.0])}, {"w": np.array([3.0])}])).results[1]
{'w': array([2.])}
"""

from parlab.sequence.allgather import allgather_attention, allgather_attention_backward, allgather_cost
from parlab.sequence.checkpointed import CheckpointedBlock
from parlab.sequence.costs import (
    AttentionShape,
    RankCost,
    pair_flops,
    score_memory_savings,
    unmasked_pairs,
)
from parlab.sequence.double_ring import (
    double_ring_attention,
    double_ring_attention_backward,
    double_ring_cost,
)
from parlab.sequence.gradients import synchronise_gradients
from parlab.sequence.heads_cost import ulysses_cost, usp_cost
from parlab.sequence.layouts import LAYOUTS, positions, shard, unshard
from parlab.sequence.memory import MEMORY_LEVELS, level_bytes
from parlab.sequence.ring import ring_attention, ring_attention_backward, ring_cost
from parlab.sequence.ring_schedule import RingSchedule, RingStep
from parlab.sequence.splitting.analysis import AttentionAnalysis, HeadPattern, analyse_attention
from parlab.sequence.splitting.attention import split_by_attention, weight_cut
from parlab.sequence.splitting.balance import (
    causal_work,
    imbalance,
    packed_work,
    split_by_work,
)
from parlab.sequence.splitting.chunks import Chunk, best_size, split_by_memory, split_equal
from parlab.sequence.splitting.text import split_by_text, unit_ends
from parlab.sequence.statistics import SequenceStatistics, sequence_statistics
from parlab.sequence.tiles import Tile
from parlab.sequence.times import FLASH_ATTENTION_3, MethodTime, least_step_cost, method_times, usp_time
from parlab.sequence.tree import tree_attention, tree_attention_backward
from parlab.sequence.ulysses import ulysses_attention, ulysses_attention_backward
from parlab.sequence.usp import usp_attention, usp_attention_backward
from parlab.sequence.window import window_attention, window_attention_backward

PATTERNS = {  # of communication, by name: each computes exact attention, or says for which window it does
    "ring": (ring_attention, ring_attention_backward),  # with the neighbours, P − 1 times
    "tree": (tree_attention, tree_attention_backward),  # halves of the group, halves of those, ...
    "point_to_point": (window_attention, window_attention_backward),  # the nearest on the left, once: `window=` only
    "all_to_all": (ulysses_attention, ulysses_attention_backward),  # each with each
    "hierarchical": (double_ring_attention, double_ring_attention_backward),  # in the node, and between nodes
}
