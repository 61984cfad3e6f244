"""The exercises of notebook 07: who sums what, the norm that counts once, and a batch cut for zigzag."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.counts import ranks_in_words
from parlab.labs.difference import difference
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial, Wrong, need_messages
from parlab.sequence import positions
from parlab.train import Mesh
from parlab.world import Comm

AXES = ("dp", "pp", "cp", "tp")
TOLERANCE = 1e-12
Axes = tuple[int, int, int, int]


@dataclass(frozen=True)
class OnMesh:
    """A mesh, and the seed of the numbers."""

    axes: Axes
    seed: int = 0

    @property
    def size(self) -> int:
        """Ranks."""
        return math.prod(self.axes)

    @property
    def places(self) -> list[Axes]:
        """(d, p, c, t) of each rank."""
        return [tuple(map(int, place)) for place in np.ndindex(*self.axes)]  # type: ignore[misc]

    def __str__(self) -> str:
        return f"{ranks_in_words(self.size)}, " + ", ".join(
            f"{name}={size}" for name, size in zip(AXES, self.axes, strict=True)
        )


def _draw(random: np.random.Generator, size: int) -> OnMesh:
    fitting = [
        (dp, pp, cp, tp)
        for dp in (1, 2, 3)
        for pp in (1, 2, 3)
        for cp in (1, 2, 3)
        for tp in (1, 2, 3)
        if size <= dp * pp * cp * tp <= size + 4
    ]
    return OnMesh(fitting[int(random.integers(len(fitting)))], int(random.integers(10**6)))


# Who sums what

CUT, NORM, TIED = "cut", "norm", "tied"
SUMMED = {CUT: "", NORM: "t", TIED: "p"}  # over which coordinate, before the mean over d and c


def _sums(case: OnMesh, kind: str, drawn: dict[Axes, Any], over: str, mean: str = "dc") -> dict[Axes, Any]:
    """For each place the sum over the coordinates in `over` and the mean over those in `mean`."""
    result = {}
    for place in drawn:
        alike = [
            x
            for other, x in drawn.items()
            if all(a == b or axis in over + mean for axis, a, b in zip("dpct", place, other, strict=True))
        ]
        result[place] = sum(alike) / math.prod(n for axis, n in zip("dpct", case.axes, strict=True) if axis in mean)
    return result


def _who_sums(trial: Trial, case: OnMesh) -> list[str]:
    draw, pp = np.random.default_rng([case.seed, *case.axes]), case.axes[1]
    drawn = {
        kind: {
            place: draw.integers(-9, 10, size=5).astype(float)
            for place in case.places
            if kind != TIED or place[1] in (0, pp - 1)
        }
        for kind in SUMMED
    }

    def program(comm: Comm) -> dict[str, Any]:
        mesh, place = Mesh(comm, *case.axes), case.places[comm.rank]
        ends = mesh.pp.split(0 if mesh.pp.rank in (0, pp - 1) else None)
        given = {kind: of[place] for kind, of in drawn.items() if place in of}
        return {kind: trial.answer(mesh, ends, kind, x.copy()) for kind, x in given.items()}

    results = trial.ran(program, case.size, "sum_gradient(mesh, ends, kind, gradient)")
    for kind, over in SUMMED.items():
        right = _sums(case, kind, drawn[kind], over)
        for rank, place in enumerate(case.places):
            if place not in right:
                continue
            found = results.results[rank].get(kind)
            if not _close(found, right[place]):
                said = f"rank {rank} {_at(place)}, kind {kind!r}: {difference(found, right[place])}"
                raise Wrong(said, *_likely_sum(case, kind, drawn[kind], place, found))
    need_messages(results)
    return ["cut: nobody but dp and cp; norm: tp too; tied: the two ends of the pipeline too"]


def _likely_sum(case: OnMesh, kind: str, drawn: dict[Axes, Any], place: Axes, found: Any) -> list[str]:
    over = SUMMED[kind]
    causes = {
        "it is a sum over dp and cp; each rank's loss is a mean over its own tokens, so a mean is needed": (
            over + "dc",
            "",
        ),
        "the ranks of cp are not in it: they have the same weights and other tokens, as those of dp": (over, "d"),
        "the ranks of dp are not in it": (over, "c"),
        "it is this rank's own gradient: nothing was summed": ("", ""),
        "under sequence parallelism the gradient of a norm is only of this rank's tokens: sum over tp": ("", "dc"),
        "the two ends use the same table: their gradients add up": ("", "dc"),
        "the sum over tp became a mean: each rank's tokens add to the gradient": ("", "dct"),
        "the sum over the ends became a mean: both uses add to the gradient": ("", "dcp"),
        "it was summed over tp, whose ranks have other columns of the weight": (over + "t", "dc"),
    }
    skipped = {CUT: ("norm", "ends", "became"), NORM: ("two ends", "over the ends"), TIED: ("norm", "over tp became")}
    for text, (summed, mean) in causes.items():
        if not any(word in text for word in skipped[kind]) and _close(
            found, _sums(case, kind, drawn, summed, mean)[place]
        ):
            return [f"likely cause: {text}"]
    return []


# The norm


def _norm(trial: Trial, case: OnMesh) -> list[str]:
    draw, (_, pp, _, tp) = np.random.default_rng([case.seed, *case.axes, 1]), case.axes
    cut = {(p, t): draw.integers(-9, 10, size=6).astype(float) for p in range(pp) for t in range(tp)}
    scale = {p: draw.integers(-9, 10, size=3).astype(float) for p in range(pp)}  # the same on all of tp
    table = {t: draw.integers(-9, 10, size=4).astype(float) for t in range(tp)}  # at both ends of the pipeline
    squares = sum(float(np.sum(x**2)) for of in (cut, scale, table) for x in of.values())
    ends = len({0, pp - 1})

    def program(comm: Comm) -> Any:
        mesh, (_, p, _, t) = Mesh(comm, *case.axes), case.places[comm.rank]
        gradients, copies = {"mlp": cut[p, t].copy(), "norm": scale[p].copy()}, {"mlp": 1, "norm": tp}
        if p in (0, pp - 1):
            gradients["table"], copies["table"] = table[t].copy(), ends
        return trial.answer(mesh, gradients, copies)

    done = trial.ran(program, case.size, "norm(mesh, gradients, copies)")
    right = math.sqrt(squares)
    for rank, found in enumerate(done.results):
        if not _close(found, right):
            place = case.places[rank]
            said = f"rank {rank} {_at(place)}: the norm is {_number(found)}, should be {right:.6g}"
            raise Wrong(said, *_likely_norm(case, found, cut, scale, table, place, ends))
    if case.axes[1] * case.axes[3] > 1:
        need_messages(done)
    return [f"norm {right:.6g} on every rank; counted with its copies it would be larger"]


def _likely_norm(case: OnMesh, found: Any, cut: Any, scale: Any, table: Any, place: Axes, ends: int) -> list[str]:
    (dp, pp, cp, tp), (_, p, _, t) = case.axes, place

    def squares(of: Any) -> float:
        return sum(float(np.sum(x**2)) for x in of)

    once = squares([*cut.values(), *scale.values(), *table.values()])
    all_copies = squares(cut.values()) + tp * squares(scale.values()) + ends * squares(table.values())
    own_share = squares([cut[p, t]]) + squares([scale[p]]) / tp
    own_share += squares([table[t]]) / ends if p in (0, pp - 1) else 0
    causes = {
        "weights that several ranks hold were counted by each: take each by 1 / copies": math.sqrt(all_copies),
        "summed over all ranks: those of dp and cp have the same gradients, so sum over mesh.model": math.sqrt(
            once * dp * cp
        ),
        "it is this rank's own part: sum over mesh.model": math.sqrt(own_share),
        "it is the square of the norm": once,
    }
    return [f"likely cause: {text}" for text, value in causes.items() if _close(found, value)][:1]


# The batch


def _cut_batch(trial: Trial, case: OnMesh) -> list[str]:
    dp, _, cp, _ = case.axes
    draw = np.random.default_rng([case.seed, *case.axes, 2])
    B, S = 2 * dp, 4 * cp
    tokens = draw.permutation(B * (S + 1)).reshape(B, S + 1)

    def program(comm: Comm) -> Any:
        return trial.answer(Mesh(comm, *case.axes), tokens.copy())

    done = trial.ran(program, case.size, "cut_batch(mesh, tokens)")
    places = positions(S, cp, "zigzag")
    for rank, found in enumerate(done.results):
        d, _, c, _ = case.places[rank]
        rows, columns = tokens[2 * d : 2 * d + 2], np.asarray(places[c])
        right = (rows[:, columns], rows[:, columns + 1], columns)
        if not isinstance(found, tuple | list) or len(found) != 3:
            raise Wrong(f"rank {rank} returned {type(found).__name__}, expected (inputs, targets, positions)")
        for name, mine, wanted in zip(("inputs", "targets", "positions"), found, right, strict=True):
            if not isinstance(mine, np.ndarray) or mine.shape != wanted.shape or not np.array_equal(mine, wanted):
                said = f"rank {rank} {_at(case.places[rank])}, {name}: {difference(mine, wanted, rtol=0.0)}"
                raise Wrong(said, *_likely_cut(name, mine, right, rows, c, cp))
    return [f"{B} rows of {S} tokens: each rank has {B // dp} rows and {S // cp} tokens of each"]


def _likely_cut(name: str, mine: Any, right: Any, rows: Any, c: int, cp: int) -> list[str]:
    S = rows.shape[1] - 1
    range_of = np.arange(c * S // cp, (c + 1) * S // cp)
    striped = np.arange(c, S, cp)

    def same(other: Any) -> bool:
        return isinstance(mine, np.ndarray) and np.array_equal(mine, other)

    causes = {
        "the columns are contiguous: zigzag gives rank c the chunks c and 2·cp − 1 − c of 2·cp": {
            "inputs": rows[:, range_of],
            "targets": rows[:, range_of + 1],
            "positions": range_of,
        }[name],
        "these columns are striped": {
            "inputs": rows[:, striped],
            "targets": rows[:, striped + 1],
            "positions": striped,
        }[name],
        "the targets were shifted after the cut: the token behind a chunk's last one lies on another rank": np.roll(
            right[0], -1, axis=1
        ),
        "the positions count from 0 on every rank: rotary embeddings need the tokens' own": np.arange(S // cp),
    }
    return [f"likely cause: {text}" for text, other in causes.items() if same(other)][:1]


def _close(found: Any, right: Any) -> bool:
    try:
        found = np.asarray(found, dtype=float)
    except (TypeError, ValueError):
        return False
    return found.shape == np.shape(right) and bool(np.allclose(found, right, rtol=TOLERANCE, atol=TOLERANCE))


def _number(found: Any) -> str:
    return (
        f"{float(found):.6g}"
        if np.ndim(found) == 0 and isinstance(found, int | float | np.number)
        else repr(found)[:60]
    )


def _at(place: Axes) -> str:
    return "(" + ", ".join(f"{axis} {k}" for axis, k in zip(AXES, place, strict=True)) + ")"


MESHES = [(2, 1, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2), (1, 2, 1, 1), (2, 2, 1, 1), (1, 3, 1, 2), (2, 2, 2, 2)]
CASES = [OnMesh(axes) for axes in MESHES]
WHO_SUMS = Exercise("07.who_sums", "sum_gradient(mesh, ends, kind, gradient)", CASES, _who_sums, _draw, on_ranks=True)
NORMS = [OnMesh(axes) for axes in ((1, 1, 1, 1), *MESHES[2:4], (2, 1, 2, 1), *MESHES[5:])]
NORM_ONCE = Exercise("07.norm", "norm(mesh, gradients, copies)", NORMS, _norm, _draw)
CUTS = [OnMesh(axes) for axes in ((1, 1, 1, 1), (2, 1, 1, 1), (1, 1, 2, 1), (1, 1, 3, 2), (2, 2, 2, 1))]
CUT_BATCH = Exercise("07.cut_batch", "cut_batch(mesh, tokens)", CUTS, _cut_batch, _draw)
EXERCISES = (WHO_SUMS, NORM_ONCE, CUT_BATCH)
