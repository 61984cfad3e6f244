"""Every strategy in one training step: the mesh of ranks, the trainer that runs a model on it, and its checkpoints.

Begin with `step`: the step, and the axes over which each gradient is summed. Then:

- `mesh`: the groups of ranks along each axis.
- `job`: what is trained, on which ranks, and how.
- `parts`: all that a step works with; `trainer`, the door, puts it together, in this order:

  - `rank_model`: a rank's slices of the weights, in ZeRO's blocks; `attention` comes in over cp, `mixture` over ep.
  - `stages`: a rank's pipeline stages; ZeRO gathers their weights, and takes their gradients.
  - `sharding`: ZeRO over dp × cp, and for experts over edp.

- `balance`: the loads of experts, for an auxiliary loss or a bias; a dense model needs none of it.
- `checkpoint`: saving and loading; `pieces` says which elements lie where; `index` and `lock` keep them.
- `costs`: the bytes of a step, counted by strategy.
- `data`: the order of the samples.
"""

from parlab.train.checkpoint import export, load, save
from parlab.train.costs import bytes_by_strategy
from parlab.train.data import Samples
from parlab.train.index import read_index
from parlab.train.mesh import Mesh
from parlab.train.step import TrainResult
from parlab.train.trainer import Trainer
