"""Every strategy in one training step: the mesh of ranks, and the trainer that runs a model on it."""

from parlab.train.checkpoint import export, load, read_index, save
from parlab.train.mesh import Mesh
from parlab.train.trainer import Piece, Trainer, TrainResult

__all__ = ["Mesh", "Piece", "TrainResult", "Trainer", "export", "load", "read_index", "save"]
