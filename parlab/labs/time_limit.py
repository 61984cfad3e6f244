"""A time limit for answers: an endless loop ends as a run ends at Ctrl-C."""

from __future__ import annotations

import threading
import time
import traceback
from types import FrameType

from parlab.labs.explained import learners
from parlab.world.engines.base import Engine

GRACE = 3  # seconds until an answer that does not end is left behind


class TimeLimit:
    """Ends a run that takes too long; `said` then tells where the run was.

    Args:
        seconds: the limit, as it is shown.
        ends: the time at which the run must end, on `time.monotonic`'s clock.
        ranks: the number of ranks, as it is shown; "" for a plain function.
    """

    def __init__(self, seconds: float, ends: float, ranks: str):
        self.seconds, self.ends, self.ranks = seconds, ends, ranks
        self.engine: Engine | None = None  # of the run, once it has begun
        self.said: list[str] = []
        self._done = threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    def __exit__(self, *exception: object) -> None:
        self._done.set()

    def _watch(self) -> None:
        left = max(0, self.ends - time.monotonic())
        done = self._done.wait(min(left, threading.TIMEOUT_MAX))
        while not done and self.engine is None:
            done = self._done.wait(0.01)
        if done or self.engine is None:
            return
        where = _whereabouts(self.engine, bool(self.ranks))
        self.said = [f"still running after {self.seconds:g} s{self.ranks}; {where}"]
        self.engine.interrupt()
        if not self._done.wait(GRACE):
            self.said.append("and it cannot be ended: restart the kernel")
            self.engine.interrupt()


def _whereabouts(engine: Engine, ranks: bool) -> str:
    """The line at which each rank is; ranks that do not wait come first."""
    said = []
    for task in sorted(engine.tasks, key=lambda task: bool(task.missing)):
        frame = task.strand.frame
        lines = learners(traceback.extract_stack(frame)) if isinstance(frame, FrameType) else []
        waits = f" waits in {task.call}" if task.missing else ""
        if lines:
            line = f"at line {lines[-1].lineno} of {lines[-1].name}: `{lines[-1].line}`"
            said.append(f"rank {task.rank}{waits} {line}" if ranks else line)
    return ", ".join(said[:3]) or "it could not be seen where"
