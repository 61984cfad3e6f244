"""A limit for answers in a browser, where no second thread can watch a clock: an endless loop ends after many lines."""

from __future__ import annotations

import linecache
import sys
from types import CodeType
from typing import Any

from parlab.labs.explained import is_learners
from parlab.world.engines.base import Engine
from parlab.world.errors import Unwind

MOST_LINES = 2_000_000  # of the answer's own code, in one run; the exercises need a few thousand
monitoring: Any = getattr(sys, "monitoring", None)  # Python 3.12 and newer have it


class LineLimit:
    """As `TimeLimit`: ends a run that goes on for too long; `said` then tells where the run was.

    Args:
        ranks: the number of ranks, as it is shown; "" for a plain function.
    """

    def __init__(self, ranks: str):
        self.ranks = ranks
        self.engine: Engine | None = None  # of the run, once it has begun
        self.said: list[str] = []
        self._lines = 0

    def __enter__(self) -> None:
        tool, events = monitoring.PROFILER_ID, monitoring.events
        monitoring.use_tool_id(tool, "parlab")
        monitoring.register_callback(tool, events.LINE, self._line)
        monitoring.set_events(tool, events.LINE)
        monitoring.restart_events()

    def __exit__(self, *exception: object) -> None:
        monitoring.set_events(monitoring.PROFILER_ID, 0)
        monitoring.free_tool_id(monitoring.PROFILER_ID)

    def _line(self, code: CodeType, number: int) -> Any:
        """Python calls this before each line of code that is not disabled."""
        if not is_learners(code.co_filename):
            return monitoring.DISABLE
        self._lines += 1
        if self._lines > MOST_LINES and self.engine is not None:
            if not self.said:
                text = linecache.getline(code.co_filename, number).strip()
                place = f"at line {number} of {code.co_name}: `{text}`"
                self.said = [f"still running after {MOST_LINES:,} lines{self.ranks}; {place}".replace(",", " ")]
                self.engine.interrupt()
            raise Unwind
        return None
