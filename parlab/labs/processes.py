"""The exercises of notebook 09: an all-reduce for both worlds, the link from measured times, a send that waits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.counts import ranks_in_words
from parlab.labs.difference import brief
from parlab.labs.exercise import Exercise
from parlab.labs.rank_programs import (
    Case,
    Count,
    RankProgram,
    bytes_sent,
    drawn,
    growing,
    inputs_of_all,
    messages,
)
from parlab.labs.trial import Trial, Wrong
from parlab.world import Cluster, Run
from parlab.world.units import format_bytes

# The same sum, to the bit, on every rank


@dataclass(frozen=True)
class Fractions(Case):
    """As `Case`, with arrays whose sum depends on the order in its last bits."""

    def inputs(self) -> list[np.ndarray]:
        """Each rank's array."""
        random = np.random.default_rng([self.seed, self.size, *self.shape])
        return list(random.uniform(1, 2, (self.size, *self.shape)).astype(self.dtype))


def _row(random: np.random.Generator, size: int, longest: int) -> tuple[int, ...]:
    return (int(random.integers(longest // 2, longest + 1)),)


def _draw_row(random: np.random.Generator, size: int) -> Fractions:
    return Fractions(**vars(drawn(_row)(random, size)))


def _other_bits(done: Run, case: Case) -> list[int]:
    return [sum(np.asarray(result).tobytes() != np.asarray(done.results[0]).tobytes() for result in done.results)]


ALL_REDUCE = RankProgram(
    expected=lambda case, inputs: [sum(inputs)] * case.size,
    parts=inputs_of_all,
    counts=(
        Count(
            "ranks whose sum has other bits than rank 0's",
            "0",
            _other_bits,
            lambda case: 0,
            "ranks add in different orders, so copies of a weight drift apart; let one rank add a piece, and send the "
            "sum to all",
        ),
        Count(
            "bytes a rank sends",
            "2(N − 1)⌈n/N⌉",
            bytes_sent,
            lambda case: 2 * (case.size - 1) * -(-case.elements // case.size) * case.itemsize,
            "whole arrays travel where a piece of 1/N would do",
        ),
    ),
).exercise(
    "09.all_reduce",
    "all_reduce(comm, x)",
    [Fractions(**vars(case)) for case in growing((2, 1, *range(3, 9)), _row)],
    _draw_row,
)


# The link


@dataclass(frozen=True)
class Measured:
    """What an all-reduce took on `size` ranks, for several sizes: from a latency, a bandwidth, and 2 % of noise."""

    size: int
    seed: int = 0

    @property
    def link(self) -> tuple[float, float]:
        """Latency in seconds, bandwidth in bytes a second: rounded to two digits."""
        random = np.random.default_rng([self.seed, self.size])
        return float(f"{10 ** random.uniform(-6, -4):.1e}"), float(f"{10 ** random.uniform(9, 11):.1e}")

    def times(self) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of the arrays, and seconds."""
        latency, bandwidth = self.link
        bend = latency * bandwidth * self.size  # the bytes for which latency costs as much as bandwidth
        nbytes = 8 * np.round(bend * 4.0 ** np.arange(-5, 6) / 8).clip(1).astype(np.int64)
        seconds = 2 * (self.size - 1) * (latency + nbytes / self.size / bandwidth)
        noise = np.random.default_rng([self.seed, self.size, 1]).uniform(0.98, 1.02, len(nbytes))
        return nbytes, seconds * noise

    def __str__(self) -> str:
        nbytes, _ = self.times()
        return (
            f"{ranks_in_words(self.size)}, arrays of {format_bytes(int(nbytes[0]))} to {format_bytes(int(nbytes[-1]))}"
        )


NEAR = 0.05  # of what was asked for


def _near(found: float, wanted: float) -> bool:
    return abs(found / wanted - 1) <= NEAR


def _fit(trial: Trial, case: Measured) -> list[str]:
    nbytes, seconds = case.times()
    result = trial.called("fit(size, nbytes, seconds)", case.size, nbytes, seconds)
    try:
        latency, bandwidth = map(float, result)
    except (TypeError, ValueError):
        latency = bandwidth = math.nan
    if not (math.isfinite(latency) and math.isfinite(bandwidth)):
        raise Wrong(f"returned {brief(result)}, expected (latency, bandwidth): seconds, and bytes a second")
    right = case.link
    if _near(latency, right[0]) and _near(bandwidth, right[1]):
        return [f"latency {latency * 1e6:.2g} µs, bandwidth {bandwidth / 1e9:.2g} GB/s, both within 5 %"]
    said = [
        f"{name}: {found:.3g}, expected {wanted:.3g} within 5 %"
        for name, found, wanted in zip(("latency", "bandwidth"), (latency, bandwidth), right, strict=True)
        if not _near(found, wanted)
    ]
    raise Wrong(*said, *_likely_link(case, latency, bandwidth))


def _likely_link(case: Measured, latency: float, bandwidth: float) -> list[str]:
    right, steps = case.link, 2 * (case.size - 1)
    off, share = latency / right[0], bandwidth / right[1]
    causes = {
        "the two are swapped": _near(latency, right[1]) and _near(bandwidth, right[0]),
        "the slope of the line is seconds a byte: 1/bandwidth": bandwidth > 0 and share < 1e-9,
        "a ring takes 2(N − 1) messages one after the other; this is the latency of half of them": _near(off, 2),
        "a ring takes 2(N − 1) messages one after the other; this is the latency of all of them": _near(off, steps),
        "in a plain least-squares line the largest times drown the small ones: let every size count the same, by its "
        "relative error": _near(share, 1),
        "each of the 2(N − 1) messages carries n/N bytes, not n": _near(share, case.size),
        "n divided by the time: a rank sends 2(N − 1)/N of n in that time": _near(share, case.size / steps),
        "the bandwidth counts one half of the ring's messages": _near(share, 0.5),
    }
    return [f"likely cause: {cause}" for cause, fits in causes.items() if fits][:1]


FIT = Exercise(
    "09.fit",
    "fit(size, nbytes, seconds)",
    [Measured(size) for size in (2, 3, 4, 8, 16)],
    _fit,
    lambda random, size: Measured(size, int(random.integers(1, 10**6))),
)


# A send that relies on buffering


def _with_borders(case: Case, inputs: list[Any]) -> list[Any]:
    whole = np.concatenate(inputs)
    rows = len(inputs[0])
    return [whole[max(0, r * rows - 1) : (r + 1) * rows + 1] for r in range(case.size)]


NO_PORTS = Cluster.uniform(latency=1e-6, bandwidth=math.inf, ports=None)  # counts only what must follow one another


def _steps(done: Run, case: Case) -> list[int]:
    return [round(done.on(NO_PORTS).makespan / 10**6)]


def _plate(random: np.random.Generator, size: int, longest: int) -> tuple[int, ...]:
    return tuple(map(int, random.integers(longest // 2 + 1, longest + 1, size=2)))


BUFFERING = RankProgram(
    expected=_with_borders,
    counts=(
        Count(
            "messages a rank sends",
            "one to each neighbour",
            messages,
            lambda case: min(2, case.size - 1),
            "a rank needs one row of each neighbour, and nothing else",
        ),
        Count(
            "steps",
            "2",
            _steps,
            lambda case: 2,
            "no deadlock any more, but a chain: each rank waits for the one before it, and N − 1 messages follow one "
            "another; let all ranks pass to the right at once, then to the left",
        ),
        Count(
            "bytes a rank sends",
            "one row to each neighbour",
            bytes_sent,
            lambda case: min(2, case.size - 1) * case.shape[1] * case.itemsize,
            "more than a row travels to a neighbour",
        ),
    ),
).exercise("09.buffering", "borders(comm, x)", growing((2, 1, *range(3, 9)), _plate), drawn(_plate))

EXERCISES = (ALL_REDUCE, FIT, BUFFERING)
