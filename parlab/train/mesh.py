"""The mesh: the ranks on four axes, one a strategy.

rank = ((d · pp + p) · cp + c) · tp + t. Tensor parallelism sends the most, in every layer, so its ranks are neighbours.
Data parallelism sends once a step, so its ranks may be far apart.

Source: Llama 3 (2024), "The Llama 3 Herd of Models", section 3.3.2.
"""

from __future__ import annotations

import math
from typing import Any

from parlab.arguments import instance, whole
from parlab.world import Comm, MismatchError


class Mesh:
    """A rank's groups along the four axes.

    Args:
        comm: all ranks; each makes the mesh.
        dp: the number of replicas, each with its rows of the batch.
        pp: the number of ranks of a pipeline, each with some layers.
        cp: the number of ranks that share a sequence, each with its tokens.
        tp: the number of ranks that share a layer, each with its heads and columns.

    Attributes:
        dp, pp, cp, tp: this rank's group along each axis, a `Comm`; errors and timelines show its name.
        data: dp × cp, the ranks with the same weights and other tokens: ZeRO's group.
        model: pp × tp, the ranks that together have one replica.
        comm: all ranks.
        sizes: of the four axes, by their names.

    Raises:
        ValueError: a size that is no whole number from 1, or sizes whose product is not the number of ranks.
        MismatchError: another rank makes another mesh.

    >>> from parlab import run
    >>> def place(comm):
    ...     mesh = Mesh(comm, dp=2, pp=1, cp=1, tp=3)
    ...     return mesh.dp.rank, mesh.tp.rank, mesh.data.size, mesh.model.size
    >>> run(place, 6).results[4]
    (1, 1, 2, 3)
    """

    def __init__(self, comm: Comm, dp: int = 1, pp: int = 1, cp: int = 1, tp: int = 1) -> None:
        instance("comm", comm, Comm)
        self.comm, axes = comm, {"dp": dp, "pp": pp, "cp": cp, "tp": tp}
        self.sizes = {axis: whole(axis, size, 1) for axis, size in axes.items()}
        _check_ranks(self.sizes, comm.size)
        d, p, c, t = comm.rank // (pp * cp * tp), comm.rank // (cp * tp) % pp, comm.rank // tp % cp, comm.rank % tp

        def group(name: str, color: int) -> Any:
            """The ranks with the same color: with the same place on all other axes."""
            return comm.split(color, name=name)

        self.dp: Comm = group("dp", (p * cp + c) * tp + t)
        self.pp: Comm = group("pp", (d * cp + c) * tp + t)
        self.cp: Comm = group("cp", (d * pp + p) * tp + t)
        self.tp: Comm = group("tp", (d * pp + p) * cp + c)
        self.data: Comm = group("data", p * tp + t)
        self.model: Comm = group("model", d * cp + c)
        if any(getattr(self, axis).size != size for axis, size in self.sizes.items()):
            raise MismatchError(f"rank {comm.rank} makes {self}, and another rank another mesh")

    def __repr__(self) -> str:
        return "Mesh(" + ", ".join(f"{axis}={size}" for axis, size in self.sizes.items()) + ")"


def _check_ranks(sizes: dict[str, int], ranks: int) -> None:
    product = math.prod(sizes.values())
    if product != ranks:
        fitting = [f"{axis}={ranks * n // product}" for axis, n in sizes.items() if ranks * n % product == 0]
        said = " · ".join(f"{axis}={size}" for axis, size in sizes.items())
        hint = " or ".join([*fitting, f"{product} ranks"])
        raise ValueError(f"{said} makes {product} ranks, and there are {ranks}: use {hint}")
