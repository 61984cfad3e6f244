"""How long a redraw takes: from a slider's new value to the bytes of the picture. Target: under 100 ms.

For a schedule with p 16, m 64 (2048 actions, with its memory strip) the target is 200 ms.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import cycle

import numpy as np

from benchmarks.timing import seconds
from parlab import run, views
from parlab.pipeline import one_f_one_b, simulate
from parlab.views.engine.explore import Explorer
from parlab.views.engine.picture import png
from parlab.world import Comm

TARGET = 0.1  # seconds
OF_LARGE_SCHEDULES = 0.2
LARGE = "p 16, m 64"
REPEATS = 15


def main() -> None:
    for name, redraw in redraws().items():
        redraw()  # the first one loads fonts
        taken = [seconds(redraw) for _ in range(REPEATS)]
        median, best = statistics.median(taken), min(taken)
        verdict = "" if best < (OF_LARGE_SCHEDULES if LARGE in name else TARGET) else "  TOO SLOW"
        print(f"{name:<50} median {1e3 * median:6.1f} ms, best {1e3 * best:6.1f} ms{verdict}")


def redraws() -> dict[str, Callable[[], object]]:
    """What is timed, by name: each slider's move, and figures of a size that widgets draw."""
    found: dict[str, Callable[[], object]] = {}
    for name in ("all_reduce_seconds", "tensor", "ring_bill", "bubble_prices", "price_tag"):
        explore = getattr(views, f"explore_{name}")
        for control in explore().controls:  # each from where all the others start
            found[f"explore_{name}: {control}"] = _mover(explore(), control)
    ring = run(_all_reduce, 8, np.ones(1024))
    found["timeline: ring all-reduce of 8 ranks"] = lambda: png(views.timeline(ring))
    schedule = simulate(one_f_one_b(8, 32))
    found["timeline: 1F1B with p 8, m 32"] = lambda: png(views.timeline(schedule))
    large = simulate(one_f_one_b(16, 64))
    found[f"schedule: 1F1B with {LARGE}"] = lambda: png(views.schedule(large))
    return found


def _all_reduce(comm: Comm, x: np.ndarray) -> None:
    comm.all_reduce(x)


def _mover(explorer: Explorer, control: str) -> Callable[[], None]:
    """Moves the control on, to a value that it has not now."""
    widget = explorer.controls[control]
    values = cycle(value for _, value in widget.options)

    def move() -> None:
        new = next(values)
        widget.value = new if new != widget.value else next(values)

    return move
