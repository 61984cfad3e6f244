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
from parlab.labs.difference import difference, possible
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
                if _reduced(runs[kind]) and (found is None or _reached(runs[kind], right, case.places, place, over)):
                    causes = [REDUCED]
                elif found is None:
                    causes = [NO_RETURN if all(other is None for other in runs[kind].results) else NO_RETURN_HERE]
                else:
                    causes = _likely_sum(kind, drawn[kind], place, found, _met(runs[kind], case, rank))
                raise Wrong(f"rank {rank} {_at(place)}, kind {kind!r}: {said}", *causes)
    if not any(done.timeline.transfers for done in runs.values()):
        need_messages(runs[CUT])
    return ["cut: dp and cp sum; norm and K/V: tp, too; tied: the two ends of the pipeline, too"]


NO_RETURN = "likely cause: no `return` is reached for this kind: the sum was made, and not handed back"
NO_RETURN_HERE = "likely cause: no `return` is reached on this rank"
REDUCED = "likely cause: `reduce` gives its sum to one rank, and None to all others; `all_reduce` gives it to all"
ALL_OF_PP = "likely cause: only the two ends have the tied table and call the function: sum over `ends`, not over pp"


def _ran_kind(trial: Trial, program: Any, case: MeshCase, kind: str) -> Run:
    """The run for one kind of weight. Ranks that wait for the middle of the pipeline are told that it has no table."""
    try:
        return trial.ran(program, case.size, kind)
    except Wrong as wrong:
        said, cause, _ = str(wrong).partition("likely cause: ")
        if kind == TIED and cause and re.search(r"of group (pp|model|comm)\b", said):
            wrong.args = (f"kind {kind!r}: {said.rstrip()}", ALL_OF_PP)
        if "None" in said and wrong.run is not None and _reduced(wrong.run):
            wrong.args = (*wrong.args, REDUCED)
        raise


def _reduced(done: Run) -> bool:
    return any(transfer.name.rpartition(": ")[2] == "reduce" for transfer in done.timeline.transfers)


def _reached(done: Run, right: dict[Axes, Any], places: list[Axes], place: Axes, over: str) -> bool:
    """Whether another rank of the same sum has it right."""
    of_sum = [
        all(a == b or axis in over + "dc" for axis, a, b in zip("dpct", place, other, strict=True)) for other in places
    ]
    results = [found for found, member in zip(done.results, of_sum, strict=True) if member and found is not None]
    return any(not difference(found, right[place], rtol=TOLERANCE, atol=TOLERANCE) for found in results)


def _met(done: Run, case: MeshCase, rank: int) -> str:
    """The axes along which `rank` sent something: "dpct" or fewer of these."""
    there = {case.places[transfer.dst] for transfer in done.timeline.transfers if transfer.src == rank}
    return "".join(axis for k, axis in enumerate("dpct") if any(place[k] != case.places[rank][k] for place in there))


THROWN_AWAY = "the sum over {} was made and not used: all_reduce returns it, and leaves the gradient as it is"


def _likely_sum(kind: str, drawn: dict[Axes, Any], place: Axes, found: Any, met: str) -> list[str]:
    over, every = SUMMED[kind], tuple(SUMMED)
    right = _sums(drawn, over)[place]
    if not isinstance(found, np.ndarray) or found.shape != right.shape or _close(found, right):
        return []
    alike = len({other["dpct".index(over)] for other in drawn}) if over else 1  # ranks whose gradients add up
    twice = f"the sum over {'tp' if over == 't' else 'the two ends'} is made twice"
    for text, kinds, *sums in (
        (THROWN_AWAY.format("tp"), (NORM, HEAD) if "t" in met else (), ("", "dc")),
        (THROWN_AWAY.format("the two ends"), (TIED,) if "p" in met else (), ("", "dc")),
        (THROWN_AWAY.format("cp"), every if "c" in met else (), (over, "d")),
        (THROWN_AWAY.format("dp"), every if "d" in met else (), (over, "c")),
        (
            "under sequence parallelism the gradient of a norm is only of this rank's tokens: sum over tp",
            NORM,
            ("", "dc"),
        ),
        ("each rank of tp has the gradient of its own query heads: sum over tp", (HEAD,), ("", "dc")),
        ("the two ends use the same table: their gradients add up", TIED, ("", "dc")),
        ("the sum over tp became a mean: each rank's tokens add to the gradient", NORM, ("", "dct")),
        ("the sum over tp became a mean: each rank's query heads add to the gradient", (HEAD,), ("", "dct")),
        ("the sum over the ends became a mean: both uses add to the gradient", TIED, ("", "dcp")),
        ("tp is in it, whose ranks have other parts of the weight", (CUT, TIED), (over + "t", "dc"), (over, "dct")),
        ("all of pp is in it, whose ranks have other layers", (CUT, NORM, HEAD), (over + "p", "dc"), (over, "dcp")),
        (
            "it is a sum over dp and cp; each rank's loss is a mean over its own tokens, so a mean is needed",
            every,
            (over + "dc", ""),
        ),
        (
            "the ranks of cp are not in it: they have the same weights and other tokens, as those of dp",
            every,
            (over, "d"),
        ),
        ("the ranks of dp are not in it: they have the same weights and other rows", every, (over, "c")),
    ):
        if kind in kinds and any(_close(found, _sums(drawn, *how)[place]) for how in sums):
            return possible([(text, True), (twice, _close(found, right * alike))])
    if over and _close(found, right * alike):
        return [f"likely cause: {twice}"]
    data = len({(d, c) for d, _, c, _ in drawn})
    if _close(found, _sums(drawn, over, "")[place] / data):
        made = THROWN_AWAY.format("dp and cp") if {*met} & {*"dc"} else "nothing is summed over dp and cp"
        return [f"likely cause: {made}; the division alone is no mean"]
    for other, x in drawn.items():
        if _close(found, x):
            return [f"likely cause: it is the gradient of {_at(other)} alone"]
    first = int(np.argmax(abs(right)))
    if right[first] and _close(found, right * (times := found[first] / right[first])):
        told = f"it is {times:.4g} times what it should be"
        return [f"likely cause: {told}: divide once, by the number of ranks in mesh.data"]
    return []


def _close(found: Any, right: Any) -> bool:
    if not isinstance(found, np.ndarray | np.generic | int | float) or np.asarray(found).dtype.kind not in "fiu":
        return False
    return np.shape(found) == np.shape(right) and bool(np.allclose(found, right, rtol=TOLERANCE, atol=TOLERANCE))


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
