"""The mesh: the ranks on four axes, one a strategy.

rank = ((d · pp + p) · cp + c) · tp + t. Tensor parallelism sends the most, in every layer, so its ranks are neighbours.
Data parallelism sends once a step, so its ranks may be far apart.

Experts have no axis of their own. The ranks of dp × cp have different tokens; `ep` consecutive ones of them share the
experts of one copy of the model. The ranks that hold the same experts, one in each of the dp·cp/ep copies, are edp.

Invariant: a rank is in one group of each of the four axes, and any two of these meet in this rank alone.

Sources: Llama 3 (2024), "The Llama 3 Herd of Models", section 3.3.2; for ep and edp: Rajbhandari et al. 2022,
"DeepSpeed-MoE", section 4.
"""

from __future__ import annotations

import math
from typing import Any

from parlab.arguments import instance, whole
from parlab.world import Comm, MismatchError
from parlab.world.units import several


class Mesh:
    """A rank's groups along the four axes.

    Args:
        comm: all ranks; each makes the mesh.
        dp: the number of replicas, each with its rows of the batch.
        pp: the number of ranks of a pipeline, each with some layers.
        cp: the number of ranks that share a sequence, each with its tokens.
        tp: the number of ranks that share a layer, each with its heads and columns.
        ep: the number of ranks that deal out the experts of one copy of the model; divides dp · cp.

    Attributes:
        dp, pp, cp, tp: this rank's group along each axis, a `Comm`; errors and timelines show its name.
        data: dp × cp, the ranks with the same weights and other tokens: ZeRO's group.
        ep: this rank's group of consecutive ranks of `data`, which together have every expert of their layers.
        edp: the ranks of `data` that hold the same experts as this one.
        model: pp × ep × tp, the ranks that together have one copy of the model, with all its experts.
        comm: all ranks.
        sizes: of the four axes, by their names.

    Raises:
        ValueError: a size that is no whole number from 1; sizes of the axes whose product is not the number of ranks;
            an ep that does not divide dp · cp.
        MismatchError: another rank makes another mesh.

    >>> from parlab import run
    >>> def place(comm):
    ...     mesh = Mesh(comm, dp=2, pp=1, cp=1, tp=3)
    ...     return mesh.dp.rank, mesh.tp.rank, mesh.data.size, mesh.model.size
    >>> run(place, 6).results[4]
    (1, 1, 2, 3)
    """

    def __init__(
        self,
        comm: Comm,
        dp: int = 1,
        pp: int = 1,
        cp: int = 1,
        tp: int = 1,
        ep: int = 1,
    ) -> None:
        instance("comm", comm, Comm)
        self.comm, axes = comm, {"dp": dp, "pp": pp, "cp": cp, "tp": tp}
        self.sizes = {axis: whole(axis, size, 1) for axis, size in axes.items()}
        _check_ranks(self.sizes, comm.size)
        _check_experts(dp, cp, ep)
        # This rank's place on each axis: the inverse of `rank_at`
        d, p, c, t = comm.rank // (pp * cp * tp), comm.rank // (cp * tp) % pp, comm.rank // tp % cp, comm.rank % tp
        at = self.rank_at

        def group(name: str, first: int) -> Any:
            """The ranks that name the same first rank: they have one place on all axes but the group's own."""
            return comm.split(first, name=name)

        self.dp: Comm = group("dp", at(0, p, c, t))
        self.pp: Comm = group("pp", at(d, 0, c, t))
        self.cp: Comm = group("cp", at(d, p, 0, t))
        self.tp: Comm = group("tp", at(d, p, c, 0))
        self.data: Comm = group("data", at(0, p, 0, t))

        # dp × cp is one row of ranks, and ep consecutive ones of it have one copy of the experts
        def in_row(number: int, p: int, t: int) -> int:
            """The rank with this number in the row of those that share p and t with it."""
            return at(number // cp, p, number % cp, t)

        number = d * cp + c
        place = number % ep  # of this rank, in its copy
        first = number - place  # of its copy
        self.model: Comm = group("model", in_row(first, 0, 0))
        self.ep: Comm = group("ep", in_row(first, p, t))
        self.edp: Comm = group("edp", in_row(place, p, t))  # the rank at the same place of the first copy
        if any(getattr(self, axis).size != size for axis, size in {**self.sizes, "ep": ep}.items()):
            raise MismatchError(f"rank {comm.rank} makes {self}, and another rank another mesh")

    def rank_at(self, d: int, p: int, c: int, t: int) -> int:
        """The rank in `comm` at a place on each axis."""
        _, pp, cp, tp = self.sizes.values()
        return ((d * pp + p) * cp + c) * tp + t

    def __repr__(self) -> str:
        sizes = self.sizes if self.ep.size == 1 else {**self.sizes, "ep": self.ep.size}
        return "Mesh(" + ", ".join(f"{axis}={size}" for axis, size in sizes.items()) + ")"


def _check_experts(dp: int, cp: int, ep: int) -> None:
    if dp * cp % whole("ep", ep, 1):
        fitting = [n for n in range(1, dp * cp + 1) if dp * cp % n == 0]
        raise ValueError(f"ep={ep}: it must divide dp · cp = {dp * cp}: use one of {', '.join(map(str, fitting))}")


def _check_ranks(sizes: dict[str, int], ranks: int) -> None:
    made = math.prod(sizes.values())
    if made != ranks:
        fitting = [f"{axis}={ranks * n // made}" for axis, n in sizes.items() if ranks * n % made == 0]
        said = " · ".join(f"{axis}={size}" for axis, size in sizes.items())
        hint = " or ".join([*fitting, several(made, "rank")])
        raise ValueError(f"{said} makes {several(made, 'rank')}, and there are {ranks}: use {hint}")
