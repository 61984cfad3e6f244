"""The exercise of notebook 05 on two matrices: an MLP's step, forward and backward, in two all-reduces; and its run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.arguments import whole
from parlab.labs.compared import SUMMED, all_reduce_bytes, check_form, compare, counted
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import need_messages
from parlab.world import Comm, Run, per_rank, run

PARTIAL_Y = "behind the rows each rank has a partial sum of every entry of y: sum over the ranks"
PARTIAL_DX = "dx is a partial sum: x feeds the columns of all ranks, and a rank has its own alone; sum over the ranks"
MEAN = "the sum is divided by {}: partial sums add up to the whole, no mean is needed"
BEFORE_RELU = "x A is summed before relu: a rank's columns are finished, and those of other ranks are other columns"
NO_RELU = "relu is missing: z is relu(x A)"
NO_MASK = "dz must be 0 where z is 0: relu's backward is missing"


@dataclass(frozen=True)
class MLPCase:
    """t ranks, M hidden columns; values are drawn from `seed`."""

    size: int
    M: int
    seed: int = 0

    def __str__(self) -> str:
        return f"t = {self.size}, S = {S}, E = {E}, M = {self.M}"


S, E = 3, 4


def _try_mlp(trial: Trial, case: MLPCase) -> list[str]:
    draw = np.random.default_rng([case.seed, case.size, case.M])
    x, dy = draw.normal(size=(2, S, E))
    A, C = draw.normal(size=(E, case.M)), draw.normal(size=(case.M, E))
    cut = np.split(A, case.size, axis=1), np.split(C, case.size)

    def program(comm: Comm, A: Any, C: Any) -> Any:
        return trial.answer(comm, x.copy(), A, C, dy.copy())

    done = trial.ran(program, case.size, *map(per_rank, cut))
    right, without_relu = _step(x, A, C, dy), _step(x, A, C, dy, relu=False)
    of_ranks = [_step(x, *own, dy) for own in zip(*cut, strict=True)]
    for rank, result in enumerate(done.results):
        check_form(rank, result, 4, "(y, dx, dA, dC)")
        y, dx, dA, dC = result
        own, linear = of_ranks[rank], _step(x, cut[0][rank], cut[1][rank], dy, relu=False)
        unmasked = _step(x, cut[0][rank], cut[1][rank], dy, mask=False)
        summed = np.maximum(x @ sum(cut[0]), 0)
        wrong_y = {
            PARTIAL_Y: own["y"],
            MEAN.format(case.size): right["y"] / case.size,
            NO_RELU: without_relu["y"],
            BEFORE_RELU: summed @ sum(cut[1]),
        }
        compare(rank, "y", y, right["y"], case.size, wrong_y)
        wrong_dC = {SUMMED: sum(of["dC"] for of in of_ranks), NO_RELU: linear["dC"]}
        compare(rank, "dC", dC, own["dC"], case.size, wrong_dC)
        wrong_dA = {NO_MASK: unmasked["dA"], SUMMED: sum(of["dA"] for of in of_ranks)}
        compare(rank, "dA", dA, own["dA"], case.size, wrong_dA)
        wrong_dx = {
            PARTIAL_DX: own["dx"],
            MEAN.format(case.size): right["dx"] / case.size,
            NO_MASK: _step(x, A, C, dy, mask=False)["dx"],
        }
        compare(rank, "dx", dx, right["dx"], case.size, wrong_dx)
    need_messages(done)
    allowed = [2 * sent for sent in all_reduce_bytes(x.size, x.itemsize, case.size)]
    return counted(done, allowed, f"2 all-reduces of S·E numbers ({x.nbytes} bytes)")


def _step(x: Any, A: Any, C: Any, dy: Any, relu: bool = True, mask: bool = True) -> dict[str, Any]:
    """The four results of these columns and rows on one rank, before any sum."""
    before = x @ A
    z = np.maximum(before, 0) if relu else before
    dz = (dy @ C.T) * (before > 0) if relu and mask else dy @ C.T
    return {"y": z @ C, "dx": dz @ A.T, "dA": x.T @ dz, "dC": z.T @ dy}


CASES = [MLPCase(*sizes) for sizes in ((2, 2), (2, 6), (1, 3), (3, 6), (4, 12), (8, 16))]


def _draw_mlp(random: np.random.Generator, size: int) -> MLPCase:
    return MLPCase(size, size * int(random.integers(1, 4)))


MLP = Exercise(
    "05.mlp_step",
    "mlp_step(comm, x, A, C, dy)",
    CASES,
    _try_mlp,
    _draw_mlp,
    on_ranks=True,
    solved_by=("parlab.labs.mlp_step",),
)

EXERCISES = (MLP,)


class TimedProducts:
    """A comm that tells the clock of an MLP's products: two before each all-reduce, as `views.mlp_film` wants.

    With arrays `by_tokens`, an all-reduce is a reduce-scatter, and then an all-gather of the next of them.
    """

    def __init__(self, comm: Comm, flops: int, by_tokens: Sequence[Any] = ()) -> None:
        self._comm, self._flops, self._by_tokens = comm, flops, list(by_tokens)
        self._next = [("columns", "rows"), ("rows, back", "columns, back")]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def all_reduce(self, x: Any, *arguments: Any, **options: Any) -> Any:
        """The comm's, behind the products."""
        for name in self._next.pop(0) if self._next else ():
            self.took(name)
        if not self._by_tokens:
            return self._comm.all_reduce(x, *arguments, **options)
        own = self._comm.reduce_scatter(x)
        self._comm.all_gather(self._by_tokens.pop(0))
        return own

    def took(self, name: str, products: int = 1) -> None:
        """Let the clock run on."""
        with self._comm.compute(name, flops=products * self._flops):
            pass


def mlp_run(step: Callable[..., Any], size: int = 2, *, by_tokens: bool = False, **options: Any) -> Run:
    """A run of `step(comm, x, A, C, dy)`, an MLP's step, with 60 tokens, E = 64 and M = 240; `views.mlp_film` draws it.

    Each product takes its time on the clock: of the forward before the first all-reduce, of dz and dx before the
    second, dA and dC at the end.

    Args:
        step: as the exercise 05.mlp_step wants it.
        size: t, which must divide 240, and 60 `by_tokens`.
        by_tokens: with sequence parallelism. Ranks hold their own tokens of x and dy, and of the sums y and dx; x is
            gathered before the columns and again for dA, and dy before the backward.
        options: as for `run`.

    Raises:
        ValueError: no function, or ranks that do not divide what is cut.

    >>> from parlab.labs import mlp_step
    >>> mlp_run(mlp_step).timeline.messages(0)
    4
    """
    if not callable(step):
        raise ValueError(f"step={step!r}: must be a function")
    whole("size", size, 1)
    if (60 if by_tokens else 240) % size:
        raise ValueError(f"size={size!r}: must divide {'the 60 tokens' if by_tokens else 'M = 240'}")
    draw = np.random.default_rng(2)
    shapes = (60, 64), (64, 240), (240, 64), (60, 64)
    x, A, C, dy = (draw.integers(-3, 4, size=shape).astype(float) for shape in shapes)

    def program(comm: Comm, A: Any, C: Any) -> Any:
        own = [np.split(array, size)[comm.rank] for array in (dy, x) if by_tokens]
        timed = TimedProducts(comm, 2 * x.shape[0] * A.size, own)
        results = step(timed, comm.all_gather(own[1]) if by_tokens else x, A, C, dy)
        timed.took("gradients", products=2)
        return results

    return run(program, size, *map(per_rank, (np.split(A, size, 1), np.split(C, size))), **options)
