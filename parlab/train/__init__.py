"""Every strategy in one training step: the mesh of ranks, the trainer that runs a model on it, and its checkpoints.

Begin with `step`: the step, and the axes over which each gradient is summed. Then:

- `mesh`: the groups of ranks along each axis.
- `job`: what is trained, on which ranks, and how.
- `trainer`: the door, which puts together all that a step works with, in this order:

  - `mixture`: the mixtures over ep, and the path of their loads; `first_pass` runs the forwards that count.
  - `own_model`: a rank's slices of the weights, in ZeRO's blocks; `attention` comes in over cp.
  - `stages`: a rank's pipeline stages, whose weights ZeRO gathers.
  - `sharding`: ZeRO over dp × cp, and for experts over edp.
  - `gradients`: from the stages to ZeRO, over pp where several of its ranks hold a block.

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
