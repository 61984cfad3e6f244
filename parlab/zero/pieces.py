"""A replica seen from outside: its optimizer's state, read and written, and the last step's gradients, read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from parlab.arrays import Array, namespace
from parlab.zero.zero import Zero


class StatePiece(NamedTuple):
    """Consecutive elements of a flat weight, with their optimizer state: views, which may be written.

    Attributes:
        name: of the weight.
        start: of the first element in the flat weight: in this rank's slice of it, if a model is cut among ranks.
        master, mean, square: one number for each of these elements.
    """

    name: str
    start: int
    master: Array
    mean: Array
    square: Array


def state_pieces(zero: Zero) -> list[StatePiece]:
    """This rank's shard of the optimizer's state, weight by weight. Call `restore` after it was written."""
    zero.finish()  # a write must not meet a gather of the same memory
    return [
        StatePiece(name, start, M.master[place], M.mean[place], M.square[place])
        for block, M in zero.M.items()
        for name, place, start in zero.layouts[block].in_shard
    ]


def restore(zero: Zero, progress: Mapping[str, float]) -> None:
    """Go on from `zero.guard.progress`, as it was, and from the state written into `state_pieces`.

    All weights become the masters'.
    """
    zero.guard.restore(progress)
    for block, M in zero.M.items():
        zero.W[block].put(M.weights())
    zero.finish()


def full_gradients(zero: Zero) -> dict[str, Array]:
    """The mean gradients of the last step by name, before clipping, on every rank; of a replica that is cut.

    Raises:
        ValueError: no step has been made; or the replica is whole, and forgets its gradients in `step()`.
    """
    if zero.model_parallel is None:
        raise ValueError(
            "full_gradients(): a whole replica frees its gradients in step(); parlab.train.Trainer keeps those of "
            "its last step"
        )
    if zero.kept is None:
        raise ValueError("full_gradients(): there is no last step; call step() first")
    summed, factor_to_mean = zero.kept
    gradients: dict[str, Array] = {}
    for block, layout in zero.layouts.items():
        gradient = summed[block]  # [n_r]
        if layout.is_cut:
            gradient = layout.group.all_gather(gradient, counts=layout.counts)  # [n]
        wide = namespace(gradient).astype(gradient, zero.master_dtype, copy=False)
        gradients |= layout.unpack(wide * factor_to_mean)
    return gradients
