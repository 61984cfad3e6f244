"""The film of a limit that grows: which layout is the best as more and more memory is usable."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from parlab.plan import Estimate, Plans
from parlab.views.engine import theme
from parlab.views.engine.player import Film, box, outline, word
from parlab.views.plan.bills import TIME, short_name

LEFT, RIGHT = 70, 610  # of the axis of memory, which is the film's clock, and of the bill
BILL, HALF = 48, 15  # the middle of the bill, and half its height
TOP, HIGH = 92, 178  # of the map
ROOM = 0.04  # of the map, above the slowest layout and below the fastest
SLOWER = 1.12  # times the first best: slower layouts are not drawn
DOTS = 140  # the most that are drawn
STOPS = 12
GAIN = 0.01  # of the time: a layout that gains less does not take over
BEFORE = 1e-6  # GiB before a stop: the last line begins when the clock comes there
GIB = 2**30


def limit_film(
    source: Plans, marks: Mapping[str, Estimate] | None = None, least: float = 60.0, most: float = 92.0
) -> Film:
    """The film of a search whose limit of memory grows from `least` to `most` usable GiB.

    The clock is the limit. A line goes over the map of memory and time; the layouts that it passes fit, and become
    blue. A ring marks the best of them, and jumps where another one takes over, which is at least 1 % faster. Above
    stands the best one's bill.

    Args:
        source: the layouts.
        marks: estimates that are marked on the map, by name.
        least, most: usable GiB at the start and at the end.

    Raises:
        ValueError: ends in the wrong order, no layout that fits in the least memory, or more than 12 stops.
    """
    if not 0 < least < most:
        raise ValueError(f"least={least!r}, most={most!r}: must be two amounts of GiB, the smaller one first")
    best = _taking_over(source.flips(least * GIB, most * GIB))
    if not best or best[0].total_bytes > least * GIB:
        raise ValueError(
            f"least={least!r}: nothing fits in so little; the leanest needs {source.bytes.min() / GIB:.1f}"
        )
    stops = [least, *(found.total_bytes / GIB for found in best[1:])]
    stops += [most] if most > stops[-1] else []
    if not 2 <= len(stops) <= STOPS:
        raise ValueError(f"least={least!r}, most={most!r}: {len(stops)} stops; 2 to {STOPS} can be filmed")
    headline = f"As memory grows from {least:g} to {most:g} GiB, the best step falls from "
    headline += f"{best[0].total_seconds:.2f} to {best[-1].total_seconds:.2f} s"
    film = Film(headline, stops, TOP + HIGH + 34, moving=9, resting=1.5, ends=(LEFT, RIGHT), says="{:.1f}".format)
    place = _Place(film, best)
    film.draw(_frame(film, place) + _dots(source, place))
    for gib, x, y in place.dots(source):
        film.draw(f'<circle cx="{x:g}" cy="{y:g}" r="3.5" fill="{theme.RANKS[0]}"/>', gib)
    film.ride(f'<path class="frame" stroke-dasharray="5 3" d="M{LEFT} {TOP}v{HIGH}"/>')
    for name, found in (marks or {}).items():
        x, y = place.of(found)
        film.draw(f'<path d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6-6z" fill="currentColor"/>')
        film.draw(word(x - 4 - 3.6 * len(name), y + 18, name, "small strong"))
    each = (RIGHT - LEFT) / best[0].total_seconds
    told = []
    for number, found in enumerate(best):
        start = stops[number] if number else None
        end = stops[number + 1] if number + 1 < len(best) else None
        before = best[number - 1] if number else found
        film.draw(_bill(found, before, each), start, end, after=True)
        film.draw(_ring(*place.of(found)), start, end, between=True)
        told.append((stops[number] - BEFORE * (0 < number == len(best) - 1), _line(found, before)))
    film.narrate(told)
    for stop, (one, two) in zip(stops[1:], pairwise(best), strict=False):
        (x, y), (to_x, to_y) = place.of(one), place.of(two)
        film.move(_ring(x, y), stop, stop, (round(to_x - x, 1), round(to_y - y, 1)))
    return film


def _taking_over(flips: list[Estimate]) -> list[Estimate]:
    """The first, and each later one that is faster than the last one of these by more than `GAIN`."""
    taken = flips[:1]
    for found in flips[1:]:
        if found.total_seconds < (1 - GAIN) * taken[-1].total_seconds:
            taken.append(found)
    return taken


def _line(found: Estimate, before: Estimate) -> str:
    """The step's seconds, and the kind that became shorter most since the layout before."""
    if found is before:
        return f"{short_name(found.layout)}, {found.total_seconds:.2f} s"
    less = {kind: before.seconds[kind] - now for kind, now in found.seconds.items()}
    kind = max(less, key=lambda kind: less[kind])
    return f"{found.total_seconds:.2f} s, {sum(less.values()):.2f} s less; {kind} −{less[kind]:.2f} s"


