"""Every strategy in one training step: the mesh of ranks, the trainer that runs a model on it, and its checkpoints.

Begin with `step`: the step, and the axes over which each gradient is summed. Then:

`mesh`                      the groups of ranks along each axis
`trainer`                   the door; `parts` makes the model, ZeRO's blocks and the pipeline's stages of a rank
`attention`, `mixture`      where attention over cp and experts over ep come in; `stages`, where ZeRO does
`balance`                   the loads of a batch's experts, and their biases
`checkpoint`                saving and loading; `pieces` says which elements lie where; `index` and `lock` keep them
`costs`                     the bytes of a step, counted by strategy
`data`                      the order of the samples
"""

from parlab.train.checkpoint import export, load, save
from parlab.train.costs import bytes_by_strategy
from parlab.train.data import Samples
from parlab.train.index import read_index
from parlab.train.mesh import Mesh
from parlab.train.step import TrainResult
from parlab.train.trainer import Trainer
