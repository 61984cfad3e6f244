"""The bars of a simulated schedule: kind by colour, chunk by shade, microbatch by number."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from matplotlib.axes import Axes

from parlab.pipeline import Schedule, ScheduleTimeline
from parlab.views.drawing import marks, theme
from parlab.views.timelines.timeline import ACTION_KINDS

WHOLE, UPPER, LOWER = (-0.42, 0.42), (-0.42, 0.0), (0.0, 0.42)  # of a lane; an overlapped pair has its forward on top
ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
PALEST = 0.55  # how much white the last chunk has
STEEPNESS = 0.7  # below 1 the second chunk is soon pale: at medium brightness neither black nor white is read well


class Bar(NamedTuple):
    """One action as it is drawn."""

    rank: int
    start: float
    end: float
    kind: str
    stage: int
    microbatch: int
    where: tuple[float, float]


def bars_of(shown: ScheduleTimeline) -> list[Bar]:
    """The actions that took time; those of an atomic pair share theirs."""
    bars = []
    for rank, start, end, _, name in shown.computes:
        parts = ACTION.findall(name)
        for where, (stage, kind, microbatch) in zip((UPPER, LOWER) if len(parts) > 1 else (WHOLE,), parts, strict=True):
            bars.append(Bar(rank, start, end, kind, int(stage), int(microbatch), where))
    return [bar for bar in bars if bar.end > bar.start]


def chunks_of(schedule: Schedule) -> dict[tuple[int, int], float]:
    """For each rank and stage how much white its bars have: none on the first chunk of a rank, the most on the last."""
    paler = {}
    for rank, row in enumerate(schedule.actions):
        stages = sorted({action.stage for action in row})
        for number, stage in enumerate(stages):
            paler[rank, stage] = PALEST * (number / max(len(stages) - 1, 1)) ** STEEPNESS
    return paler


def draw_bars(axes: Axes, bars: list[Bar], paler: dict[tuple[int, int], float]) -> None:
    """A box an action with the number of its microbatch."""
    for where in (WHOLE, UPPER, LOWER):
        here = [bar for bar in bars if bar.where == where]
        if here:
            lanes = [bar.rank for bar in here]
            colors = [color_of(bar.kind, paler[bar.rank, bar.stage]) for bar in here]
            marks.boxes(axes, "actions", here, lanes, where, colors, [[str(bar.microbatch)] for bar in here])


def color_of(kind: str, white: float = 0.0) -> str:
    """The colour of F, B, I or W, made paler."""
    return theme.paler(theme.KINDS[ACTION_KINDS[kind]].color, white)


def legend_entries(schedules: Iterable[Schedule]) -> list[tuple[str, str, str]]:
    """The kinds that occur, and what the shades mean where a rank has several chunks: (colour, name, hatch) each."""
    rows = [row for schedule in schedules for row in schedule.actions]
    kinds = {action.kind for row in rows for action in row}
    most = max(len({action.stage for action in row}) for row in rows)
    entries = [(color_of(kind), theme.KINDS[name].name, "") for kind, name in ACTION_KINDS.items() if kind in kinds]
    if most > 1:
        entries.append((color_of("F", PALEST), f"paler: a later one of the rank's {most} chunks", ""))
    return entries
