"""Films: one picture after the other shows a process. `views.step_through` plays them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from parlab.views.drawing import theme
from parlab.views.drawing.marks import Height, Interval, boxes
from parlab.views.drawing.picture import Picture, pixels, png_of

MOVING, RESTING = 6, 5  # pictures of a step: while things move, and while they rest
EACH = 4  # pictures between two events on a clock
FADED = 0.16  # the opacity of what comes after the shown time


class Film(NamedTuple):
    """A film, as `step_through` plays it."""

    headline: str
    lines: list[str]  # one a step
    frames: list[tuple[int, float]]  # for each frame its step, and its place in the film
    png: Callable[[float], bytes]  # from a place to its picture


def steps_of(count: int) -> list[tuple[int, float]]:
    """The frames of a start and of `count - 1` steps. In each step something moves and then rests."""
    places = [(0, 0.0)] * RESTING
    for step in range(1, count):
        places += [(step, step - 1 + part / MOVING) for part in range(1, MOVING + 1)]
        places += [(step, float(step))] * RESTING
    return places


def moments_of(times: Sequence[float], end: float) -> list[tuple[int, float]]:
    """The frames of a clock that stops at each of `times`, ascending, and at `end`."""
    stops = [*times, end]
    return [
        (step, start + (stop - start) * part / EACH)
        for step, (start, stop) in enumerate(pairwise(stops))
        for part in range(EACH)
    ] + [(len(times) - 1, end)]


def revealed(figure: Picture, axes: Sequence[Axes]) -> Callable[[float], bytes]:
    """A function from a time to a PNG of `figure`, drawn once. In `axes`, what comes after the time is pale."""
    sharp = pixels(figure)
    pale = (255 - FADED * (255.0 - sharp)).astype(np.uint8)
    windows = [(one, one.get_window_extent().extents.round().astype(int)) for one in axes]

    def at(time: float) -> bytes:
        picture = sharp.copy()
        for one, (left, low, right, high) in windows:
            now = round(min(max(one.transData.transform((time, 0))[0], left), right))
            rows = slice(len(sharp) - high, len(sharp) - low)
            picture[rows, now:right] = pale[rows, now:right]
            picture[rows, max(now - 1, left) : now + 1] = np.round(np.multiply(to_rgba(theme.INK), 255))
        return png_of(picture)

    return at


def wrapped(lanes: Sequence[float], count: int) -> list[list[float]]:
    """The places of things that move around `count` lanes. One that leaves below enters above: it has two places."""
    return [[lane, lane - count] if lane > count - 1 else [lane] for lane in lanes]


def chips(axes: Axes, name: str, placed: Sequence[tuple[Interval, float, int]], where: Height) -> None:
    """Boxes with the number of a rank, in its colour. Each is (interval, lane, rank)."""
    spans, lanes, ranks = zip(*placed, strict=True) if placed else ((), (), ())
    boxes(axes, name, spans, lanes, where, [theme.rank_color(rank) for rank in ranks], [[str(rank)] for rank in ranks])


def step_at(times: Sequence[float], time: float) -> int:
    """The index of the last of the ascending `times` that is not after `time`."""
    return max(bisect_right(times, time) - 1, 0)
