"""The film of the waits of a run: the ranks as a ring, an arrow from each that waits, and the lanes that follow."""

from __future__ import annotations

import cmath
from collections.abc import Callable
from itertools import count, groupby
from typing import Any

from parlab.views.engine import theme
from parlab.views.engine.player import Film, box, word
from parlab.views.engine.words import do, the_ranks
from parlab.views.world.timeline import time_spent
from parlab.views.world.waiting import pattern_of, waiting
from parlab.world import Timeline, Wait

MOST_RANKS = 8
HEIGHT, LEGEND = 312, 24
MIDDLE, RADIUS, DISC, BOW = complex(138, 168), 104, 16, 34  # of the ring and of a rank; how far an arrow bows out
ENDS = (318, 606)  # of the lanes
BAR, LETTER = 22, (20, 14)  # heights and widths
WIDE = 7.5  # a letter of the time in a work
NOBODY = "no rank waits for another"
RED = "#E0312E"  # theme.ALARM, brighter: it must be seen on a dark page too


def waits_film(shown: Timeline) -> Film:
    """The film of a run of at most 8 ranks: who works, who waits for whom, and how the waiting travels.

    A red arrow goes from a rank that waits to the rank that has not come. A rank is blue while it works, hatched while
    it waits for a rank, dotted while it waits for a transfer, and empty when it is done, as its lane is. The film
    stops when the next ranks wait, and when nobody waits any more. Messages of no bytes are not drawn.

    Raises:
        ValueError: more than 8 ranks, or a run in which nothing takes time.
    """
    if shown.size > MOST_RANKS:
        raise ValueError(f"source: the run has {shown.size} ranks, and the ring has places for {MOST_RANKS}")
    if not shown.makespan:
        raise ValueError(f"source={shown!r:.60}: nothing takes any time")
    waits = sorted((w for w in shown.waits if w.came > w.start and w.peer != w.rank), key=lambda w: (w.start, w.rank))
    stops = _stops(shown, waits)
    says = f"Who waits for whom: {time_spent(shown)}"
    ticks = _ticks(shown.makespan)
    film = Film(says, stops, HEIGHT, moving=11, resting=1.0, says=shown.format, ends=ENDS, ticks=ticks)
    film.draw(_legend())
    places = [MIDDLE + RADIUS * cmath.rect(1, cmath.pi * (2 * rank / shown.size - 0.5)) for rank in range(shown.size)]
    _messages(film, shown, places)
    together = _done_together(shown)
    for done, ranks in together.items():
        film.draw("".join(_disc(places[rank], "none", theme.rank_color(rank)) for rank in ranks))
        film.draw("".join(_waiting_disc("transfer", places[rank], rank) for rank in ranks), None, done)
    _works(film, shown, places)
    for wait in waits:  # it has stopped when the arrow comes, also while the clock stands
        film.draw(_waiting_disc("wait", places[wait.rank], wait.rank), wait.start, wait.came)
    for done, ranks in together.items():
        film.draw(
            "".join(word(places[rank].real, places[rank].imag, rank, "strong dark") for rank in ranks), None, done
        )
        empty = "".join(word(places[rank].real, places[rank].imag, rank, "strong") for rank in ranks)
        film.draw(empty, done, between=True)
    for wait in waits:
        film.draw(_arrow(places[wait.rank], places[wait.peer]), wait.start, wait.came)
    _lanes(film, shown, waits)
    film.narrate(_told(shown, waits))
    return film


def _stops(shown: Timeline, waits: list[Wait]) -> list[Any]:
    """When the last of some ranks begins to wait before the first of them goes on, and when nobody waits any more."""
    stops, together = {0, shown.makespan}, waits[:1]
    for wait in waits[1:]:
        if wait.start >= min(one.came for one in together):
            stops.add(together[-1].start)
            together = []
        together.append(wait)
    if waits:
        stops |= {together[-1].start, max(wait.came for wait in waits)}
    return sorted(stops)


