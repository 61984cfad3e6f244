"""Any run as time goes by: its timeline, and in words what begins at each moment."""

from __future__ import annotations

from parlab.views.drawing.film import Film, moments_of, revealed
from parlab.views.timelines.timeline import timeline
from parlab.world import Timeline
from parlab.world.units import format_bytes

MOST_MOMENTS = 60  # that get a line of their own
MOST_EVENTS = 8  # that a line names


def timeline_film(shown: Timeline) -> Film:
    """For `step_through`: `views.timeline`, of which what is still to come is pale."""
    events = [
        (span.start, f"rank {span.rank} computes {span.name}") for span in shown.computes if span.end > span.start
    ]
    for t in shown.transfers:
        if t.end > t.start:
            events.append((t.start, f"{format_bytes(t.nbytes)} leave rank {t.src} for rank {t.dst}"))
    begun: dict[int, list[str]] = {}
    for start, event in sorted(events):
        begun.setdefault(start, []).append(event)
    times = list(begun)[:MOST_MOMENTS] or [0]
    lines = [f"{shown.format(time)}: {_few(begun.get(time, ['nothing takes any time']))}" for time in times]
    figure = timeline(shown)
    return Film(repr(shown).splitlines()[0], lines, moments_of(times, shown.makespan), revealed(figure, figure.axes))


def _few(events: list[str]) -> str:
    more = len(events) - MOST_EVENTS
    return "; ".join(events[:MOST_EVENTS]) + (f"; and {more} more" if more > 0 else "")
