"""A schedule that cannot run, drawn up to where it stops."""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.axes import Axes

from parlab.pipeline import Action, Schedule, validate
from parlab.pipeline.dependencies import input_from, kept_from
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import LEFT, legend_of, name_lanes
from parlab.views.drawing.picture import Picture, panel, scale, sheet
from parlab.views.schedules.bars import WHOLE, Bar, chunks_of, draw_bars, legend_entries
from parlab.views.schedules.panels import BOTTOM, LINE, RIGHT, TOP, lane_heights, write_lines
from parlab.views.schedules.why import edge, frame

TAKES = {"F": 1, "B": 2, "I": 1, "W": 1}
ROOM = 0.45  # for what the ranks wait for, beside what they did


class Stop(NamedTuple):
    """Where a rank stands for ever: from `start` on, at `action`, which `needs` what never comes from rank `peer`."""

    rank: int
    start: float
    end: float
    action: Action
    needs: Action
    peer: int | None


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
    end = (1 + max((bar.end for bar in bars), default=0)) / (1 - ROOM)
    lines = reason.splitlines()
    ranks, lane = schedule.num_ranks, lane_heights(schedule.num_ranks)[0]
    top = TOP + LINE * len(lines)
    text = f"{schedule.name or 'this schedule'} cannot run: {reason}"
    figure = sheet(text, top + ranks * lane + BOTTOM, f"{schedule.name or 'This schedule'} cannot run")
    axes = panel(figure, LEFT, top, theme.WIDTH - LEFT - RIGHT, ranks * lane)
    scale(axes.xaxis, "time (units), F, I and W taking 1 each", ends=(0, end))
    name_lanes(axes, list(range(ranks)))
    draw_bars(axes, bars, chunks_of(schedule))
    _draw_stops(axes, [stop._replace(end=0.998 * end) for stop in stops])
    legend_of(figure, legend_entries([schedule]))
    write_lines(figure, lines, TOP - 0.12, theme.ALARM)
    return figure


def _draw_stops(axes: Axes, stops: list[Stop]) -> None:
    """A hatched box from where a rank stands, with what it needs, and an arrow to the rank that would have to do it; in
    red where the cause is, in grey where ranks only wait for those."""
    lanes = [stop.rank for stop in stops]
    marks.hatched_boxes(axes, "stops", stops, lanes, WHOLE, theme.KINDS["wait"])
    cause = cause_of(stops)
    for color, name, shown in ((theme.FAINT, "waiting", False), (theme.ALARM, "stuck", True)):
        own = [stop for stop in stops if (stop.rank in cause) == shown]
        frame(axes, name, own, color)
        waits = [(stop.rank, stop.peer, stop.end * (0.97 - 0.3 * stop.rank / len(stops))) for stop in own]
        across = [(rank, peer, x) for rank, peer, x in waits if peer is not None and peer != rank]
        tails = [(x, edge(rank, peer)) for rank, peer, x in across]
        heads = [(x, edge(peer, rank)) for rank, peer, x in across]
        marks.arrows(axes, tails, heads, color)
    words = [[f"{stop.action} needs {stop.needs}", f"needs {stop.needs}", str(stop.needs)] for stop in stops]
    inks = [theme.ALARM if stop.rank in cause else theme.INK for stop in stops]
    marks.labels(axes, stops, lanes, WHOLE, words, inks)


def cause_of(stops: list[Stop]) -> set[int]:
    """The ranks that wait for each other in a cycle, or for what nobody will do; the others wait for those."""
    peer_of = {stop.rank: stop.peer for stop in stops}
    cause: set[int] = set()
    for rank in peer_of:
        path = [rank]
        while (peer := peer_of[path[-1]]) in peer_of and peer not in path:
            path.append(peer)
        cause |= set(path[path.index(peer) :] if peer in path else path[-1:])
    return cause


def until_stuck(schedule: Schedule) -> tuple[list[Bar], list[Stop]]:
    """What the ranks do before none can go on, and where each that is not done then stands."""
    last = schedule.num_stages - 1
    rank_of = {action: rank for rank, row in enumerate(schedule.actions) for action in row}
    ended: dict[Action, float] = {}
    bars: list[Bar] = []
    position, time = [0] * schedule.num_ranks, [0.0] * schedule.num_ranks

    def unmet(action: Action) -> Action | None:
        kept, inputs = kept_from(action), input_from(action, last)
        if kept is not None and kept not in ended:
            return kept
        if not inputs or any(source in ended for source in inputs):
            return None
        return next((source for source in inputs if source in rank_of), inputs[-1])

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
            stops.append(Stop(rank, time[rank], time[rank], action, needs, rank_of.get(needs)))
    return bars, stops
