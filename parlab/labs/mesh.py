"""The exercise of notebook 07 on sums of gradients over groups."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from parlab.labs.counts import ranks_in_words
from parlab.labs.difference import difference
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong, need_messages
from parlab.train import Mesh
from parlab.world import Comm, Run, run

AXES = ("dp", "pp", "cp", "tp")
TOLERANCE = 1e-12
Axes = tuple[int, int, int, int]


@dataclass(frozen=True)
class MeshCase:
    """A mesh; numbers are drawn from `seed`."""

    axes: Axes
    seed: int = 0

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(self.axes)

    @property
    def places(self) -> list[Axes]:
        """The coordinates (d, p, c, t) of each rank."""
        return [tuple(map(int, place)) for place in np.ndindex(*self.axes)]  # type: ignore[misc]

    def __str__(self) -> str:
        return f"{ranks_in_words(self.size)}, " + ", ".join(
            f"{name}={size}" for name, size in zip(AXES, self.axes, strict=True)
        )


def _draw(random: np.random.Generator, size: int) -> MeshCase:
    meshes = [MeshCase((dp, pp, cp, tp)) for dp, pp, cp, tp in product((1, 2, 3), repeat=4)]
    fitting = [mesh.axes for mesh in meshes if size <= mesh.size <= size + 4]
    return MeshCase(fitting[int(random.integers(len(fitting)))])


def added_for_a_norm(sizes: Mapping[str, int]) -> int:
    """The gradients of how many ranks are added for one norm weight, under sequence parallelism: counted on a mesh.

    Args:
        sizes: of the axes dp, pp, cp and tp, by name.

    >>> added_for_a_norm({"dp": 2, "tp": 2})
    4
    """

    def program(comm: Comm) -> int:
        mesh, marked = Mesh(comm, **sizes), np.eye(comm.size)[comm.rank]
        return int(np.count_nonzero(mesh.data.all_reduce(mesh.tp.all_reduce(marked))))

    return int(run(program, math.prod(sizes.values())).results[-1])


CUT, NORM, HEAD, TIED = "cut", "norm", "K/V", "tied"
SUMMED = {CUT: "", NORM: "t", HEAD: "t", TIED: "p"}  # the coordinate to sum over, before the mean over d and c


def _sums(drawn: dict[Axes, Any], over: str, mean: str = "dc") -> dict[Axes, Any]:
    """The sum over the coordinates in `over` and the mean over those in `mean`, for each place."""
    result = {}
    for place in drawn:
        alike = [
            x
            for other, x in drawn.items()
            if all(a == b or axis in over + mean for axis, a, b in zip("dpct", place, other, strict=True))
        ]
        coordinates = [{other[k] for other in drawn} for k, axis in enumerate("dpct") if axis in mean]
        result[place] = sum(alike) / math.prod(map(len, coordinates))
    return result


def _try_who_sums(trial: Trial, case: MeshCase) -> list[str]:
    draw, pp = np.random.default_rng([case.seed, *case.axes]), case.axes[1]
    drawn = {
        kind: {
            place: draw.integers(-9, 10, size=5).astype(float)
            for place in case.places
            if kind != TIED or place[1] in (0, pp - 1)
        }
        for kind in SUMMED
    }

    def program(comm: Comm, kind: str) -> Any:
        mesh, place = Mesh(comm, *case.axes), case.places[comm.rank]
        ends = mesh.pp.split(0 if mesh.pp.rank in (0, pp - 1) else None)
        asked = place in drawn[kind]
        return trial.answer(mesh, ends, kind, drawn[kind][place].copy()) if asked else None

    runs = {kind: _ran_kind(trial, program, case, kind) for kind in SUMMED}
    for kind, over in SUMMED.items():
        right = _sums(drawn[kind], over)
        for rank, place in enumerate(case.places):
            if place not in right:
                continue
            found = runs[kind].results[rank]
            if said := difference(found, right[place], rtol=TOLERANCE, atol=TOLERANCE):
                met = _met(runs[kind], case, rank)
                causes = [NO_RETURN] if found is None else _likely_sum(kind, drawn[kind], place, found, met)
                raise Wrong(f"rank {rank} {_at(place)}, kind {kind!r}: {said}", *causes)
    if not any(done.timeline.transfers for done in runs.values()):
        need_messages(runs[CUT])
    return ["cut: dp and cp sum; norm and K/V: tp, too; tied: the two ends of the pipeline, too"]


NO_RETURN = (
    "likely cause: no `return` is reached for this kind: the sum was made, and not handed back; or `reduce` made it, "
    "which gives None to all ranks but one"
)
ALL_OF_PP = "likely cause: only the two ends have the tied table and call the function: sum over `ends`, not over pp"


def _ran_kind(trial: Trial, program: Any, case: MeshCase, kind: str) -> Run:
    """The run for one kind of weight. Ranks that wait for the middle of the pipeline are told that it has no table."""
    try:
        return trial.ran(program, case.size, kind)
    except Wrong as wrong:
        said, cause, _ = str(wrong).partition("likely cause: ")
        if kind == TIED and cause and re.search(r"of group (pp|model|comm)\b", said):
            wrong.args = (f"kind {kind!r}: {said.rstrip()}", ALL_OF_PP)
        raise


def _met(done: Run, case: MeshCase, rank: int) -> str:
    """The axes along which `rank` sent something: "dpct" or fewer of these."""
    there = {case.places[transfer.dst] for transfer in done.timeline.transfers if transfer.src == rank}
    return "".join(axis for k, axis in enumerate("dpct") if any(place[k] != case.places[rank][k] for place in there))


THROWN_AWAY = "the sum over {} was made and not used: all_reduce returns it, and leaves the gradient as it is"
NAMES = {"d": "dp", "c": "cp", "t": "tp", "p": "the two ends"}
EVERY = tuple(SUMMED)
LIKELY = {  # for which kinds; the coordinate left out; those summed, where + are the right ones; those of the mean
    ((NORM,), "t", "", "dc"): (
        "under sequence parallelism the gradient of a norm is only of this rank's tokens: sum over tp"
    ),
    ((HEAD,), "t", "", "dc"): "each rank of tp has the gradient of its own query heads: sum over tp",
    ((TIED,), "p", "", "dc"): "the two ends use the same table: their gradients add up",
    ((NORM, HEAD), "", "", "dct"): "the sum over tp became a mean: what its ranks have adds up",
    ((TIED,), "", "", "dcp"): "the sum over the ends became a mean: both uses add to the gradient",
    ((CUT, TIED), "", "+t", "dc"): "tp is in it, whose ranks have other parts of the weight",
    ((CUT, TIED), "", "+", "dct"): "tp is in it, whose ranks have other parts of the weight",
    ((CUT, NORM, HEAD), "", "+p", "dc"): "all of pp is in it, whose ranks have other layers",
    ((CUT, NORM, HEAD), "", "+", "dcp"): "all of pp is in it, whose ranks have other layers",
    (EVERY, "", "+dc", ""): (
        "it is a sum over dp and cp; each rank's loss is a mean over its own tokens, so a mean is needed"
    ),
    (EVERY, "c", "+", "d"): (
        "the ranks of cp are not in it: they have the same weights and other tokens, as those of dp"
    ),
    (EVERY, "d", "+", "c"): "the ranks of dp are not in it: they have the same weights and other rows",
}


def _likely_sum(kind: str, drawn: dict[Axes, Any], place: Axes, found: Any, met: str) -> list[str]:
    """The cause of a wrong sum; of a sum that is left out, `met` says whether it was made."""
    over = SUMMED[kind]
    right = _sums(drawn, over)[place]
    if not isinstance(found, np.ndarray) or (found.shape, found.dtype) != (right.shape, right.dtype):
        return []
    for (kinds, lost, sums, mean), cause in LIKELY.items():
        if kind in kinds and _close(found, _sums(drawn, sums.replace("+", over), mean)[place]):
            return [f"likely cause: {THROWN_AWAY.format(NAMES[lost]) if lost and lost in met else cause}"]
    if _close(found, _sums(drawn, over, "")[place] / len({(d, c) for d, _, c, _ in drawn})):
        made = THROWN_AWAY.format("dp and cp") if {*met} & {*"dc"} else "nothing is summed over dp and cp"
        return [f"likely cause: {made}; the division alone is no mean"]
    first = int(np.argmax(abs(right)))
    if _close(found, right * (times := np.ravel(found)[first] / right[first])):
        told = f"it is {times:.4g} times what it should be"
        return [f"likely cause: {told}: divide once, by the number of ranks in mesh.data"]
    return []


def _close(found: Any, right: Any) -> bool:
    return bool(np.allclose(found, right, rtol=TOLERANCE, atol=TOLERANCE))


def _at(place: Axes) -> str:
    return "(" + ", ".join(f"{axis} {k}" for axis, k in zip(AXES, place, strict=True)) + ")"


MESHES = [
    (2, 1, 1, 1),
    (1, 1, 2, 1),
    (1, 1, 1, 2),
    (1, 2, 1, 1),
    (3, 1, 1, 1),
    (1, 1, 1, 3),
    (2, 2, 1, 1),
    (1, 3, 1, 2),
    (2, 2, 2, 2),
]
CASES = [MeshCase(axes) for axes in MESHES]
WHO_SUMS = Exercise(
    "07.who_sums", "sum_gradient(mesh, ends, kind, gradient)", CASES, _try_who_sums, _draw, on_ranks=True
)
EXERCISES = (WHO_SUMS,)
