"""Exercises whose answer is a rank program: run it, compare every rank's result, then compare what was counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.counts import ranks_in_words, wrong_count
from parlab.labs.difference import difference
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial, Wrong, need_messages
from parlab.world import CLASSROOM, Cluster, Run, per_rank

ONE_STEP = Cluster.uniform(
    latency=1e-6, bandwidth=math.inf
)  # every message takes a microsecond: a clock that counts steps


@dataclass(frozen=True)
class Case:
    """`size` ranks, each with its own array `x` of this shape and dtype, drawn from `seed`."""

    size: int
    shape: tuple[int, ...]
    dtype: str
    ranks_per_node: int = 1
    seed: int = 0

    def __str__(self) -> str:
        nodes = f" in nodes of {self.ranks_per_node}" if self.ranks_per_node > 1 else ""
        return f"{ranks_in_words(self.size)}{nodes}, x {self.dtype}[{', '.join(map(str, self.shape))}] on each"

    @property
    def elements(self) -> int:
        """Of one rank's array."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of one rank's array: n in the formulas."""
        return self.elements * self.itemsize

    def inputs(self) -> list[np.ndarray]:
        """Each rank's array: random whole numbers, so that sums are exact in any order."""
        random = np.random.default_rng([self.seed, self.size, *self.shape])
        return list(random.integers(1, 100, size=(self.size, *self.shape)).astype(self.dtype))


Shape = Callable[[np.random.Generator, int, int], tuple[int, ...]]  # from a generator, the ranks, and the longest axis


def growing(sizes: Sequence[int], shape: Shape) -> list[Case]:
    """A small and a larger case for each number of ranks, of random shapes and dtypes; always the same.

    One rank, if at all, comes after two: alone, a stub looks much like an answer.
    """
    random = np.random.default_rng(0)
    return [
        Case(size, shape(random, size, longest), str(random.choice(["float64", "float32"])))
        for size in sizes
        for longest in (3, 20)
    ]


def drawn(shape: Shape) -> Callable[[np.random.Generator, int], Case]:
    """Draws one more case for so many ranks."""

    def draw(random: np.random.Generator, size: int) -> Case:
        dtype = str(random.choice(["float64", "float32"]))
        return Case(size, shape(random, size, 24), dtype, seed=int(random.integers(1, 10**6)))

    return draw


