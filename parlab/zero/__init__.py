"""ZeRO: data parallelism whose ranks share the model's state instead of repeating it.

Begin with `step`: the algorithm on one flat array, an all-reduce with the optimizer in the middle. Then:

`weights`                   the table of the three stages, and a block's weights; `gradients` and `state` have the rest
`zero`                      all blocks of a model: `Zero._step` says after each line what a rank has
`replica`                   what it shares with `data_parallel`, the baseline: the order of calls, and their checks
`precision`                 the loss scale and the norm, which decide each step
`training`                  a model's forward and backward, block by block
`shards`                    the cut of a flat vector
`costs`, `accounting`       bytes and time on paper, and bytes as they were counted
"""

from parlab.zero.accounting import state_bytes_held
from parlab.zero.costs import (
    MIXED,
    StateBytes,
    elements_sent,
    model_state_bytes,
    step_waiting,
    tokens_to_hide_a_gather,
)
from parlab.zero.data_parallel import DataParallel
from parlab.zero.precision import LossScale, StepResult
from parlab.zero.replica import Replica
from parlab.zero.shards import ShardMap, shard_range
from parlab.zero.state import Offload
from parlab.zero.step import zero_1
from parlab.zero.training import forward_backward, replica_of, train_replica
from parlab.zero.zero import Zero
