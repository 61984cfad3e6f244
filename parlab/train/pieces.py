"""The pieces of a checkpoint.

A piece is (weight, slice along the axis that tensor parallelism cuts, first element in that slice, length). That says
which elements of the whole weight it has, whatever mesh saved it and whatever mesh loads it.

Invariant: of the pieces that are saved, each element of each weight is in exactly one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from parlab.arrays import Array
from parlab.train.mixture import is_expert
from parlab.train.parts import TrainParts
from parlab.zero.pieces import state_pieces

Entry = dict[str, Any]  # of a piece in the index: its place, its length, and its file


class CheckpointPiece(NamedTuple):
    """Consecutive elements of a weight that a rank keeps, with their optimizer state.

    Tensor parallelism cuts the weight along `axis` at `start` and `stop`. The piece has the elements of that slice,
    flattened, from `flat_start` on.
    """

    name: str  # Hugging Face's
    shape: tuple[int, ...]  # of the whole weight
    axis: int | None  # None: tensor parallelism does not cut this weight
    start: int
    stop: int
    flat_start: int
    master: Array  # [n], as mean and square: views, which may be written before `Trainer.restore`
    mean: Array
    square: Array
    first_copy: bool  # no rank before this one keeps the same elements: this one saves them

    @property
    def entry(self) -> Entry:
        """The place and the length of the piece, for the index."""
        place = ("name", "shape", "axis", "start", "stop", "flat_start")
        return {**{name: getattr(self, name) for name in place}, "length": self.master.size}


def pieces_of(parts: TrainParts) -> list[CheckpointPiece]:
    """The elements of weights and of optimizer state that this rank keeps."""
    job, mesh, model = parts.job, parts.job.mesh, parts.model
    found = []
    for name, flat_start, master, mean, square in state_pieces(parts.replica):
        axis, start, stop, shared_by = model.llama.slices[name]
        first_copy = mesh.pp.rank == model.pp_ranks[name][0] and mesh.tp.rank % shared_by == 0
        if job.settings.zero == 0:  # every rank of dp × cp keeps them, or of edp an expert's
            alike = mesh.edp if is_expert(name) else mesh.data
            first_copy = first_copy and alike.rank == 0
        found.append(
            CheckpointPiece(
                name=name,
                shape=job.config.weight_shapes[name],
                axis=axis,
                start=start,
                stop=stop,
                flat_start=flat_start,
                master=master,
                mean=mean,
                square=square,
                first_copy=first_copy,
            )
        )
    return found


def elements(entry: Entry) -> np.ndarray:
    """The elements of the piece in the whole weight, flattened: `[length]`."""
    shape, axis = entry["shape"], entry["axis"]
    cut = () if axis is None else (slice(None),) * axis + (slice(entry["start"], entry["stop"]),)
    flat = np.arange(math.prod(shape)).reshape(shape)[cut].reshape(-1)
    return flat[entry["flat_start"] : entry["flat_start"] + entry["length"]]


def by_weight(pieces: Sequence[Entry], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[Entry]]:
    """The pieces of each weight.

    Raises:
        ValueError: a piece is of another model; an element of a weight is in no piece, or in two.
    """
    found: dict[str, list[Entry]] = {name: [] for name in shapes}
    for entry in pieces:
        name, shape = entry["name"], tuple(entry["shape"])
        if shapes.get(name) != shape:
            raise ValueError(
                f"the checkpoint has {name} of shape {shape}, its model {shapes.get(name, 'no such weight')}: "
                "a file of another model lies among its own"
            )
        found[name].append(entry)
    for name, entries in found.items():
        times = np.zeros(math.prod(shapes[name]), dtype=int)  # how often each element is there
        for entry in entries:
            times[elements(entry)] += 1
        if (times != 1).any():
            start, stop = _first_wrong(times)
            problem = f"has {start}:{stop} twice" if times[start] else f"lacks {start}:{stop}"
            raise ValueError(f"the checkpoint {problem} of the {len(times)} elements of {name}")
    return found


def _first_wrong(times: np.ndarray) -> tuple[int, int]:
    """Where the first stretch of equal numbers other than 1 starts and stops."""
    start = int(np.flatnonzero(times != 1)[0])
    others = np.flatnonzero(times[start:] != times[start])
    stop = start + int(others[0]) if len(others) else len(times)
    return start, stop