def some_shape(random: np.random.Generator, size: int, longest: int) -> tuple[int, ...]:
    """A shape of one or two axes, none shorter than half of the longest."""
    return tuple(map(int, random.integers(longest // 2, longest + 1, size=random.integers(1, 3))))


@dataclass(frozen=True)
class Count:
    """Something that was counted, and the closed form that it must not exceed; or, if `exact`, must equal.

    Attributes:
        what: as it is shown: "bytes a rank sends".
        formula: the closed form, as it is shown.
        measured: the numbers of a run, one a rank; or one for all.
        allowed: the closed form of a case.
        likely: what usually makes it differ.
        show: how a number is shown.
        exact: whether less is wrong, too.
        early: whether it is looked at before the results are: they can hardly be right without.
    """

    what: str
    formula: str
    measured: Callable[[Run, Case], list[int]]
    allowed: Callable[[Case], int]
    likely: str
    show: Callable[[int], str] = str
    exact: bool = False
    early: bool = False

    def check(self, done: Run, case: Case) -> str:
        """The line that shows both; raises `Wrong` if the count is not as the closed form."""
        counts, allowed = self.measured(done, case), self.allowed(case)
        worst = max(counts, key=lambda count: abs(count - allowed) if self.exact else count)
        closed_form = (
            self.show(allowed) if self.formula == self.show(allowed) else f"{self.formula} = {self.show(allowed)}"
        )
        if worst > allowed or (self.exact and worst < allowed):
            where = f" (rank {counts.index(worst)})" if len(set(counts)) > 1 else ""
            shown = f"{self.what}: {self.show(worst)}{where}, should be {closed_form}"
            raise wrong_count(shown, self.likely, results_right=not self.early)
        return f"{self.what}: {self.show(worst)}; closed form: {closed_form}"


@dataclass(frozen=True)
class RankProgram:
    """How an answer that is a rank program is tried.

    Attributes:
        expected: from a case and the ranks' inputs, what every rank should return; None: whatever it likes.
        counts: what is counted besides.
        parts: if the result of a rank is a sum over the ranks: its terms. A result that lacks one is then explained.
        more: further arguments of the answer after `x`.
        calls: the collectives that the answer may use; send and recv it always may.
        tools: of these, the ones to name.
        cluster: the hardware that the run is timed on.
    """

    expected: Callable[[Case, list[Any]], list[Any]]
    counts: tuple[Count, ...]
    parts: Callable[[Case, list[Any], int], list[Any]] = lambda case, inputs, rank: []
    more: Callable[[Case], tuple[Any, ...]] = lambda case: ()
    calls: tuple[str, ...] = ()
    tools: tuple[str, ...] = ("send", "recv")
    cluster: Cluster = CLASSROOM

    def exercise(self, name: str, call: str, cases: Sequence[Case], draw: Any) -> Exercise:
        """The exercise of this name, whose answer is called as `call`."""
        return Exercise(name, call, cases, lambda trial, case: self.attempt(trial, case, call), draw, on_ranks=True)

    def attempt(self, trial: Trial, case: Case, call: str) -> list[str]:
        """Try the answer on `case`; the lines about what was counted.

        Raises:
            Wrong: the answer fails.
        """
        inputs = case.inputs()
        done = trial.ran(trial.answer, case.size, call, per_rank(inputs), *self.more(case), cluster=self.cluster)
        lines = [count.check(done, case) for count in self.counts if count.early]
        self._compare(done.results, case, inputs)
        need_messages(done)
        for name in sorted({transfer.name for transfer in done.timeline.transfers} - {"message", *self.calls}):
            tools = ", ".join(f"comm.{call}" for call in (*self.tools, *self.calls))
            raise Wrong(f"the results are right, but comm.{name} did the work: build it from {tools}")
        return lines + [count.check(done, case) for count in self.counts if not count.early]

    def _compare(self, results: list[Any], case: Case, inputs: list[Any]) -> None:
        """Raise `Wrong` for the lowest rank whose result is not as expected."""
        expected = self.expected(case, inputs)
        differences = [difference(result, wanted) for result, wanted in zip(results, expected, strict=True)]
        wrong = [rank for rank in range(case.size) if differences[rank]]
        if not wrong:
            return
        lines = [f"rank {wrong[0]} {differences[wrong[0]]}"]
        right = [rank for rank in range(case.size) if rank not in wrong and expected[rank] is not None]
        if right:
            lines.append(f"right on ranks: {', '.join(map(str, right))}; wrong on: {', '.join(map(str, wrong))}")
        if cause := self._cause(results[wrong[0]], wrong[0], expected, case, inputs):
            lines.append(f"likely cause: {cause}")
        raise Wrong(*lines)

    def _cause(self, result: Any, rank: int, expected: list[Any], case: Case, inputs: list[Any]) -> str | None:
        """The first well-known mistake that gives `result`."""

        def is_result(array: Any) -> bool:
            return array is not None and not difference(result, array)

        wanted = expected[rank]
        if result is None:
            return "a path through the program without a return"
        for other in range(case.size):
            if is_result(expected[other]):
                return f"this is what rank {other} should return; check which block ends where"
        if isinstance(wanted, tuple):
            return "the two are swapped" if is_result(wanted[::-1]) else None
        parts = self.parts(case, inputs, rank)
        if parts and is_result(parts[rank]):
            return "this is the rank's own contribution; nothing was added to it"
        for source, part in enumerate(parts):
            if is_result(wanted - part):
                return f"rank {source}'s contribution is missing"
            if is_result(wanted + part):
                return f"rank {source}'s contribution is counted twice"
        if is_result(inputs[rank]):
            return "this is what the rank started with"
        if is_result(wanted * case.size):
            return f"{case.size} times too much: divide by the number of ranks, once"
        if is_result(wanted / case.size):
            return f"{case.size} times too little: divided by the number of ranks once too often"
        return None


def inputs_of_all(case: Case, inputs: list[Any], rank: int) -> list[Any]:
    """The terms of a plain sum."""
    return inputs


def steps(done: Run, case: Case) -> list[int]:
    """How many messages follow one another, at most: the makespan if a message takes one tick and nothing else does."""
    return [round(done.on(ONE_STEP).makespan / 10**6)]


def bytes_sent(done: Run, case: Case) -> list[int]:
    """Of every rank."""
    return [done.timeline.bytes_sent(rank) for rank in range(case.size)]


def messages(done: Run, case: Case) -> list[int]:
    """Of every rank."""
    return [done.timeline.messages(rank) for rank in range(case.size)]
