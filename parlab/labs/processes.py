"""The exercises of notebook 09: a link fitted to measured times, an exchange that needs no buffer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.counts import bytes_sent, messages, ranks_in_words, steps
from parlab.labs.difference import brief, likely
from parlab.labs.exercise import Exercise
from parlab.labs.rank_programs import Case, check_results, on_arrays
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong
from parlab.world import Cluster, Comm, per_rank
from parlab.world.units import format_bytes

# The link


REPEATS, NOISE = 3, 18825  # times of each size; with this seed only the relative error of all of them finds the link


@dataclass(frozen=True)
class TimesCase:
    """Times of all-reduces of several sizes on `size` ranks: by a latency, a bandwidth, and 10 % of noise."""

    size: int
    seed: int = 0

    @property
    def link(self) -> tuple[float, float]:
        """Latency in seconds and bandwidth in bytes a second, rounded to two digits."""
        random = np.random.default_rng([self.seed, self.size])
        return float(f"{10 ** random.uniform(-6, -4):.1e}"), float(f"{10 ** random.uniform(9, 11):.1e}")

    def times(self) -> tuple[np.ndarray, np.ndarray]:
        """The bytes of each array, and the seconds that it took; each size three times."""
        latency, bandwidth = self.link
        bend = latency * bandwidth * self.size  # for so many bytes latency costs as much as bandwidth
        sizes = 8 * np.round(bend * 4.0 ** np.arange(-5, 6) / 8).clip(1).astype(np.int64)
        nbytes = np.repeat(sizes, REPEATS)
        seconds = 2 * (self.size - 1) * (latency + nbytes / self.size / bandwidth)
        noise = np.random.default_rng([NOISE, self.size, 1]).uniform(0.9, 1.1, len(nbytes))
        return nbytes, seconds * noise

    def __str__(self) -> str:
        nbytes, _ = self.times()
        return (
            f"{ranks_in_words(self.size)}, arrays of {format_bytes(int(nbytes[0]))} to {format_bytes(int(nbytes[-1]))}"
        )


NEAR = 0.05  # of the right value


def _near(found: float, wanted: float, near: float = NEAR) -> bool:
    return abs(found / wanted - 1) <= near


def _try_fit(trial: Trial, case: TimesCase) -> list[str]:
    nbytes, seconds = case.times()
    result = trial.called(case.size, nbytes, seconds)
    latency, bandwidth = _two_numbers(result)
    right = case.link
    if _near(latency, right[0]) and _near(bandwidth, right[1]):
        return [f"latency {latency * 1e6:.2g} µs, bandwidth {bandwidth / 1e9:.2g} GB/s, both within 5 %"]
    said = [
        f"{name}: {found:.3g}, expected {wanted:.3g} within 5 %"
        for name, found, wanted in zip(("latency", "bandwidth"), (latency, bandwidth), right, strict=True)
        if not _near(found, wanted)
    ]
    raise Wrong(*said, *_likely_link(case, latency, bandwidth))


def _two_numbers(result: Any) -> tuple[float, float]:
    """`result` as two finite floats."""
    parts = list(result) if isinstance(result, tuple | list | np.ndarray) else []
    real = [isinstance(x, int | float | np.number) and not isinstance(x, bool | complex) for x in parts]
    if len(parts) != 2 or not all(real) or not all(map(math.isfinite, parts)):
        raise Wrong(f"returned {brief(result)}, expected (latency, bandwidth): seconds, and bytes a second")
    return float(parts[0]), float(parts[1])


def _line(case: TimesCase, weight: float = 0.0) -> tuple[float, float]:
    """Latency and bandwidth of the straight line through all times, each weighted by seconds ** -weight."""
    nbytes, seconds = case.times()
    n, each = nbytes / case.size, seconds / (2 * (case.size - 1))
    slope, height = np.polyfit(n, each, 1, w=each**-weight)
    return float(height), float(1 / slope)


def _through_the_ends(case: TimesCase) -> list[tuple[float, float]]:
    """Latency and bandwidth from the smallest and the largest size alone, by what one may take of their three times."""
    nbytes, seconds = case.times()
    each, n = seconds / (2 * (case.size - 1)), nbytes[-1] / case.size
    pairs = [(each[0], each[-1])]
    pairs += [(pick(each[:REPEATS]), pick(each[-REPEATS:])) for pick in (np.mean, np.median, np.min)]
    return [(float(small), float(n / (large - small))) for small, large in pairs]


def _by_logarithms(case: TimesCase) -> list[tuple[float, float]]:
    """exp(height) and 1/slope of lines through logarithms: of n or n/P, and of the time of all messages or of one."""
    nbytes, seconds = case.times()
    lines = [
        np.polyfit(np.log(n), np.log(time), 1)
        for n in (nbytes, nbytes / case.size)
        for time in (seconds, seconds / (2 * (case.size - 1)))
    ]
    return [(math.exp(height), 1 / float(slope)) for slope, height in lines]


def _likely_link(case: TimesCase, latency: float, bandwidth: float) -> list[str]:
    right, steps = case.link, 2 * (case.size - 1)
    off, share = latency / right[0], bandwidth / right[1]

    def is_line(weight: float = 0.0, messages: int = 1) -> bool:
        line = _line(case, weight)
        return _near(latency, line[0] * messages, 0.001) and _near(bandwidth, line[1] / messages, 0.001)

    not_divided = _near(off, steps) or any(is_line(weight, messages=steps) for weight in (0.0, 0.5))
    n_over_time = _near(share, case.size / steps, 0.1) and not _near(off, steps / case.size, 0.1)
    causes = {
        "the two are swapped": _near(latency, right[1], 0.1) and _near(bandwidth, right[0], 0.1),
        "the slope of the line is seconds a byte: 1/bandwidth": _near(bandwidth * right[1], 1),
        "the latency is in microseconds: α is wanted in seconds": _near(off, 1e6),
        "the latency is in nanoseconds: α is wanted in seconds": _near(off, 1e9),
        "the bandwidth is in gigabytes a second: bytes a second are wanted": _near(share, 1e-9),
        "in a plain least-squares line the largest times drown the small ones: let every size count the same, by its "
        "relative error": is_line(),
        "with w = 1/√seconds the largest times still count too much: let every size count the same, by its relative "
        "error": is_line(0.5),
        "this is the line through the smallest and the largest size alone, and their times are noisy: use all times": (
            any(_near(latency, a, 0.002) and _near(bandwidth, b, 0.002) for a, b in _through_the_ends(case))
        ),
        "a straight line through logarithms is a power of n, and α + n/P/bandwidth is none: fit the times themselves, "
        "by their relative error": any(
            _near(latency, a, 0.002) or _near(bandwidth, b, 0.002) for a, b in _by_logarithms(case)
        ),
        "a ring takes 2(P − 1) messages one after the other, and this is the time of all: divide by 2(P − 1)": (
            not_divided
        ),
        "a ring takes 2(P − 1) messages one after the other: P − 1 until the sums are made, and P − 1 until all have "
        "them; this counts one half": _near(off, 2),
        "a ring takes 2(P − 1) messages one after the other, and this counts 2P": (
            _near(off, 1 - 1 / case.size, 0.1) and _near(share, case.size / (case.size - 1), 0.1)
        ),
        "each of the 2(P − 1) messages carries n/P bytes, not n": _near(share, case.size),
        "n divided by the time: a rank sends 2(P − 1)/P of n in that time": n_over_time,
    }
    return likely(causes.items())


FIT = Exercise(
    "09.fit",
    "fit(size, nbytes, seconds)",
    # 3 ranks first: with 2 the factors 2(P − 1) and 2 are the same, and the cause cannot be told.
    [TimesCase(size) for size in (3, 2, 4, 8, 16)],
    _try_fit,
    lambda random, size: TimesCase(size),
)


# A send that relies on buffering


NO_PORTS = Cluster.uniform(
    latency=1e-6, bandwidth=math.inf, ports=None
)  # a clock that counts only messages that must follow one another


def _plate(random: np.random.Generator, size: int, longest: int) -> tuple[int, ...]:
    return tuple(map(int, random.integers(longest // 2 + 1, longest + 1, size=2)))


def _try_buffering(trial: Trial, case: Case) -> list[str]:
    x, P, (rows, columns) = case.inputs(), case.size, case.shape
    done = trial.ran(trial.answer, P, per_rank(x))
    whole = np.concatenate(x)
    check_results(
        done,
        x,
        [whole[max(0, rank * rows - 1) : (rank + 1) * rows + 1] for rank in range(P)],
        mistakes=_wrong_rows(x),
    )
    neighbours = min(2, P - 1)
    return [
        messages(done).check(
            "one to each neighbour", neighbours, "a rank needs one row of each neighbour, and nothing else", limit=True
        ),
        steps(done, NO_PORTS).check(
            "2",
            2,
            "there is no deadlock, but a chain: either each rank waits for the one before it, so it grows with P, or a "
            "rank serves its neighbours one after the other; let all ranks send to the right at the same time, then to "
            "the left",
            limit=True,
        ),
        bytes_sent(done).check(
            "one row to each neighbour",
            neighbours * columns * case.itemsize,
            "a rank sends more than a row to a neighbour",
            limit=True,
        ),
    ]


def _wrong_rows(x: list[Any]) -> dict[str, list[Any]]:
    """After each of the usual mistakes, by its cause: the array of every rank."""
    last = len(x) - 1

    def around(above: int, below: int) -> list[tuple[Any, Any]]:
        """Row `above` of the strip above each rank, and row `below` of the one below; empty at the ends."""
        return [
            (x[rank - 1][above:][:1] if rank > 0 else mine[:0], x[rank + 1][below:][:1] if rank < last else mine[:0])
            for rank, mine in enumerate(x)
        ]

    ring = [(x[rank - 1][-1:], x[(rank + 1) % len(x)][:1]) for rank in range(len(x))]
    near, far = around(-1, 0), around(0, -1)
    return {
        "a rank sends the far row: the first row belongs to the rank above, the last row to the rank below": [
            np.concatenate([above, mine, below]) for (above, below), mine in zip(far, x, strict=True)
        ],
        "the row above and the row below are in each other's place": [
            np.concatenate([below, mine, above]) for (above, below), mine in zip(near, x, strict=True)
        ],
        "the plate is no ring: the top rank has no row above, and the bottom rank none below": [
            np.concatenate([above, mine, below]) for (above, below), mine in zip(ring, x, strict=True)
        ],
    }


def borders(comm: Comm, x: Any) -> Any:
    """x with the row above it and the row below it, where there are such: the exercise 09.buffering."""
    above = below = x[:0]
    top, bottom = comm.rank == 0, comm.rank == comm.size - 1
    down = None if bottom else comm.isend(x[-1:], comm.rank + 1)
    if not top:
        above = comm.recv(comm.rank - 1, like=x[:1])
    if down is not None:
        down.wait()
    up = None if top else comm.isend(x[:1], comm.rank - 1)
    if not bottom:
        below = comm.recv(comm.rank + 1, like=x[:1])
    if up is not None:
        up.wait()
    return np.concatenate([above, x, below])


BUFFERING = on_arrays("09.buffering", "borders(comm, x)", _try_buffering, _plate, solved_by=("parlab.labs.borders",))

EXERCISES = (FIT, BUFFERING)
