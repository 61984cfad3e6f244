"""Strategies that cut the matrices: columns, then rows, and what the ranks send where the two meet.

Begin with `operators`, the four messages, and `linear`, columns and rows between them. Then:

`layers`                    attention and the MLP, each of columns and the rows that read them
`vocabulary`                the embedding, the head and the loss, cut along the vocabulary
`llama`, `compared`         the whole model; its gradients beside the serial ones
`slices`                    the part of each weight that a rank owns
`recompute`                 a block that keeps its input alone
`costs`, `kept`             messages, bytes and seconds on paper; memory that a block keeps
"""

from parlab.tensor.compared import gradients_of_ranks
from parlab.tensor.costs import (
    Collective,
    Time,
    Traffic,
    block_collectives,
    block_time,
    traffic,
)
from parlab.tensor.kept import llama_kept_by_place
from parlab.tensor.layers import (
    ParallelAttention,
    ParallelMLP,
    SummedOverTokens,
)
from parlab.tensor.linear import ColumnParallelLinear, ParallelRegion, RowParallelLinear
from parlab.tensor.llama import ParallelLlama
from parlab.tensor.operators import (
    COPY,
    GATHER,
    NOTHING,
    REDUCE,
    SCATTER,
    Operator,
    copy,
    copy_backward,
    gather,
    gather_backward,
    reduce,
    reduce_backward,
    scatter,
    scatter_backward,
)
from parlab.tensor.recompute import Recompute
from parlab.tensor.slices import WeightSlice, shard_weights, unshard_weights, weight_slices
from parlab.tensor.vocabulary import (
    ParallelHead,
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
    vocab_parallel_cross_entropy_backward,
)
