"""Contenders that need a process of their own (other threads, other settings), asked in turn and timed by themselves.

A busy minute of the machine then hits all of them alike.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from benchmarks.timing import Ratio, seconds


def serve(tasks: dict[str, Callable[[], object]], answer: float) -> None:
    """In a contender's process: warm up, tell `answer` (the parent compares results), then time what is asked for."""
    for task in tasks.values():
        task()
    print(f"ready {answer!r}", flush=True)
    for line in sys.stdin:
        print(seconds(tasks[line.strip()]), flush=True)


class Contender:
    """A process that calls `serve`.

    Args:
        name: as the table shows it.
        arguments: what Python is started with.
    """

    def __init__(self, name: str, arguments: Sequence[str]):
        self.name = name
        self.taken: dict[str, list[float]] = {}
        self._process = subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        word, _, answer = self._read().partition(" ")
        if word != "ready":
            raise RuntimeError(f"{name} did not start")
        self.answer = float(answer)

    def __enter__(self) -> Contender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # serve ends with its input
        self._process.wait()

    def run(self, task: str) -> None:
        """Run `task` once more and keep how long it took."""
        assert self._process.stdin is not None
        print(task, file=self._process.stdin, flush=True)
        self.taken.setdefault(task, []).append(float(self._read()))

    def over(self, other: Contender, task: str, other_task: str = "") -> Ratio:
        """Our times of `task` over the other's."""
        return Ratio(tuple(self.taken[task]), tuple(other.taken[other_task or task]))

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def contest(rounds: int, entries: Sequence[tuple[Contender, str]]) -> None:
    """Each task of each contender in turn, `rounds` times."""
    for _ in range(rounds):
        for contender, task in entries:
            time.sleep(0.2)  # OpenBLAS's threads spin for a while after a product, and would disturb the next
            contender.run(task)
