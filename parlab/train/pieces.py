"""The pieces of which a checkpoint consists."""

from __future__ import annotations

from typing import Any, NamedTuple

from parlab.arrays import Array


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
    first: bool  # no rank before this one keeps the same elements

    @property
    def entry(self) -> dict[str, Any]:
        """The place of the piece, as the index of a checkpoint has it."""
        place = ("name", "shape", "axis", "start", "stop", "flat_start")
        return {**{name: getattr(self, name) for name in place}, "length": self.master.size}
