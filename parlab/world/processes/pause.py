"""The pause between two polls, so that ranks that wait leave the cores to ranks that compute."""

from __future__ import annotations

import os
import time

SPINS, YIELDS = 5, 15  # polls without a pause, then polls that offer the core, before the first sleep
SHORTEST, LONGEST = 20e-6, 5e-3  # seconds of a sleep; between them, a tenth of the time since the first poll

give_way = getattr(os, "sched_yield", lambda: time.sleep(0))  # Windows has no sched_yield


class Pause:
    """The pauses of one wait: at first none, then the core is offered to others, then longer and longer sleeps."""

    def __init__(self) -> None:
        self.polls, self.began = 0, time.monotonic()

    def __call__(self) -> None:
        """Pause once."""
        self.polls += 1
        if SPINS < self.polls <= SPINS + YIELDS:
            give_way()
        elif self.polls > SPINS:
            time.sleep(min(max(SHORTEST, (time.monotonic() - self.began) / 10), LONGEST))
