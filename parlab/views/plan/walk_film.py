"""The film of a search by hand: the two bills of each layout, and its way on the map of memory and time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from parlab.plan import Estimate, Walk
from parlab.views.engine import theme
from parlab.views.engine.player import Film, box, outline, word
from parlab.views.plan.bills import MEMORY, TIME
from parlab.world.units import format_bytes

BAR, LEFT, RIGHT, HALF = 30, 78, 632, 15  # of the bills
TOP = {"time": 42, "memory": 118}
GONE = 158  # beside the sums
MAP = (78, 180, 400, 146)  # left, top, width and height
WORDS = 500  # the fields of the layout, beside the map
BEFORE = 1e-6  # of a stop, after which its fields and caption give way to those of the next move
GIB = 2**30
MOST = 12
LETTER = 7.4  # units, of a small word: at most


def walk_film(source: Walk, marks: Mapping[str, Estimate] | None = None) -> Film:
    """The film of a search by hand. A stop shows one layout, and the move that led to it.

    Above stand the two bills of the layout, seconds and bytes by kind, with the device's memory as a line. Between two
    stops first the field changes, and then the bills. Beside a sum stands the part that the move took away, as long as
    it was, and a dashed box shows how long the bill was. Below, a dot goes over the map of memory and time, on which
    the front and `marks` stand.

    Args:
        source: the layouts.
        marks: estimates that are marked on the map, by name.

    Raises:
        ValueError: fewer than two layouts, or more than 12.
    """
    if not 2 <= len(source) <= MOST:
        raise ValueError(f"source: a walk of {len(source)} layouts; 2 to {MOST} can be filmed")
    last = len(source) - 1
    headline = f"{last} moves: from {source[0].total_seconds:.2f} to {source[-1].total_seconds:.2f} s a step"
    film = Film(headline, list(range(last + 1)), 356, moving=1.6 * last, resting=2.2, says=_stop)
    place = _Map(source, marks or {})
    film.draw(_bill_frames(source) + place.drawn)
    _slide_bills(film, source)
    for number, found in enumerate(source):
        start, end = number or None, None if number == last else number
        seen = _words(source, found)
        if number:
            before = source[number - 1]
            seen += _gone(source, before, found) + _saved(source, before, found)
        film.draw(seen, start, end)
        film.draw(_fields(source, number), number - 1 + BEFORE if number else None, end)
        x, y = place.at(found)
        film.draw(_dot(x, y, source.fits(found)), start, end)
    film.draw(f'<path class="trail" stroke-dasharray="5 3" d="M{_limit(source):.1f} {TOP["memory"] - 22}v44"/>')
    film.narrate([(number and number - 1 + BEFORE, _line(source, number)) for number in range(last + 1)])
    for number, (one, two) in enumerate(pairwise(source)):
        (x, y), (to_x, to_y) = place.at(one), place.at(two)
        film.move(_dot(x, y, source.fits(one)), number, number + 1, (to_x - x, to_y - y))
        film.draw(f'<path class="trail" d="M{x:g} {y:g}L{to_x:g} {to_y:g}"/>', number + 1)
    return film


def _stop(number: float) -> str:
    return f"{math.ceil(number)}" if number > 0 else "start"


def _line(walk: Walk, number: int) -> str:
    """The move, the layout to which it led, and the part of a bill that it made smaller."""
    found = walk[number]
    said = f"{found.total_seconds:.2f} s, {format_bytes(found.total_bytes)}, "
    said += "fits" if walk.fits(found) else "does not fit"
    if not number:
        return said
    line = f"{walk.moves[number][:80]}: {said}"
    if part := _shrunk_most(walk, walk[number - 1], found):
        name, kind, less = part
        line += f"; {kind} −{less:.2f} s" if name == "time" else f"; {kind} −{format_bytes(less)}"
    return line


def _scales(walk: Walk) -> dict[str, float]:
    """Units of the drawing a second, and a byte."""
    longest = max(found.total_seconds for found in walk)
    largest = max(walk.plans.memory, *(found.total_bytes for found in walk))
    return {"time": (RIGHT - LEFT) / longest, "memory": (RIGHT - LEFT) / largest}


def _bill_frames(walk: Walk) -> str:
    names = "".join(word(4, top, name, "left") for name, top in TOP.items())
    device = f"usable: {format_bytes(walk.plans.memory)}"
    return names + word(min(_limit(walk), RIGHT - 90), TOP["memory"] - 28, device, "small") + _keys(walk)


def _keys(walk: Walk) -> str:
    """Under each bill, the names of the kinds that have a width of their own at some stop."""
    marks = ""
    for name, colors in (("time", TIME), ("memory", MEMORY)):
        bills = [parts for found in walk for bill, parts, _ in _bills_of(found) if bill == name]
        x, y, each = float(LEFT), TOP[name] + HALF + 12, _scales(walk)[name]
        for kind, color in colors.items():
            if max(parts[kind] for parts in bills) * each >= 1:
                marks += f'<rect class="key" x="{x:g}" y="{y - 4:g}" width="8" height="8" fill="{color}"/>'
                marks += word(x + 11, y, kind, "small left")
                x += 22 + LETTER * len(kind)
    return marks


def _limit(walk: Walk) -> float:
    return LEFT + walk.plans.memory * _scales(walk)["memory"]


def _slide_bills(film: Film, walk: Walk) -> None:
    """Both bills, whose kinds grow and shrink between stops.

    Each kind is a bar that ends where it ends, and lies below the kinds before it. So it need only slide.
    """
    for number, (name, _, colors) in enumerate(_bills_of(walk[0])):
        each, wide = _scales(walk)[name], RIGHT - LEFT
        bills = [_bills_of(found)[number][1] for found in walk]
        window = (LEFT, TOP[name] - HALF, wide, BAR)
        kinds = [kind for kind in colors if max(parts[kind] for parts in bills) * each >= 1]
        for kind in reversed(kinds):
            until = list(colors)[: list(colors).index(kind) + 1]
            ends = [round(LEFT + each * sum(parts[earlier] for earlier in until), 1) for parts in bills]
            film.slide(box(ends[-1] - wide, TOP[name] - HALF, wide, BAR, colors[kind]), ends, window)


def _words(walk: Walk, found: Estimate) -> str:
    """The kinds of both bills in words where there is room, and their sums."""
    marks = ""
    for name, parts, colors in _bills_of(found):
        each, x, y = _scales(walk)[name], float(LEFT), TOP[name]
        for kind, color in colors.items():
            width = parts[kind] * each
            if width > 9 * len(kind):
                ink = "dark" if theme.text_color(color) == theme.INK else "light"
                marks += word(round(x + width / 2, 1), y, kind, f"{ink} small")
            x += width
        total = f"{found.total_seconds:.2f} s" if name == "time" else format_bytes(found.total_bytes)
        marks += word(LEFT, y - 25, total, "small left strong")
    return marks


def _bills_of(found: Estimate) -> tuple[tuple[str, dict[str, float], dict[str, str]], ...]:
    return ("time", found.seconds, TIME), ("memory", found.bytes, MEMORY)


def _shrunk_most(walk: Walk, before: Estimate, found: Estimate) -> tuple[str, str, float] | None:
    """The bill and the kind that a move shortened most on the page, and by how much; None if by less than a unit."""
    less = [
        ((was[kind] - now[kind]) * _scales(walk)[name], name, kind, was[kind] - now[kind])
        for (name, was, colors), (_, now, _) in zip(_bills_of(before), _bills_of(found), strict=True)
        for kind in colors
    ]
    most, name, kind, by = max(less)
    return (name, kind, by) if most >= 1 else None


def _gone(walk: Walk, before: Estimate, found: Estimate) -> str:
    """Beside the sum of its bill, the part that the move shortened most: as long as what went away."""
    if not (part := _shrunk_most(walk, before, found)):
        return ""
    name, kind, less = part
    color, y = (TIME if name == "time" else MEMORY)[kind], TOP[name] - 25
    width = less * _scales(walk)[name]
    said = f"{less:.2f} s" if name == "time" else format_bytes(less)
    place = f'x="{GONE}" y="{y - 6:g}" width="{width:.1f}" height="12"'
    marks = f'<rect class="gone" {place} fill="{color}" stroke="currentColor" stroke-dasharray="3 2"/>'
    return marks + word(GONE + width + 6, y, f"{kind} −{said}", "small left")


def _saved(walk: Walk, found: Estimate, after: Estimate) -> str:
    """Dashed boxes from the end of a bill to where it ended before the move."""
    marks = ""
    for name, was, now in (
        ("time", found.total_seconds, after.total_seconds),
        ("memory", found.total_bytes, after.total_bytes),
    ):
        each = _scales(walk)[name]
        if (was - now) * each >= 1:
            way = f"M{LEFT + now * each:.1f} {TOP[name] - HALF}h{(was - now) * each:.1f}v{BAR}h{(now - was) * each:.1f}"
            marks += f'<path class="trail" stroke-dasharray="4 3" d="{way}"/>'
    return marks


def _fields(walk: Walk, number: int) -> str:
    """The layout beside the map; what this move changed is strong."""
    now = vars(walk[number].layout)
    before = vars(walk[max(number - 1, 0)].layout)
    said = {name: f"{name} {now[name]}" for name in ("dp", "pp", "cp", "tp", "chunks", "microbatch")}
    said |= {"zero": f"ZeRO-{now['zero']}", "schedule": now["schedule"]}
    said["sequence_parallel"] = "sequence parallel" if now["sequence_parallel"] else "not seq. parallel"
    said["recompute"] = f"recompute {now['recompute']}"
    looks = {name: "left small" + " strong" * (now[name] != before[name]) for name in said}
    return "".join(word(WORDS, MAP[1] + 8 + 16 * row, said[name], looks[name]) for row, name in enumerate(said))


def _dot(x: float, y: float, fits: bool) -> str:
    color = theme.RANKS[5]
    fill = f'fill="{color}" fill-opacity="0.55"' if fits else 'fill="none"'  # a mark below it is seen
    return f'<circle cx="{x:g}" cy="{y:g}" r="7" {fill} stroke="{color}" stroke-width="3"/>'


class _Map:
    """Memory to the right and time up, both logarithmic; the front, the device, and the marks."""

    def __init__(self, walk: Walk, marks: Mapping[str, Estimate]) -> None:
        points = [*walk, *marks.values()]
        slow = 1.15 * max(found.total_seconds for found in points)
        front = [found for found in walk.plans.front() if found.total_seconds <= slow]
        held = [found.total_bytes for found in (*points, *front)] + [walk.plans.memory]
        self._bytes = math.log(min(held) / 1.2), math.log(1.15 * max(held))
        self._seconds = math.log(min(found.total_seconds for found in (*points, *front)) / 1.16), math.log(slow)
        left, top, width, height = MAP
        way = "L".join("{:.1f} {:.1f}".format(*self.at(found)) for found in front)
        limit = self._x(walk.plans.memory)
        self.drawn = outline(left, top, width, height, "empty")
        self.drawn += f'<path class="trail" stroke-dasharray="5 3" d="M{limit:.1f} {top}v{height}"/>'
        self.drawn += f'<path fill="none" stroke="{theme.RANKS[0]}" stroke-width="2.5" d="M{way}"/>'
        if front:
            x, y = self.at(front[len(front) // 2])
            self.drawn += word(x - 40, y + 14, "the front", "small")
        for name, found in marks.items():
            x, y = self.at(found)
            self.drawn += f'<path d="M{x:.1f} {y - 8:.1f}l8 8l-8 8l-8-8z" fill="currentColor"/>'
            self.drawn += word(x - 3.2 * len(name), y + 18, name, "small strong")
        self.drawn += word(left + width / 2, top + height + 27, "GiB of the fullest rank →", "small")
        self.drawn += word(4, top - 12, "seconds ↑", "small left")
        for seconds in (4, 5, 6, 8, 10, 14, 20, 30, 50):
            if self._seconds[0] <= math.log(seconds) <= self._seconds[1]:
                self.drawn += word(left - 14, self._y(seconds), seconds, "small")
        for gib in (10, 20, 40, 80, 160, 320, 640):
            if self._bytes[0] <= math.log(gib * GIB) <= self._bytes[1]:
                self.drawn += word(self._x(gib * GIB), top + height + 11, gib, "small")

    def at(self, found: Estimate) -> tuple[float, float]:
        """The place of a layout."""
        return self._x(found.total_bytes), self._y(found.total_seconds)

    def _x(self, nbytes: float) -> float:
        low, high = self._bytes
        return round(MAP[0] + MAP[2] * (math.log(nbytes) - low) / (high - low), 1)

    def _y(self, seconds: float) -> float:
        low, high = self._seconds
        return round(MAP[1] + MAP[3] * (high - math.log(seconds)) / (high - low), 1)