def _ticks(makespan: Any) -> list[Any]:
    """Times that are 1, 2 or 5 of a power of ten apart, at most six."""
    apart = next(step * 10**power for power in count() for step in (1, 2, 5) if 5 * step * 10**power >= makespan)
    return [apart * number for number in range(int(makespan // apart) + 1)]


def _disc(place: complex, fill: str, stroke: str = "none") -> str:
    return (
        f'<circle cx="{place.real:.1f}" cy="{place.imag:.1f}" r="{DISC}" fill="{fill}" stroke="{stroke}" '
        'stroke-width="4"/>'
    )


def _waiting_disc(kind: str, place: complex, rank: int) -> str:
    """The disc of a rank that waits: hatched or dotted, as the bars of the lanes are."""
    return _disc(place, theme.KINDS[kind].color, theme.rank_color(rank)) + pattern_of(kind, place, DISC - 2)


def _done_together(shown: Timeline) -> dict[Any, list[int]]:
    """The ranks that are done at the same time, by that time."""
    spent: list[Any] = [*shown.computes, *shown.waits]
    ends = [max((span.end for span in spent if span.rank == rank), default=0) for rank in range(shown.size)]
    return {end: [rank for rank in range(shown.size) if ends[rank] == end] for end in sorted(set(ends))}


def _works(film: Film, shown: Timeline, places: list[complex]) -> None:
    """The discs of the ranks that work, those with the same times as one mark.

    Work that begins at 0 is seen before the clock starts, too.
    """
    ranks: dict[tuple[Any, Any], list[int]] = {}
    for span in shown.computes:
        if span.end > span.start:
            ranks.setdefault((span.start, span.end), []).append(span.rank)
    color = theme.KINDS["compute"].color
    for (start, end), working in sorted(ranks.items()):
        film.draw("".join(_disc(places[rank], color, theme.rank_color(rank)) for rank in working), start or None, end)


def _messages(film: Film, shown: Timeline, places: list[complex]) -> None:
    """The messages, from disc to disc: each comes out from behind the one and ends behind the other."""
    width, height = LETTER
    for t in shown.transfers:
        if t.nbytes and t.end > t.start and t.src != t.dst:
            start, way = places[t.src], places[t.dst] - places[t.src]
            mark = _sent(start.real - width / 2, start.imag - height / 2)
            film.move(mark, t.start, t.end, (round(way.real, 1), round(way.imag, 1)))


def _sent(x: float, y: float) -> str:
    """A message. Its frame is seen on a dark page too."""
    color, (width, height) = theme.KINDS["send"].color, LETTER
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width}" height="{height}" fill="{color}" stroke="currentColor"/>'


def _arrow(one: complex, other: complex) -> str:
    """From one disc to the other, outside of the ring."""
    outward = (one + other) / 2 - MIDDLE
    if abs(outward) < 1:  # ranks that face each other
        outward = (other - one) * 1j
    peak = (one + other) / 2 + BOW * outward / abs(outward)
    start, tip = (end + (DISC + 3) * (peak - end) / abs(peak - end) for end in (one, other))
    back = 11 * (peak - tip) / abs(peak - tip)
    points = tip + back * (1 + 0.6j), tip, tip + back * (1 - 0.6j)
    head = "L".join(f"{point.real:.4g} {point.imag:.4g}" for point in points)
    bow = f"M{start.real:.4g} {start.imag:.4g}Q{peak.real:.4g} {peak.imag:.4g} {tip.real:.4g} {tip.imag:.4g}M{head}"
    return f'<path d="{bow}" fill="none" stroke="{RED}" stroke-width="4"/>'


def _lanes(film: Film, shown: Timeline, waits: list[Wait]) -> None:
    """The lanes beside the ring, laid bare by the clock: work blue, waits for a rank hatched, for a message dotted.

    If one work is longer than all others, its time stands in it.
    """
    lane = (HEIGHT - LEGEND) / shown.size
    middles = [LEGEND + lane * (rank + 0.5) for rank in range(shown.size)]
    bar = min(BAR, lane - 8)
    for rank, y in enumerate(middles):
        film.draw(word(294, y, rank) + box(306, y - bar / 2, 5, bar, theme.rank_color(rank)))
    marks = ""
    takes = max((span.end - span.start for span in shown.computes), default=0)
    longest = [span for span in shown.computes if span.end - span.start == takes]
    for span in shown.computes:
        if span.end > span.start:
            x, width = film.x(span.start), film.x(span.end) - film.x(span.start)
            number, unit = shown.format(span.end - span.start).split()
            time = f"{float(number):g} {unit}" if [span] == longest else ""
            time = time if WIDE * len(time) < width else ""
            color = theme.KINDS["compute"].color
            marks += box(x, middles[span.rank] - bar / 2, round(width - 1, 1), bar, color, time, "small")
    for wait in shown.waits:
        x, width = film.x(wait.came), film.x(wait.end) - film.x(wait.came)
        if width > 1:
            marks += waiting("transfer", x, middles[wait.rank] - bar / 2, round(width - 1, 1), bar)
    for wait in waits:
        x, width = film.x(wait.start), round(film.x(wait.came) - film.x(wait.start) - 1, 1)
        text = wait.peer if width > 12 else ""
        marks += waiting("wait", x, middles[wait.rank] - bar / 2, width, bar, text)
    film.reveal(marks)
    film.ride(f'<path class="trail" d="M{ENDS[0]} {LEGEND}v{HEIGHT - LEGEND}"/>')


def _legend() -> str:
    """The signs of the ring and of the lanes."""
    marks = box(28, 4, 14, 14, theme.KINDS["compute"].color) + word(48, 11, "works", "small left")
    marks += _sent(104, 4) + word(130, 11, "message", "small left")
    marks += f'<path d="M206 11h26m-8-6l8 6l-8 6" fill="none" stroke="{RED}" stroke-width="3"/>'
    marks += waiting("wait", 240, 4, 22, 14) + word(268, 11, "waits for a rank", "small left")
    return marks + waiting("transfer", 408, 4, 22, 14) + word(436, 11, "waits for a transfer", "small left")


def _told(shown: Timeline, waits: list[Wait]) -> list[tuple[Any, str]]:
    """When some ranks begin to wait, and who; also when nobody waits any more, unless others soon begin.

    The last line says which ranks never waited, unless they are more than half of all.
    """
    soon = shown.makespan // 20  # waits so close stand in one line
    gap = shown.makespan // 40  # a line for a shorter time is not read
    groups: list[list[Wait]] = []
    for wait in waits:
        if groups and wait.start - groups[-1][0].start <= soon:
            groups[-1].append(wait)
        else:
            groups.append([wait])
    told = [] if groups and not groups[0][0].start else [(0, NOBODY)]
    for number, group in enumerate(groups, 1):
        start, last = group[0].start, group[-1].start
        still = [wait for wait in waits if wait.start < start < wait.came]
        told.append((start, f"{_who(group, shown.format)}{f', and still {_pairs(still)}' if still else ''}"))
        free = max(wait.came for wait in waits if wait.start <= last)
        after = groups[number][0].start if number < len(groups) else shown.makespan
        if after - free > (gap if number < len(groups) else 0):
            told.append((free, NOBODY if number < len(groups) else NOBODY + _never(shown, waits)))
    return told


def _never(shown: Timeline, waits: list[Wait]) -> str:
    """`; rank 5 never did`, of at most half of the ranks."""
    ranks = sorted(set(range(shown.size)) - {wait.rank for wait in waits})
    if not 0 < len(ranks) <= shown.size / 2:
        return ""
    return f"; {the_ranks(ranks, ' and '.join(map(str, ranks)))} never did"


def _who(waits: list[Wait], says: Callable[[Any], str]) -> str:
    """`ranks 4 and 6 wait for rank 5, 3 for 4; from 20.0 ms, 2 for 3`: the first in full, the later with their time.

    The waits are in the order of their starts.
    """
    together, *later = ([*same] for _, same in groupby(waits, key=lambda wait: wait.start))
    return _begins(together) + "".join(f"; from {says(same[0].start)}, {_pairs(same)}" for same in later)


def _begins(waits: list[Wait]) -> str:
    first = [wait for wait in waits if wait.peer == waits[0].peer]
    others = [wait for wait in waits if wait.peer != waits[0].peer]
    ranks = the_ranks([wait.rank for wait in first], _names(first))
    return f"{ranks} {do(len(first), 'wait')} for rank {waits[0].peer}{', ' * bool(others)}{_pairs(others)}"


def _pairs(waits: list[Wait]) -> str:
    """`4 and 6 for 5, 3 for 4`."""
    peers = dict.fromkeys(wait.peer for wait in waits)
    return ", ".join(f"{_names([wait for wait in waits if wait.peer == peer])} for {peer}" for peer in peers)


def _names(waits: list[Wait]) -> str:
    return " and ".join(str(rank) for rank in sorted(wait.rank for wait in waits))
