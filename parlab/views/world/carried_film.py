"""The film of messages between two ranks that work: posted, carried or not, and arrived, by one clock or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from parlab.views.engine import theme
from parlab.views.engine.lanes import timelines_of
from parlab.views.engine.player import Film, box, letter, outline, shifted, word
from parlab.world import Run, Timeline
from parlab.world.timeline import Span, Transfer, columns_of
from parlab.world.units import format_bytes

MOST_CLOCKS, MOST_STOPS, MOST_MESSAGES = 3, 7, 2  # messages: in each direction
PANEL, HEAD, BOX = 96, 24, (128, 56)  # heights of a clock's panel and of its name; a rank's box
BOXES, WAY = (14, 498), (150, 490)  # the left edges of the two ranks, and the way between them
MESSAGE, SLOT = (74, 20), 78  # a message, and its place at the end of the way
WALL_CLOCK, BY_HAND = "the wall clock", "message"  # the name of a real clock, and of a message of no collective


class Carried(NamedTuple):
    """A message: posted at `posted`, under way from `start` to `end`."""

    src: int
    nbytes: int
    posted: int
    start: int
    end: int


def carried_film(runs: Mapping[str, Run | Timeline]) -> Film:
    """The film of up to three runs of two ranks, one below the other, on one clock.

    A message is dashed from when it was posted until somebody carries it. On a real clock, one that the program posted
    by hand does not arrive while its receiver computes: the receiver does not look.

    Args:
        runs: {name: run}, each of 2 ranks with 1 or 2 messages in each direction, and work.

    Raises:
        ValueError: something else.
    """
    shown = {name: from_first_computation(one) for name, one in timelines_of(runs, MOST_CLOCKS, one_clock=True).items()}
    sent = {name: carried(one) for name, one in shown.items()}
    for name, messages in sent.items():
        most = max([sum(m.src == src for m in messages) for src in (0, 1)])
        if shown[name].size != 2 or not 1 <= most <= MOST_MESSAGES:
            raise ValueError(
                f"source: {name} has {shown[name].size} ranks, and {most} messages in a direction; this film takes 2 "
                f"ranks, and 1 to {MOST_MESSAGES} messages"
            )
    says = next(iter(shown.values())).format
    times = _stops(shown, sent)
    headline = "; ".join(f"{name}: there after {says(max(m.end for m in of))}" for name, of in sent.items())
    film = Film(headline, times, PANEL * len(shown), says=says)
    for number, (name, one) in enumerate(shown.items()):
        top = PANEL * number
        film.draw(word(BOXES[0], top + 12, name, "strong left"))
        last = max(m.end for m in sent[name])
        film.draw(word(WAY[1] - 60, top + 12, f"there after {says(last)}", "small"), last)
        _ranks(film, one, top + HEAD)
        _messages(film, sent[name], top + HEAD)
    for start, end in pairwise(times):
        film.tell(start, "; ".join(f"{name}: {_state(of, start, end)}" for name, of in sent.items()))
    return film


def carried(shown: Timeline) -> list[Carried]:
    """The messages of a timeline that have bytes, each from when somebody carries it."""
    found = []
    for t in shown.transfers:
        if not t.nbytes or t.src == t.dst:
            continue
        by_hand = shown.cluster == WALL_CLOCK and t.name == BY_HAND
        busy = [span for span in shown.computes if by_hand and span.rank == t.dst]
        start, end = (idle_parts(t, busy) or [(t.start, t.end)])[-1]
        found.append(Carried(t.src, t.nbytes, t.ready, start, end))
    return sorted(found, key=lambda message: message.start)


def _stops(shown: Mapping[str, Timeline], sent: Mapping[str, list[Carried]]) -> list[int]:
    """The starts and ends of messages and of work; of those that are near each other, the first."""
    times = {0} | {time for of in sent.values() for m in of for time in (m.start, m.end)}
    times |= {span.end for one in shown.values() for span in one.computes}
    found = sorted(times | {max(one.makespan for one in shown.values())})
    while len(found) > MOST_STOPS:
        gaps = [later - earlier for earlier, later in pairwise(found[:-1])]
        del found[gaps.index(min(gaps)) + 1]
    return found


def _ranks(film: Film, shown: Timeline, top: float) -> None:
    """The two ranks: blue while they work."""
    width, height = BOX
    for rank, x in enumerate(BOXES):
        film.draw(outline(x, top, width, height, "empty"))
        film.draw(word(x + width / 2, top + height / 2, f"rank {rank}"))
        for span in shown.computes:
            if span.rank == rank:
                film.draw(
                    box(x, top, width, height, theme.KINDS["compute"].color, f"rank {rank} works"), span.start, span.end
                )
        film.draw(box(x if rank == 0 else x + width - 5, top, 5, height, theme.rank_color(rank)))


def _messages(film: Film, messages: list[Carried], top: float) -> None:
    """Each direction has a way of its own: above to the right, below to the left."""
    width, height = MESSAGE
    for src, y in ((0, top + 4), (1, top + BOX[1] - height - 4)):
        left, right = WAY
        tip, back = (right, -7) if src == 0 else (left, 7)
        middle = y + height / 2
        film.draw(
            f'<path class="trail" d="M{left} {middle}H{right}M{tip + back} {middle - 4}L{tip} {middle}l{back} 4"/>'
        )
        of = [message for message in messages if message.src == src]
        for number, message in enumerate(of):
            slot = SLOT * (len(of) - 1 - number)
            start, end = (left, right - width - slot) if src == 0 else (right - width, left + slot)
            text = format_bytes(message.nbytes)
            solid = box(0, 0, width, height, theme.KINDS["send"].color, text, "small")
            if message.posted < message.start:
                wide = width + 58
                dashed = letter(0, 0, wide, height, f"{text} posted")
                film.draw(shifted(dashed, start if src == 0 else right - wide, y), message.posted, message.start)
            elif message.start == film.times[0]:
                film.draw(shifted(solid, start, y), message.start, message.start)
            film.move(shifted(solid, start, y), message.start, message.end, (end - start, 0))
            film.draw(shifted(solid, end, y), message.end)


def _state(messages: list[Carried], start: int, end: int) -> str:
    """The words for the messages between two stops."""
    if any(m.start < end and m.end > start for m in messages):
        return "arrives" if all(m.end <= end for m in messages) else "travels"
    if all(m.end <= start for m in messages):
        return "is there"
    if any(m.posted < end <= m.start for m in messages):
        return "lies there"
    return "half is there" if any(m.end <= start for m in messages) else "nothing posted"


def from_first_computation(shown: Timeline) -> Timeline:
    """`shown` from the moment on when a rank first computes. What ended before is left out."""
    first = min((span.start for span in shown.computes), default=0)
    computes = [(s.rank, s.start - first, s.end - first, s.name) for s in shown.computes if s.end > first]
    transfers = [
        (*t[:3], max(0, t.ready - first), max(0, t.start - first), t.end - first, t.name, t.label)
        for t in shown.transfers
        if t.end > first
    ]
    waits = [
        (w.rank, max(0, w.start - first), w.end - first, w.peer, w.name, max(0, w.came - first))
        for w in shown.waits
        if w.end > first
    ]
    return Timeline(
        shown.size,
        shown.makespan - first,
        computes=columns_of(computes, 4),
        transfers=columns_of(transfers, 8),
        waits=columns_of(waits, 6),
        unit=shown.unit,
        cluster=shown.cluster,
    )


def idle_parts(message: Transfer, busy: Iterable[Span]) -> list[tuple[int, int]]:
    """The parts of the message's time that none of the spans `busy` covers."""
    found, start = [], message.start
    for span in sorted(busy, key=lambda span: span.start):
        if start < span.start:
            found.append((start, min(span.start, message.end)))
        start = max(start, span.end)
        if start >= message.end:
            return found
    return [*found, (start, message.end)]
