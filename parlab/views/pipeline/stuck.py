"""A schedule that cannot run, drawn up to where it stops."""

from __future__ import annotations

from matplotlib.axes import Axes

from parlab.pipeline import Idle, Schedule
from parlab.pipeline.stuck import until_stuck
from parlab.views.engine import marks, theme
from parlab.views.engine.lanes import LEFT, name_lanes
from parlab.views.engine.picture import Picture, panel, scale
from parlab.views.pipeline.panels import RIGHT, WHOLE, bars_of, draw_bars, lanes_height, remarked
from parlab.views.pipeline.why import arrows, frame

ROOM = 0.45  # for what the ranks wait for, beside what they did


def stuck(schedule: Schedule, reason: str) -> Picture:
    """Draw the steps of the ranks with unit costs until none can go on, and the action that each needs then."""
    done, stops = until_stuck(schedule)
    end = (1 + max((step.end for step in done), default=0)) / (1 - ROOM)
    text, headline = (f"{schedule.name or name} cannot run" for name in ("this schedule", "This schedule"))
    height = lanes_height(schedule.num_ranks)
    figure, top = remarked([f"{text}: {reason}"], headline, reason.splitlines(), height, schedule)
    axes = panel(figure, LEFT, top, theme.WIDTH - LEFT - RIGHT, height)
    scale(axes.xaxis, "time (units), F, I and W taking 1 each", ends=(0, end))
    name_lanes(axes, list(range(schedule.num_ranks)))
    draw_bars(axes, bars_of(done), schedule)
    _draw_stops(axes, [stop._replace(end=0.998 * end) for stop in stops])
    return figure


def _draw_stops(axes: Axes, stops: list[Idle]) -> None:
    """A hatched box from where a rank stands, with the action that it needs, and an arrow to the rank that should do
    it: in red for the ranks that are the cause, in grey for those that only wait for them."""
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
    """The ranks that wait for each other in a cycle, or for an action that no rank does; the others wait for those."""
    peer_of = {stop.rank: stop.peer for stop in stops}
    cause: set[int] = set()
    for rank in peer_of:
        path = [rank]
        while (peer := peer_of[path[-1]]) in peer_of and peer not in path:
            path.append(peer)
        cause |= set(path[path.index(peer) :] if peer in path else path[-1:])
    return cause
