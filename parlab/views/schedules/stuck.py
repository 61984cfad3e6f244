"""A schedule that cannot run, drawn up to where it stops."""

from __future__ import annotations

import math
from collections import deque

from matplotlib.axes import Axes

from parlab.pipeline import Action, Idle, Schedule
from parlab.pipeline.dependencies import input_from, kept_from
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import LEFT, name_lanes
from parlab.views.drawing.picture import Picture, panel, scale
from parlab.views.schedules.panels import RIGHT, WHOLE, Bar, draw_bars, lanes_height, remarked
from parlab.views.schedules.why import arrows, frame

TAKES = {"F": 1, "B": 2, "I": 1, "W": 1}
ROOM = 0.45  # for what the ranks wait for, beside what they did


def stuck(schedule: Schedule, reason: str) -> Picture:
    """Draw what the ranks do with unit costs until none can go on, and what each needs then."""
    bars, stops = until_stuck(schedule)
    end = (1 + max((bar.end for bar in bars), default=0)) / (1 - ROOM)
    text, headline = (f"{schedule.name or name} cannot run" for name in ("this schedule", "This schedule"))
    height = lanes_height(schedule.num_ranks)
    figure, top = remarked([f"{text}: {reason}"], headline, reason.splitlines(), height, schedule)
    axes = panel(figure, LEFT, top, theme.WIDTH - LEFT - RIGHT, height)
    scale(axes.xaxis, "time (units), F, I and W taking 1 each", ends=(0, end))
    name_lanes(axes, list(range(schedule.num_ranks)))
    draw_bars(axes, bars, schedule)
    _draw_stops(axes, [stop._replace(end=0.998 * end) for stop in stops])
    return figure


def _draw_stops(axes: Axes, stops: list[Idle]) -> None:
    """A hatched box from where a rank stands, with what it needs, and an arrow to the rank that would have to do it; in
    red where the cause is, in grey where ranks only wait for those."""
    lanes = [stop.rank for stop in stops]
    marks.hatched_boxes(axes, "stops", stops, lanes, WHOLE, theme.KINDS["wait"])
    cause = cause_of(stops)
    for color, name, shown in ((theme.FAINT, "waiting", False), (theme.ALARM, "stuck", True)):
        own = [stop for stop in stops if (stop.rank in cause) == shown]
        frame(axes, name, own, color)
        waits = [(stop.rank, stop.peer, stop.end * (0.97 - 0.3 * stop.rank / len(stops))) for stop in own]
        across = [((x, rank), (x, peer)) for rank, peer, x in waits if peer is not None and peer != rank]
        arrows(axes, across, color)
    words = [[f"{stop.action} needs {stop.needs}", f"needs {stop.needs}", str(stop.needs)] for stop in stops]
    inks = [theme.ALARM if stop.rank in cause else theme.INK for stop in stops]
    marks.labels(axes, stops, lanes, WHOLE, words, inks)


def cause_of(stops: list[Idle]) -> set[int]:
    """The ranks that wait for each other in a cycle, or for what nobody will do; the others wait for those."""
    peer_of = {stop.rank: stop.peer for stop in stops}
    cause: set[int] = set()
    for rank in peer_of:
        path = [rank]
        while (peer := peer_of[path[-1]]) in peer_of and peer not in path:
            path.append(peer)
        cause |= set(path[path.index(peer) :] if peer in path else path[-1:])
    return cause


def until_stuck(schedule: Schedule) -> tuple[list[Bar], list[Idle]]:
    """What the ranks do before none can go on, and where each that is not done then stands for ever."""
    last = schedule.num_stages - 1
    rank_of = {action: rank for rank, row in enumerate(schedule.actions) for action in row}
    left, time = list(map(deque, schedule.actions)), [0.0] * schedule.num_ranks
    ended: dict[Action, float] = {}
    bars: list[Bar] = []

    def unmet(action: Action) -> list[Action]:
        kept, inputs = kept_from(action), input_from(action, last)
        if kept is not None and kept not in ended:
            return [kept]
        if any(source in ended for source in inputs):
            return []
        return [source for source in inputs if source in rank_of] or list(inputs[-1:])

    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(left):
            while row and not unmet(row[0]):
                action = row.popleft()
                arrived = [ended[source] for source in input_from(action, last) if source in ended]
                start = max([time[rank], *arrived])
                ended[action] = time[rank] = start + TAKES[action.kind]
                bars.append(Bar(rank, start, time[rank], *action, WHOLE))
                moved = True
    stops = []
    for rank, row in enumerate(left):
        if row:
            needs, *_ = unmet(row[0])
            stops.append(Idle(rank, time[rank], math.inf, row[0], needs, rank_of.get(needs), 0))
    return bars, stops
