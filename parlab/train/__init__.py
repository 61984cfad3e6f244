"""Every strategy in one training step: the mesh of ranks, the trainer that runs a model on it, and its checkpoints."""

from parlab.train.checkpoint import export, load, save
from parlab.train.costs import bytes_between_nodes, bytes_by_strategy, step_bytes, strategy_of
from parlab.train.data import Samples
from parlab.train.index import read_index
from parlab.train.mesh import Mesh
from parlab.train.step import TrainResult
from parlab.train.trainer import Trainer
