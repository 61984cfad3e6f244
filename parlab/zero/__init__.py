"""ZeRO: data parallelism whose ranks share the model's state instead of repeating it.

Begin with `step`: the algorithm on one flat array, an all-reduce with the optimizer in the middle. Then:

`zero`                      the same for all blocks of a model: the table of the stages, and the box of a step
`weights`, `gradients`      how it holds and sends W and G of a block, sharded or whole; `buckets`: G of stage 0
`state`                     the optimizer's state of a shard
`precision`                 the loss scale and the norm, which decide each step
`prefetch`, `shards`        which block comes next; the cuts of flat arrays
`arguments`                 the options of `Zero`, how a model is cut among ranks (`ModelParallel`), and the checks
`training`, `pieces`        its callers: a model's forward and backward, block by block; and what a checkpoint needs
`costs`                     bytes and time on paper, and bytes as they were counted
"""

from parlab.zero.arguments import Options
from parlab.zero.costs import (
    MIXED,
    StateBytes,
    elements_sent,
    model_state_bytes,
    state_bytes_held,
    step_waiting,
    tokens_to_hide_a_gather,
)
from parlab.zero.precision import LossScale, StepResult
from parlab.zero.shards import ShardMap, shard_range
from parlab.zero.state import Offload
from parlab.zero.step import zero_1
from parlab.zero.training import forward_backward, replica_of, train_replica
from parlab.zero.zero import Zero
