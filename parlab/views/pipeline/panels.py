"""The panels of a schedule's figure: lanes of bars (kind by colour, chunk by shade, microbatch by number) and, on the
same clock below them, lanes of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from parlab.pipeline import Action, KeptBytes, Schedule, ScheduleTimeline
from parlab.pipeline.timeline import TimedStep
from parlab.views.engine import marks, theme
from parlab.views.engine.lanes import LEFT, lanes_at, legend_of
from parlab.views.engine.lanes import RIGHT as NO_WORDS
from parlab.views.engine.picture import Picture, inches, sheet, short_bytes, write
from parlab.views.world.timeline import ACTION_KINDS

WHOLE, UPPER, LOWER = (-0.42, 0.42), (-0.42, 0.0), (0.0, 0.42)  # of a lane; an overlapped pair has its forward on top
PALEST = 0.55  # how much white the last chunk has
STEEPNESS = 0.7  # below 1 the second chunk is soon pale: at medium brightness neither black nor white is read well
RIGHT, TOP, BOTTOM = 0.95, 0.85, 0.6  # inches around the panels
GAP, LINE = 0.32, 0.24  # inches between bars and memory, and of a line of text
STRIP = 0.6  # of a lane of bars: a lane of memory
BAND = 0.15  # of a lane: the dark band of a rank's last chunk
FLOOR, HEIGHT = 0.44, 0.88  # of a lane: where the areas stand, and how high the highest is


def color_of(kind: str, white: float = 0.0) -> str:
    """The colour of F, B, I or W, made paler."""
    return theme.paler(theme.KINDS[ACTION_KINDS[kind]].color, white)


KEPT = [
    (color_of("F"), "activations kept until their backward, one level for each microbatch and stage", ""),
    (color_of("I"), "from I to W: what the weight gradient needs", ""),
]


class Bar(NamedTuple):
    """One action as it is drawn."""

    rank: int
    start: float
    end: float
    action: Action
    where: tuple[float, float]


def bars_of(steps: Iterable[TimedStep]) -> list[Bar]:
    """The actions that took time; those of an atomic pair share theirs."""
    bars = []
    for rank, start, end, actions in steps:
        halves = (UPPER, LOWER) if len(actions) > 1 else (WHOLE,)
        bars += [Bar(rank, start, end, action, where) for action, where in zip(actions, halves, strict=True)]
    return [bar for bar in bars if bar.end > bar.start]


def bars_of_all(shown: ScheduleTimeline) -> list[Bar]:
    """The actions of all ranks that took time."""
    return bars_of(step for rank in range(shown.size) for step in shown.steps(rank))


def chunks_of(schedule: Schedule) -> dict[tuple[int, int], float]:
    """For each rank and stage how much white its bars have: none on the first chunk of a rank, the most on the last."""
    paler = {}
    for rank, row in enumerate(schedule.actions):
        stages = sorted({action.stage for action in row})
        for number, stage in enumerate(stages):
            paler[rank, stage] = PALEST * (number / max(len(stages) - 1, 1)) ** STEEPNESS
    return paler


def draw_bars(axes: Axes, bars: list[Bar], schedule: Schedule, *, banded: bool = False) -> None:
    """A box an action with the number of its microbatch; those of later chunks are paler, or with `banded` have a dark
    band below, the thicker the later.
    """
    paler = chunks_of(schedule)
    bands = paler if banded else {}
    paler = dict.fromkeys(paler, 0.0) if banded else paler
    for where in (WHOLE, UPPER, LOWER):
        here = [bar for bar in bars if bar.where == where]
        colors = [color_of(bar.action.kind, paler[bar.rank, bar.action.stage]) for bar in here]
        texts = [[str(bar.action.microbatch)] for bar in here]
        marks.boxes(axes, "actions", here, [bar.rank for bar in here], where, colors, texts)
    for white in sorted(set(bands.values()) - {0}):
        later = [bar for bar in bars if bands[bar.rank, bar.action.stage] == white]
        below = WHOLE[1] - BAND * white / PALEST, WHOLE[1]
        marks.boxes(axes, "bands", later, [bar.rank for bar in later], below, theme.INK)


def legend_entries(schedules: Iterable[Schedule], *, banded: bool = False) -> list[tuple[str, str, str]]:
    """The kinds that occur, and what the shades or bands mean where a rank has several chunks: (colour, name, hatch)
    each.
    """
    rows = [row for schedule in schedules for row in schedule.actions]
    kinds = {action.kind for row in rows for action in row}
    most = max(len({action.stage for action in row}) for row in rows)
    entries = [(color_of(kind), theme.KINDS[name].name, "") for kind, name in ACTION_KINDS.items() if kind in kinds]
    if most > 1:
        color, look = (theme.INK, "band") if banded else (color_of("F", PALEST), "paler")
        entries.append((color, f"{look}: a later one of the rank's {most} chunks", ""))
    return entries


def lanes_height(ranks: int, part: float = 1) -> float:
    """Inches of the lanes of bars, or a part of them: a few ranks are drawn large, and 64 still fit on a screen."""
    return ranks * (part * min(0.45, max(0.11, 3.4 / ranks)))


def panel_height(ranks: int, memory: bool) -> float:
    """Inches of the bars and the memory of one schedule."""
    return lanes_height(ranks) + (GAP + lanes_height(ranks, STRIP) if memory else 0)


def draw_panels(
    figure: Picture,
    top: float,
    shown: ScheduleTimeline,
    highest: float,
    end: float | None = None,
    *,
    kept: KeptBytes | None = None,
    clock: bool = True,
) -> Axes:
    """Bars, and memory below them, from `top` inches on; returns the axes of the bars.

    A lane of memory is `highest` high, in chunks or, with `kept`, in bytes; for 0 there are bars only. The time axis
    goes to `end` (None: the makespan), and names the times if `clock`, under whichever panel is the lower.
    """
    height, strip = lanes_height(shown.size), lanes_height(shown.size, STRIP)
    below = top + height + GAP
    right = RIGHT if highest else NO_WORDS  # inches: nothing is written beside bars alone
    axes = lanes_at(figure, shown, end, top, height, right=right, clock=clock and not highest)
    draw_bars(axes, bars_of_all(shown), shown.schedule)
    if highest:
        memory = lanes_at(figure, shown, end, below, strip, right=RIGHT, clock=clock, words=False)
        legend_of(figure, _draw_kept(memory, shown, highest, kept), left=LEFT, below=below - 0.1)
    return axes


def remarked(
    text: Iterable[str], headline: str, remarks: Sequence[str], height: float, schedule: Schedule
) -> tuple[Picture, float]:
    """A picture with remarks in red under the legend, and from which inch on it has `height` inches for a panel."""
    top = TOP + LINE * len(remarks)
    figure = sheet(text, top + height + BOTTOM, headline)
    legend_of(figure, legend_entries([schedule]))
    for number, remark in enumerate(remarks):
        write(figure, 0.15, TOP - 0.12 + LINE * number, remark, theme.TEXT, color=theme.ALARM)
    return figure, top


def peaks(shown: ScheduleTimeline, kept: KeptBytes | None) -> list[float]:
    """The most that each rank keeps: chunks, or bytes if `kept` says what a chunk is."""
    if kept is None:
        return list(shown.peak_activations)
    return [max((total for _, total in shown.kept_bytes(rank, *kept[:2])), default=0) for rank in range(shown.size)]


def _draw_kept(
    axes: Axes, shown: ScheduleTimeline, highest: float, kept: KeptBytes | None
) -> list[tuple[str, str, str]]:
    """A lane a rank, all `highest` high: below, chunks that are kept whole; above, those left for their W."""
    layers = KEPT if any(action.kind == "W" for row in shown.schedule.actions for action in row) else KEPT[:1]
    whole, rest = (1, 1) if kept is None else kept[:2]
    areas = []
    for rank in range(shown.size):
        for pending in (rest, 0)[-len(layers) :]:  # 0: chunks before their I alone, drawn over all of them
            steps = shown.kept_bytes(rank, activation=whole, pending=pending)
            areas.append(_area(rank, steps, shown.makespan, highest))
    colors = [color for color, _, _ in reversed(layers)]
    axes.add_collection(PolyCollection(areas, facecolors=colors, linewidths=0, gid="kept"), autolim=False)
    size = min(theme.SMALL, 70 * inches(axes)[1] / shown.size)
    said = [short_bytes(most) if kept else f"peak {most}" for most in peaks(shown, kept)]
    marks.beside(axes, range(shown.size), said, size)
    floors = [rank + FLOOR for rank in range(shown.size)]
    axes.hlines(floors, 0, shown.makespan, color=theme.FAINT, linewidth=0.6)
    return layers


def _area(lane: int, steps: list[tuple[Any, int]], end: Any, highest: float) -> np.ndarray:  # [corners, x and y]
    last = dict(steps)  # of several changes at one time, the last
    times = np.array([0, *last, end], dtype=float)
    levels = np.array([0, *last.values(), 0], dtype=float)
    x, y = np.repeat(times, 2)[1:], np.repeat(levels, 2)[:-1]
    return np.column_stack([x, lane + FLOOR - HEIGHT * y / highest])