def _bill(found: Estimate, before: Estimate, each: float) -> str:
    """The seconds by kind, the layout in words above them, and a dashed box as far as the bill before went."""
    marks = word(LEFT, BILL - 28, f"{short_name(found.layout)}: {found.total_seconds:.2f} s", "left small strong")
    x = float(LEFT)
    for kind, color in TIME.items():
        width = found.seconds[kind] * each
        if width >= 1:
            said = kind if width > 9 * len(kind) else ""
            marks += box(round(x, 1), BILL - HALF, round(width, 1), 2 * HALF, color, said, "small")
        x += width
    saved = (before.total_seconds - found.total_seconds) * each
    if saved >= 1:
        way = f"M{x:.1f} {BILL - HALF}h{saved:.1f}v{2 * HALF}h{-saved:.1f}"
        marks += f'<path class="trail" stroke-dasharray="4 3" d="{way}"/>'
    return marks


def _ring(x: float, y: float) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="8" fill="none" stroke="{theme.RANKS[5]}" stroke-width="3.5"/>'


def _frame(film: Film, place: _Place) -> str:
    marks = word(4, BILL, "time", "left") + outline(LEFT, TOP, RIGHT - LEFT, HIGH, "empty")
    marks += word(4, TOP - 10, "seconds", "left small")
    ticks = [tenth / 10 for tenth in range(0, 10_000, 5) if place.low <= tenth / 10 <= place.high]
    for seconds in ticks[:: max(1, round(len(ticks) / 4))]:
        marks += word(LEFT - 20, place.y(seconds), f"{seconds:g}", "small")
    for gib in range(5, 10_000, 5):
        if film.times[0] <= gib <= film.times[-1]:
            marks += word(film.x(gib), TOP + HIGH + 12, gib, "small")
    return marks + word((LEFT + RIGHT) / 2, TOP + HIGH + 28, "GiB of the fullest rank; the line: usable GiB", "small")


def _dots(source: Plans, place: _Place) -> str:
    """All layouts near the best ones, pale: what does not fit yet."""
    return "".join(
        f'<circle cx="{x:g}" cy="{y:g}" r="3.5" fill="currentColor" opacity=".35"/>' for _, x, y in place.dots(source)
    )


class _Place:
    """The map: memory to the right along the film's clock, and seconds up."""

    def __init__(self, film: Film, best: list[Estimate]) -> None:
        self.film, slowest, fastest = film, SLOWER * best[0].total_seconds, best[-1].total_seconds
        room = ROOM * (slowest - fastest)
        self.low, self.high = fastest - 3 * room, slowest + room

    def y(self, seconds: float) -> float:
        return round(TOP + HIGH * (self.high - seconds) / (self.high - self.low), 1)

    def of(self, found: Estimate) -> tuple[float, float]:
        """The place of a layout; one that is left of the map stands on its edge."""
        return max(float(LEFT), self.film.x(found.total_bytes / GIB)), self.y(found.total_seconds)

    def dots(self, plans: Plans) -> list[tuple[float, float, float]]:
        """GiB and place of layouts on the map, each place once, the fastest ones if they are too many."""
        gib = plans.bytes / GIB
        seen = (gib >= self.film.times[0]) & (gib <= self.film.times[-1]) & (plans.seconds <= self.high - 0.01)
        numbers = np.flatnonzero(seen)
        found: dict[tuple[float, float], tuple[float, float, float]] = {}
        for number in numbers[np.argsort(plans.seconds[numbers], kind="stable")]:
            x, y = self.film.x(gib[number]), self.y(plans.seconds[number])
            found.setdefault((round(x / 3), round(y / 3)), (float(gib[number]), float(x), float(y)))
        return list(found.values())[:DOTS]
