"""A schedule that cannot run, drawn up to where it stops."""

from __future__ import annotations

from typing import NamedTuple

from parlab.pipeline import Action, Schedule, validate
from parlab.pipeline.dependencies import input_from, kept_from
from parlab.views import marks, theme
from parlab.views.lanes import legend_of, name_lanes
from parlab.views.picture import Picture, framed, title
from parlab.views.schedule_bars import WHOLE, Bar, chunks_of, draw_bars, legend_entries
from parlab.views.schedule_panels import BOTTOM, LEFT, LINE, RIGHT, TOP, lane_heights, write_lines
from parlab.views.why import edge, frame

TAKES = {"F": 1, "B": 2, "I": 1, "W": 1}
ROOM = 0.45  # for what the ranks wait for, beside what they did


class Stop(NamedTuple):
    """Where a rank stands for ever: from `start` on it cannot do `action`, which `needs` what never comes."""

    rank: int
    start: float
    end: float
    action: Action
    needs: Action


def refusal(schedule: Schedule) -> str | None:
    """Why a schedule cannot run; None if it can."""
    try:
        validate(schedule)
    except ValueError as error:
        return str(error)
    return None


def stuck(schedule: Schedule, reason: str) -> Picture:
    """Draw what the ranks do with unit costs until none can go on, and what each needs then."""
    bars, stops = until_stuck(schedule)
    end = max((bar.end for bar in bars), default=0) + 1
    lines = reason.splitlines()
    ranks, lane = schedule.num_ranks, lane_heights(schedule.num_ranks)[0]
    top = TOP + LINE * len(lines)
    height = top + ranks * lane + BOTTOM
    figure = Picture(f"{schedule.name or 'this schedule'} cannot run: {reason}", theme.WIDTH, height)
    box = (LEFT / theme.WIDTH, BOTTOM / height, 1 - (LEFT + RIGHT) / theme.WIDTH, ranks * lane / height)
    axes = framed(figure, box)
    axes.set_xlim(0, end / (1 - ROOM))
    axes.set_xlabel("time (units), F, I and W taking 1 each", size=theme.TEXT, color=theme.INK)
    name_lanes(axes, list(range(ranks)))
    draw_bars(axes, bars, chunks_of(schedule))
    standing = [stop._replace(end=0.998 * end / (1 - ROOM)) for stop in stops]
    marks.hatched_boxes(axes, "stops", standing, [stop.rank for stop in stops], WHOLE, theme.KINDS["wait"])
    frame(axes, "stuck", [(stop.rank, stop.start, stop.end) for stop in standing])
    words = [[f"{stop.action} needs {stop.needs}", f"needs {stop.needs}", str(stop.needs)] for stop in stops]
    marks.labels(axes, standing, [stop.rank for stop in stops], WHOLE, words, [theme.ALARM] * len(stops))
    holder = {action: rank for rank, row in enumerate(schedule.actions) for action in row}
    waits = [(stop, holder[stop.needs]) for stop in standing if stop.needs in holder]
    marks.arrows(
        axes,
        [(stop.end * (1 - 0.03 * (1 + stop.rank)), edge(stop.rank, peer)) for stop, peer in waits if peer != stop.rank],
        [(stop.end * (1 - 0.03 * (1 + stop.rank)), edge(peer, stop.rank)) for stop, peer in waits if peer != stop.rank],
        theme.ALARM,
    )
    title(figure, f"{schedule.name or 'This schedule'} cannot run")
    legend_of(figure, legend_entries([schedule]))
    write_lines(figure, lines, TOP - 0.12, theme.ALARM)
    return figure


def until_stuck(schedule: Schedule) -> tuple[list[Bar], list[Stop]]:
    """What the ranks do before none can go on, and where each that is not done then stands."""
    last = schedule.num_stages - 1
    ended: dict[Action, float] = {}
    bars: list[Bar] = []
    position, time = [0] * schedule.num_ranks, [0.0] * schedule.num_ranks

    def unmet(action: Action) -> Action | None:
        kept, inputs = kept_from(action), input_from(action, last)
        if kept is not None and kept not in ended:
            return kept
        return inputs[-1] if inputs and not any(source in ended for source in inputs) else None

    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(schedule.actions):
            while position[rank] < len(row) and unmet(action := row[position[rank]]) is None:
                arrived = [ended[source] for source in input_from(action, last) if source in ended]
                start = max([time[rank], *arrived])
                ended[action] = time[rank] = start + TAKES[action.kind]
                bars.append(Bar(rank, start, time[rank], *action, WHOLE))
                position[rank] += 1
                moved = True
    stops = []
    for rank, row in enumerate(schedule.actions):
        if position[rank] < len(row):
            action = row[position[rank]]
            needs = unmet(action)
            assert needs is not None, "a rank stands only at what it cannot do"
            stops.append(Stop(rank, time[rank], time[rank], action, needs))
    return bars, stops
