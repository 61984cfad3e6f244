"""The board of a schedule whose actions are moved: lanes over memory in HTML, whose words keep their size on a narrow
page, and whose colours are the same on a dark one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from matplotlib.ticker import MaxNLocator

from parlab.pipeline import Action, Costs, Idle, Schedule, ScheduleTimeline, simulate, validate
from parlab.pipeline.stuck import until_stuck
from parlab.views.engine import theme
from parlab.views.pipeline.panels import Bar, bars_of, bars_of_all, chunks_of, color_of, legend_entries
from parlab.views.pipeline.schedule import describe

Goal = tuple[float, float]  # a makespan, and the most chunks that a rank may keep
LANE, BAR, STRIP, LEVEL, AXIS = 36, 28, 30, 24, 24  # pixels: a lane, its bars; a strip of memory, the highest level
PAGE = "var(--jp-layout-color0,var(--color-background-primary,Canvas))"
NARROWEST, DIGIT = 13, 4  # pixels of a lane for its shortest action with one digit, and for each digit more: on a
# narrower page the lanes move sideways under the names
NAMES = f"position:sticky;left:0;z-index:1;background:{PAGE};text-align:right;padding-right:8px"
LINE = "<p style='margin:.3em 0'>"


@dataclass(frozen=True)
class Board:
    """A drawn schedule, in HTML and in words."""

    text_shown: str
    html: str

    def __repr__(self) -> str:
        return self.text_shown

    def _repr_html_(self) -> str:
        return self.html


def board(
    own: Schedule,
    goals: Sequence[Goal],
    costs: Costs,
    chosen: Action | None,
    remark: str,
    reached: int,
) -> Board:
    """Draw `own` with the first of the `goals` that is not among the `reached`, with `chosen` framed and a `remark`
    above; where `own` cannot run, where it stops and why.
    """
    try:
        validate(own)
    except ValueError as error:
        return _stopped(own, str(error), chosen)
    shown = simulate(own, costs)
    end, limit = goals[min(reached, len(goals) - 1)]
    most = _most(shown)
    over = " (too much)" if most > limit else ""
    said_of_own = f"{_name(shown)}: {shown.makespan:g} units, {_kept(most)} on its fullest rank{over}"
    said_of_goals = [_goal(goals, number, number < reached) for number in range(min(reached + 1, len(goals)))]
    panel = _panel(shown, (max(shown.makespan, end), max(most, limit)), chosen, (end, limit))
    text = [said_of_own, *said_of_goals, *describe(shown).splitlines()[1:]]
    lines = [f"{LINE}{escape(goal)}</p>" for goal in said_of_goals]
    return _made(text, remark, [_bold(said_of_own), *lines, _legend([own]), panel])


def reaches(shown: ScheduleTimeline, goal: Goal) -> bool:
    """Whether a schedule ends in time, and no rank keeps too much."""
    return shown.makespan <= goal[0] and _most(shown) <= goal[1]


def _made(text: Iterable[str], remark: str, parts: Sequence[str]) -> Board:
    said = "\n".join(text)
    inside = (_bold(remark) if remark else "") + "".join(parts)
    return Board(said, f"<div class='parlab-answer' style='width:100%;max-width:760px;line-height:1.4'>{inside}</div>")


def _bold(line: str) -> str:
    return f"{LINE}<b>{escape(line)}</b></p>"


def _goal(goals: Sequence[Goal], number: int, done: bool) -> str:
    end, limit = goals[number]
    name = f"goal {number + 1} of {len(goals)}" if len(goals) > 1 else "goal"
    return f"{name}: {end:g} units, at most {_kept(limit)}" + (": reached ✓" if done else "")


def _kept(chunks: float) -> str:
    return f"{chunks:g} activations"


def _name(shown: ScheduleTimeline) -> str:
    return shown.schedule.name.split(",")[0]


def _most(shown: ScheduleTimeline) -> float:
    """The chunks that the fullest rank keeps."""
    return max(shown.peak_activations)


def _legend(schedules: Sequence[Schedule]) -> str:
    """The kinds of actions; the strips of memory have the colours of F, and of I until the W."""
    squares = [
        f"<span style='white-space:nowrap'><span style='display:inline-block;width:14px;height:14px;"
        f"background:{color};vertical-align:-2px'></span> {escape(name)}</span>"
        for color, name, _ in legend_entries(schedules)
    ]
    return f"<div style='display:flex;flex-wrap:wrap;gap:2px 16px;margin:6px 0;font-size:14px'>{''.join(squares)}</div>"


def _stopped(own: Schedule, reason: str, chosen: Action | None) -> Board:
    """A schedule that cannot run, up to where it stops, with what each rank needs then."""
    done, stops = until_stuck(own)
    end = 1.8 * (1 + max((step.end for step in done), default=0))
    bars = bars_of(done)
    lanes = _lanes(own, bars, end, chosen) + "".join(_needs(stop, end) for stop in stops)
    text = f"{own.name} cannot run: {reason}"
    drawn = _grid([_ranks(own)], [_svg(lanes, LANE * own.num_ranks)], bars, end)
    return _made([text], "", [*map(_bold, text.splitlines()), _legend([own]), drawn])


def _needs(stop: Idle, end: float) -> str:
    y = LANE * stop.rank
    left, width = _percent(stop.start, end), _percent(end - stop.start, end)
    look = f"height='{BAR}' fill='none' stroke='currentColor' stroke-dasharray='3 3'"
    words = f"x='{left}' dx='6' y='{y + LANE / 2:g}' style='text-anchor:start'>{stop.action} needs {stop.needs}"
    return f"<rect x='{left}' width='{width}' y='{y + (LANE - BAR) / 2:g}' {look}/><text {words}</text>"


def _panel(shown: ScheduleTimeline, scales: tuple[float, float], chosen: Action | None, goal: Goal) -> str:
    """Lanes, the clock and strips of memory; `scales`: the end of the clock, and the most of a strip."""
    (end, highest), ranks = scales, shown.size
    height = LANE * ranks
    ticks = [tick for tick in MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values(0, end) if tick <= end]
    ticks = [tick for tick in ticks if abs(tick - goal[0]) > end / 6]  # room for its word
    bars = bars_of_all(shown)
    lanes = _lanes(shown.schedule, bars, end, chosen)
    for tick in ticks:  # the first would be half under the names
        look = "" if tick else " style='text-anchor:start'"
        lanes += f"<text x='{_percent(tick, end)}' y='{height + AXIS / 2:g}'{look}>{tick:g}</text>"
    strips = "".join(_strip(shown, rank, scales) for rank in range(ranks))
    x = _percent(goal[0], end)
    lanes += f"<line class='goal' x1='{x}' x2='{x}' y1='0' y2='{height}' {_DASHES}/>"
    lanes += f"<text x='{x}' y='{height + AXIS / 2:g}' font-weight='700'>goal {goal[0]:g}</text>"
    tops = [STRIP * (rank + 1) - LEVEL * goal[1] / highest for rank in range(ranks)]
    strips += "".join(f"<line class='limit' x1='0' x2='100%' y1='{y:.1f}' y2='{y:.1f}' {_DASHES}/>" for y in tops)
    most = [f"{rank}: keeps {chunks:g}" for rank, chunks in enumerate(shown.peak_activations)]
    names = [_ranks(shown.schedule), _rows(most, STRIP)]
    return _grid(names, [_svg(lanes, height + AXIS), _svg(strips, STRIP * ranks)], bars, end)


_DASHES = "stroke='currentColor' stroke-width='1.5' stroke-dasharray='5 3'"


def _grid(names: Sequence[str], drawn: Sequence[str], bars: Sequence[Bar], end: float) -> str:
    """Names at the left, which stay where they are, and what is drawn beside them."""
    shortest = min((bar.end - bar.start for bar in bars), default=1)
    digits = max((len(str(bar.action.microbatch)) for bar in bars), default=1)
    narrowest = NARROWEST + DIGIT * (digits - 1)
    columns = f"max-content minmax({narrowest * float(end) / float(shortest):.0f}px,1fr)"
    cells = "".join(f"<div style='{NAMES}'>{name}</div>{svg}" for name, svg in zip(names, drawn, strict=True))
    grid = f"display:grid;min-width:max-content;grid-template-columns:{columns};padding-right:28px;font-size:14px"
    return f"<div style='overflow-x:auto;contain:inline-size'><div style='{grid}'>{cells}</div></div>"


def _rows(names: Iterable[str], height: float) -> str:
    """Lines of words, each as high as a lane."""
    return "".join(f"<div style='height:{height}px;line-height:{height}px'>{escape(name)}</div>" for name in names)


def _ranks(schedule: Schedule) -> str:
    return _rows((f"rank {rank}" for rank in range(schedule.num_ranks)), LANE)


def _svg(inside: str, height: float) -> str:
    look = "overflow:visible;text-anchor:middle;dominant-baseline:central;font-size:14px;fill:currentColor"
    size = "width:0;min-width:100%"  # width:100% would ask for 300 pixels where the column may be narrower
    return f"<svg height='{height:g}' style='{size};{look}'>{inside}</svg>"


def _percent(time: float, end: float) -> str:
    return f"{100 * float(time) / float(end):.2f}%"


def _lanes(schedule: Schedule, bars: Sequence[Bar], end: float, chosen: Action | None) -> str:
    """A box an action with the number of its microbatch; the chosen one last, because its frame stands out."""
    paler = chunks_of(schedule)
    drawn = ""
    for bar in sorted(bars, key=lambda bar: bar.action == chosen):
        low, high = (LANE / 2 + BAR * part / 0.84 for part in bar.where)
        y = LANE * bar.rank
        color = color_of(bar.action.kind, paler[bar.rank, bar.action.stage])
        place = f"x='{_percent(bar.start, end)}' width='{_percent(bar.end - bar.start, end)}' y='{y + low:g}'"
        place += f" height='{high - low:g}'"
        drawn += f"<rect {place} fill='{color}' style='stroke:{PAGE};stroke-width:1'/>"
        if bar.action == chosen:
            drawn += f"<rect class='chosen' {place} style='fill:none;stroke:{PAGE};stroke-width:7'/>"
            drawn += f"<rect {place} fill='none' stroke='currentColor' stroke-width='3'/>"
        middle = _percent((bar.start + bar.end) / 2, end)
        ink = theme.text_color(color)
        drawn += f"<text x='{middle}' y='{y + (low + high) / 2:g}' fill='{ink}'>{bar.action.microbatch}</text>"
    return drawn


def _strip(shown: ScheduleTimeline, rank: int, scales: tuple[float, float]) -> str:
    """The chunks that a rank keeps: all in the colour of I, and over them in that of F those before I or B."""
    end, highest = scales
    drawn = ""
    for kind, pending in (("I", 1), ("F", 0)):
        levels = dict(shown.kept_bytes(rank, activation=1, pending=pending))  # of several at a time, the last
        for (start, level), (stop, _) in pairwise([*levels.items(), (shown.makespan, 0)]):
            if level:
                high = LEVEL * level / highest
                place = f"x='{_percent(start, end)}' width='{_percent(stop - start, end)}'"
                y = STRIP * (rank + 1) - high
                drawn += f"<rect {place} y='{y:.1f}' height='{high:.1f}' fill='{color_of(kind)}'/>"
    floor = STRIP * (rank + 1)
    line = f"<line x1='0' x2='100%' y1='{floor}' y2='{floor}' stroke='currentColor' stroke-opacity='.4'/>"
    return drawn + line
