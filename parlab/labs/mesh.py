"""The exercises of notebook 07: sums of gradients over groups, and the norm of all gradients."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from parlab.labs.counts import ranks_in_words
from parlab.labs.difference import apart, difference, possible
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


def _draw(random: np.random.Generator, size: int, in_parts: bool = False) -> MeshCase:
    meshes = [MeshCase((dp, pp, cp, tp)) for dp, pp, cp, tp in product((1, 2, 3), repeat=4)]
    fitting = [mesh.axes for mesh in meshes if size <= mesh.size <= size + 4 and mesh.axes[1] * mesh.axes[3] > in_parts]
    return MeshCase(fitting[int(random.integers(len(fitting)))])


# Sums of gradients over groups


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


# The norm


def _try_norm(trial: Trial, case: MeshCase) -> list[str]:
    draw, (_, pp, _, tp) = np.random.default_rng([case.seed, *case.axes, 1]), case.axes
    cut = {(p, t): draw.integers(-9, 10, size=6).astype(float) for p in range(pp) for t in range(tp)}
    scale = {p: draw.integers(-9, 10, size=3).astype(float) for p in range(pp)}  # the same on all ranks of tp
    table = {t: draw.integers(-9, 10, size=4).astype(float) for t in range(tp)}  # at both ends of the pipeline
    ends = {0, pp - 1}
    held = {  # for each rank of a replica: each weight's gradient, and the number of ranks that have it
        (p, t): {"mlp": (cut[p, t], 1), "norm": (scale[p], tp)}
        | ({"table": (table[t], len(ends))} if p in ends else {})
        for p, t in cut
    }
    parts = {place: [(float(np.sum(x**2)), copies) for x, copies in of.values()] for place, of in held.items()}
    right = math.sqrt(sum(square / copies for of in parts.values() for square, copies in of))

    def program(comm: Comm) -> Any:
        mesh, (_, p, _, t) = Mesh(comm, *case.axes), case.places[comm.rank]
        gradients = {name: x.copy() for name, (x, _) in held[p, t].items()}
        return trial.answer(mesh, gradients, {name: copies for name, (_, copies) in held[p, t].items()})

    done = trial.ran(program, case.size)
    for rank, found in enumerate(done.results):
        if not _close(found, right):
            place = case.places[rank]
            mine, wanted = _numbers(found, right)
            said = f"rank {rank} {_at(place)}: returned {mine}, expected the norm, {wanted}, as a float"
            raise Wrong(said, *_likely_norm(case, found, parts, place))
    need_messages(done)
    return [f"norm {right:.6g} on every rank; counted with its copies it would be larger"]


def _likely_norm(case: MeshCase, found: Any, parts: dict[Any, Any], place: Axes) -> list[str]:
    (dp, pp, cp, tp), (_, p, _, t) = case.axes, place

    def of(weigh: Any, ranks: Any = parts) -> float:
        return sum(weigh(square, copies) for rank in ranks for square, copies in parts[rank])

    weights = (
        (lambda square, copies: square / copies),
        (lambda square, copies: square),
    )  # each weight counts once; each copy counts

    def both(ranks: Any = parts) -> np.ndarray:
        return np.array([of(weigh, ranks) for weigh in weights])

    own, all_own = both([(p, t)]), np.array([both([rank]) for rank in parts])
    causes = {
        "weights that several ranks hold were counted by each: take each square by 1 / copies": both()[1:],
        "summed over all ranks: those of dp and cp have the same gradients, so sum over mesh.model": both() * dp * cp,
        "it is this rank's own part: sum over mesh.model": own,
        "summed over mesh.data, whose ranks have the same gradients: sum over mesh.model": own * dp * cp,
        "summed over tp alone: the weights of one replica lie on pp × tp": both([(p, other) for other in range(tp)]),
        "summed over pp alone: the weights of one replica lie on pp × tp": both([(other, t) for other in range(pp)]),
        "it is the square of the norm": both() ** 2,
        "it is a mean over the ranks of mesh.model: their squares add up": both() / (pp * tp),
        "norms were added: add the squares of all ranks, and take the root at the end": (all_own**0.5).sum(axis=0) ** 2,
        "1 / copies was taken before the square: take the square by it": [of(lambda square, n: square / n**2)],
        "multiplied by copies: what n ranks have counts 1/n on each": [of(lambda square, n: square * n)],
        "it is the largest of the ranks' own parts: their squares add up": all_own.max(axis=0),
    }
    known = [cause for cause, squares in causes.items() if any(_close(found, math.sqrt(square)) for square in squares)]
    if not known and isinstance(found, float | int | np.number):
        more = found > math.sqrt(both()[0])
        known = [
            "it is too large: each weight counts once, over all ranks of mesh.model"
            if more
            else "it is too small: each weight of the replica counts once, over all ranks of mesh.model"
        ]
    return [f"likely cause: {cause}" for cause in known[:1]]


def _close(found: Any, right: Any) -> bool:
    if not isinstance(found, np.ndarray | np.generic | int | float) or np.asarray(found).dtype.kind not in "fiu":
        return False
    return np.shape(found) == np.shape(right) and bool(np.allclose(found, right, rtol=TOLERANCE, atol=TOLERANCE))


def _numbers(found: Any, right: float) -> tuple[str, str]:
    """The result and the right norm, as text."""
    if np.ndim(found) == 0 and isinstance(found, int | float | np.number):
        return apart(float(found), right)
    return repr(found)[:60], f"{right:.6g}"


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
NORMS = [
    MeshCase(axes) for axes in ((1, 1, 1, 2), (1, 2, 1, 1), (1, 1, 1, 3), (2, 1, 1, 2), (1, 3, 1, 2), (2, 2, 2, 2))
]
IN_PARTS = partial(_draw, in_parts=True)  # a replica on several ranks: its norm needs messages
NORM_ONCE = Exercise("07.norm", "norm(mesh, gradients, copies)", NORMS, _try_norm, IN_PARTS, on_ranks=True)
EXERCISES = (WHO_SUMS, NORM_ONCE)
