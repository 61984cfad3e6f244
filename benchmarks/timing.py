"""Two ways of doing one thing, timed against each other so that a busy or slow machine disturbs both alike."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """Seconds of each side, one item a repeat."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def median(self) -> float:
        """Ours over theirs, of neighbouring repeats: what to report."""
        return statistics.median(ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True))

    @property
    def of_best(self) -> float:
        """Our fastest over their fastest: what is left when nothing else ran."""
        return min(self.ours) / min(self.theirs)

    def __str__(self) -> str:
        ours, theirs = statistics.median(self.ours), statistics.median(self.theirs)
        return f"{1e3 * ours:9.3f} ms / {1e3 * theirs:9.3f} ms = {self.median:5.2f} (of the best {self.of_best:5.2f})"


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def ratio(ours: Callable[[], object], theirs: Callable[[], object], repeats: int = 9) -> Ratio:
    """Time both in turn, `repeats` times after one warm-up; who goes first alternates."""
    calls = {"ours": ours, "theirs": theirs}
    taken: dict[str, list[float]] = {side: [] for side in calls}
    for call in calls.values():
        call()
    for repeat in range(repeats):
        for side in sorted(calls, reverse=bool(repeat % 2)):
            taken[side].append(seconds(calls[side]))
    return Ratio(tuple(taken["ours"]), tuple(taken["theirs"]))
