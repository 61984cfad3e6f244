"""ZeRO: data parallelism whose ranks share the model's state instead of repeating it."""

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
