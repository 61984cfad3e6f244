"""The Chrome trace of a timeline: the JSON text that Perfetto and chrome://tracing open.

Each rank is a process of the format. On its first track stand its computes and waits; on the tracks below its sends
and receives, as many tracks as messages travel at once, because slices of one track must not overlap. An arrow joins
the two ends of a message, and a counter shows the held bytes.

Source: Trace Event Format (Google, 2016).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import methodcaller
from typing import Any

Event = dict[str, Any]


def chrome_trace(
    spans: Sequence[Any], transfers: Sequence[Any], held: Sequence[list[tuple[int, int]]], ticks: float
) -> str:
    """The text of the file.

    Args:
        spans, transfers: as a `Timeline` has them.
        held: of each rank, its held bytes over time.
        ticks: of the timeline, in a microsecond, the unit of the format.
    """
    events = [*_ranks(held, ticks), *_slices(spans, ticks), *_messages(transfers, ticks)]
    trace = {"traceEvents": events, "displayTimeUnit": "ns"}
    return json.dumps(trace, separators=(",", ":"), default=methodcaller("item"))  # a cost may be NumPy's number


def _ranks(held: Sequence[list[tuple[int, int]]], ticks: float) -> list[Event]:
    """The name of each rank and of its first track, and its held bytes."""
    events: list[Event] = []
    for rank, steps in enumerate(held):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": 0, "args": {"name": "program"}})
        for time, total in steps:
            counter = {"ph": "C", "name": "held bytes", "pid": rank, "ts": time / ticks, "args": {"bytes": total}}
            events.append(counter)
    return events


def _slices(spans: Sequence[Any], ticks: float) -> list[Event]:
    """The computes and waits."""
    events: list[Event] = []
    for span in spans:
        if span.kind in ("compute", "wait"):
            place = {"name": span.name, "pid": span.rank, "tid": 0, "ts": span.start / ticks}
            events.append({**place, "ph": "X", "cat": span.kind, "dur": (span.end - span.start) / ticks})
    return events


def _messages(transfers: Sequence[Any], ticks: float) -> list[Event]:
    """Both ends of each message, each on the first track that is free, and the arrow between them."""
    events: list[Event] = []
    tracks: dict[tuple[int, str], list[float]] = {}  # for each track, the time from which it is free
    for number, t in enumerate(transfers):
        if t.end == t.start:
            continue
        for rank, kind, arrow in ((t.src, "send", {"ph": "s"}), (t.dst, "receive", {"ph": "f", "bp": "e"})):
            free = tracks.setdefault((rank, kind), [])
            track = next((track for track, end in enumerate(free) if end <= t.start), len(free))
            tid = 1 + 2 * track + (kind == "receive")
            if track == len(free):
                free.append(t.end)
                args = {"name": f"{kind}s"}
                events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": args})
            free[track] = t.end
            place = {"name": t.name, "pid": rank, "tid": tid, "ts": t.start / ticks}
            events.append({**place, "ph": "X", "cat": kind, "dur": (t.end - t.start) / ticks})
            events.append({**place, **arrow, "cat": "message", "id": number})
    return events
