"""Every strategy in one training step: the mesh of ranks, and the trainer that runs a model on it."""

from parlab.train.costs import bytes_by_strategy, step_bytes
from parlab.train.mesh import Mesh
from parlab.train.trainer import Piece, Trainer, TrainResult

__all__ = ["Mesh", "Piece", "TrainResult", "Trainer", "bytes_by_strategy", "step_bytes"]
