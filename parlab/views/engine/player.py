"""Films: a drawing that plays by itself, as inline SVG moved by CSS. No script, no kernel, no network.

A film has stops: the times of a run at which something starts or ends. Its clock stands a moment at each, so that it
can be read, and in between it passes in proportion to the run's time. What is drawn is given with times of the run:

>>> film = Film("A message of 1 KiB takes 2 µs", [0, 2_000_000], height=80)
>>> film.draw(word(60, 40, "rank 0") + word(580, 40, "rank 1"))
>>> film.move(letter(100, 28, 80, 24, "1 KiB"), 0, 2_000_000, by=(360, 0))
>>> film.tell(0, "rank 0 sends 1 KiB to rank 1")
>>> film
A message of 1 KiB takes 2 µs
0 s: rank 0 sends 1 KiB to rank 1

The caption below the drawing is text of the page, as large on a telephone as on a screen.

CSS animates one number, the share `--u` of the film that has passed. Two numbers follow from it: `--t`, the film's
second, and `--c`, the share of the run's time. Each thing that comes, goes or moves is a formula of these two, and of
its own numbers, which the methods of `Film` write:

    --a, --b        the seconds at which it appears and is gone
    --f, --g        the shares of the run's time at which it leaves and arrives, where it passes stops on its way
    --x, --y        how far it travels to the right and down
    --v, --w        how far aside it is half-way
    --part, --s     computed: the share of its way that lies behind it; its share of the bow, 1 half-way, 0 at the ends
    --s0, --s1, …   the film's second at each stop; a single step plays --from one --to the next

So the film loops, pauses under the mouse, plays single steps and stands still by that one number. Where nothing moves
(on paper, or if the reader wants less motion) it is 1, and the last picture is shown. Ink is `currentColor`, the
background is transparent: both are right in light and dark pages.

Invariant: the clock stands still in the seconds between the arrival at a stop and the leaving of it, `second(time)` and
`second(time, leaves=True)`, and in these alone, but for `BEFORE` and `AFTER`. So what is drawn at a stop can be read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from html import escape
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

from parlab.views.engine import theme
from parlab.world.units import format_time

WIDTH = 640  # of the drawing, in its own units; a text of 16 is readable on a telephone
LETTERS = 144  # that a caption has room for: four lines on a telephone
MOST_BYTES = 60_000
RATE = 20  # pictures a second: at 60, four films fill a processor core without a GPU
SHORTEST = 0.2  # seconds of a way, if it takes no time and the clock does not stand
BEFORE, AFTER = 0.3, 2.0  # seconds before the first stop's rest, and after the last one's
CSS = f"""
@property --t{{syntax:"<number>";inherits:true;initial-value:9999}}
@property --c{{syntax:"<number>";inherits:true;initial-value:1}}
@property --u{{syntax:"<number>";inherits:false;initial-value:1}}
@keyframes film-0{{from{{--u:0}}to{{--u:1}}}}
@keyframes film-1{{from{{--u:0}}to{{--u:1}}}}
.film{{content-visibility:auto;contain-intrinsic-size:auto 600px}}
.film>div{{display:block!important}}
.film .plays{{max-width:760px;font:16px system-ui,sans-serif;--from:-{BEFORE};--to:var(--end);
--t:calc(var(--from) + var(--u,1)*(var(--to) - var(--from)))}}
.film svg{{display:block;width:100%}}
.film .caption{{display:grid}}
.film .caption p{{grid-area:1/1;margin:0;line-height:1.3;text-align:center}}
.film rect{{rx:3px}}
.film text{{fill:currentColor;text-anchor:middle;dominant-baseline:central}}
.film .dark{{fill:{theme.INK}}}
.film .light{{fill:{theme.PAPER}}}
.film .small{{font-size:14px}}
.film .arrow{{font-size:26px;opacity:.5}}
.film .strong{{font-weight:700}}
.film .left{{text-anchor:start}}
.film .empty{{fill:currentColor;fill-opacity:.1}}
.film .frame{{fill:none;stroke:currentColor;stroke-width:2.5}}
.film .wait{{fill:none;stroke:currentColor;stroke-dasharray:2 3}}
.film .trail{{fill:none;stroke:currentColor;opacity:.55}}
.film .letter{{fill:var(--jp-layout-color0,var(--color-background-primary,Canvas));stroke:currentColor;
stroke-width:2;stroke-dasharray:5 3}}
.film .open{{fill:none}}
.film .see,.film .go{{opacity:calc(clamp(0,(var(--t) - var(--a,-99))*40 + 1,1)*
clamp(0,(var(--b,9999) - var(--t))*40,1))}}
.film .go{{--part:clamp(0,(var(--t) - var(--a))/(var(--b) - var(--a)),1);--s:calc(4*var(--part)*(1 - var(--part)));
transform:translate(calc((var(--x)*var(--part) + var(--v,0)*var(--s))*1px),
calc((var(--y)*var(--part) + var(--w,0)*var(--s))*1px))}}
.film .flow{{--part:clamp(0,(var(--c) - var(--f))/(var(--g) - var(--f)),1)}}
.film .bare{{clip-path:inset(0 calc(100% - 100%*var(--c)) 0 0)}}
.film .now{{transform:translate(calc(var(--x)*var(--c)*1px),0)}}
.film label{{display:inline-block;margin:4px 14px 4px 0;cursor:pointer}}
@media screen and (prefers-reduced-motion:no-preference){{
.film .plays{{animation:film-0 calc((var(--to) - var(--from))*1s) steps(var(--ticks)) infinite}}
.film:has(.k:checked) .plays{{animation-timing-function:linear;animation-iteration-count:1;animation-fill-mode:both}}
.film .plays:hover{{animation-play-state:paused}}}}
@media print{{.film label{{display:none}}}}
""".strip()
SLIDE = ".film .slide{transform:translate(calc((var(--x))*1px),0)}"
STEP = ".film:has(.k{0}:checked) .plays{{--from:var(--s{1});--to:var(--s{0});animation-name:film-{2}}}"


def thinned(times: Iterable[Any], most: int) -> list[Any]:
    """Stops of these times, ascending, at most so many: of the others, those that are nearest to the one before share
    its stop. The first and the last stay.

    >>> thinned([0, 10, 11, 20, 30], 4)
    [0, 10, 20, 30]
    """
    found = sorted(set(times))
    while len(found) > most:
        gaps = [later - earlier for earlier, later in pairwise(found[:-1])]
        del found[gaps.index(min(gaps)) + 1]
    return found


class Film:
    """A drawing that plays by itself. `repr` is its story in words, one line a step.

    Args:
        headline: what the film shows, in one sentence.
        times: the stops, ascending, two or more, in the run's unit of time: `run.timeline` counts picoseconds.
        height: of the drawing, which is 640 wide; the clock and the caption stand below it.
        moving: seconds between stops, all together.
        resting: seconds at each stop.
        ends: the x at which the clock starts and ends.
        says: the words for a time.
        ticks: the times below the clock, ascending, besides the last stop; None: the stops.

    Raises:
        ValueError: stops that do not ascend, or fewer than two.
    """

    def __init__(
        self,
        headline: str,
        times: Sequence[Any],
        height: float,
        *,
        moving: float = 9.0,
        resting: float = 0.7,
        ends: tuple[float, float] = (40, WIDTH - 40),
        says: Callable[[Any], str] = format_time,
        ticks: Sequence[Any] | None = None,
    ):
        if len(times) < 2 or any(later <= earlier for earlier, later in pairwise(times)):
            raise ValueError(f"times={list(times)!r:.60}: a film needs two stops or more, in ascending order")
        self.headline, self.times, self.height, self.says = headline, list(times), height, says
        self.lines: list[str] = []
        self._silent = self.times[:-1]  # the stops that have no line yet
        self._marks: list[str] = []
        self._captions: list[str] = []
        self._slides = False
        self._moving, self._resting, self._ends = moving, resting, ends
        self._ticks = self.times if ticks is None else [*(time for time in ticks if time < times[-1]), times[-1]]

    @property
    def story(self) -> str:
        """The headline and the line of each step."""
        return "\n".join([self.headline, *self.lines])

    def __repr__(self) -> str:
        return self.story

    def share(self, time: Any) -> float:
        """The share of the run's time that has passed at `time`, from 0 to 1."""
        return float((time - self.times[0]) / (self.times[-1] - self.times[0]))

    def x(self, time: Any) -> float:
        """The place of `time` on the clock at the bottom, and on lanes above it."""
        left, right = self._ends
        return round(left + (right - left) * self.share(time), 1)

    def second(self, time: Any, *, leaves: bool = False) -> float:
        """The film's second at which its clock comes to `time`; with `leaves`, at which it goes on from there."""
        stops = (bisect_right if leaves else bisect_left)(self.times, time)
        return round(self._moving * self.share(time) + self._resting * stops, 2)

    def draw(
        self, mark: str, start: Any = None, end: Any = None, *, between: bool = False, after: bool = False
    ) -> None:
        """Add SVG, seen from when the clock comes to `start` until it goes on from `end`; None: always.

        With `between`, it is seen from when the clock goes on from `start` until it comes to `end`; with `after`, from
        when the clock goes on from `start` until it goes on from `end`.

        Raises:
            ValueError: it ends before it starts, or SVG that is not closed, which would hide all that is drawn later.
        """
        if start is not None and end is not None and end < start:
            raise ValueError(f"start={start!r}, end={end!r}: it must not end before it starts")
        if start is end is None:
            self._marks.append(_well_formed(mark))
            return
        span = {"a": start if start is None else self.second(start, leaves=between or after)}
        span["b"] = end if end is None else self.second(end, leaves=not between)
        self._add("see", span, mark, hidden=end is not None)

    def move(self, mark: str, start: Any, end: Any, by: tuple[float, float], bow: tuple[float, float] = (0, 0)) -> None:
        """Add SVG that travels `by` (x, y) from `start` to `end`, and is not seen before and after.

        One that takes no time travels while the clock stands.

        Args:
            mark: the SVG at its place at `start`.
            start, end: when it leaves and when it arrives.
            by: how far to the right and down.
            bow: how far aside it is half-way, so that it does not cross what lies between.

        Raises:
            ValueError: it arrives before it leaves, or when the film is over.
        """
        first, last = self.times[0], self.times[-1]
        if not first <= start <= end <= last:
            raise ValueError(f"start={start!r}, end={end!r}: must ascend, and the film goes from {first!r} to {last!r}")
        instant = start == end
        leaves, arrives = self.second(start, leaves=not instant), self.second(end, leaves=instant)
        span: dict[str, Any] = {"a": leaves, "b": max(arrives, round(leaves + SHORTEST, 2))}
        span |= {"x": by[0], "y": by[1], "v": bow[0] or None, "w": bow[1] or None}
        stops_inside = bisect_left(self.times, end) > bisect_right(self.times, start)
        if stops_inside:
            span |= {"f": round(self.share(start), 4), "g": round(self.share(end), 4)}
        self._add("go flow" if stops_inside else "go", span, mark, hidden=True)

    def slide(
        self, mark: str, places: Sequence[float], window: tuple[float, float, float, float] | None = None
    ) -> None:
        """Add SVG that is always seen, drawn at its place at the last stop, and travels to the right or left between
        two stops where its place changes.

        Args:
            mark: the SVG at its last place.
            places: its x at each stop, from any origin.
            window: left, top, width and height of the place outside which it is not seen. None: it is seen everywhere.

        Raises:
            ValueError: another number of places than of stops.
        """
        ways = []
        for (start, end), (before, after) in zip(pairwise(self.times), pairwise(places), strict=True):
            leaves, arrives = self.second(start, leaves=True), self.second(end)
            if by := round(before - after, 1):  # the way that is left
                ways.append(f"{by:g}*(1 - clamp(0,(var(--t) - {leaves:g})/{arrives - leaves:.4g},1))")
        moving = f'<g class="slide" style="--x:{" + ".join(ways)}">{mark}</g>' if ways else mark
        self._marks.append(_through(window, moving) if window else moving)
        self._slides = self._slides or bool(ways)

    def reveal(self, mark: str) -> None:
        """Add SVG that is revealed from the left as the run's time passes; it stands between the ends of the clock."""
        left, right = self._ends
        whole = f'<rect x="{left:g}" y="0" width="{right - left:g}" height="{self.height:g}" fill="none"/>'
        self._add("bare", {}, whole + mark)

    def ride(self, mark: str) -> None:
        """Add SVG that moves to the right with the run's time, from one end of the clock to the other."""
        self._add("now", {"x": self._ends[1] - self._ends[0]}, mark)

    def _add(self, kind: str, numbers: dict[str, Any], mark: str, *, hidden: bool = False) -> None:
        gone = ' opacity="0"' if hidden else ""  # for readers of SVG without our CSS
        self._marks.append(f'<g class="{kind}"{_style(numbers)}{gone}>{_well_formed(mark)}</g>')

    def tell(self, time: Any, line: str) -> None:
        """A line below the drawing, from `time`, a stop but the last, to the next stop.

        Raises:
            ValueError: a line too long for its place, or `time` is no stop, or has a line.
        """
        if time not in self._silent:
            raise ValueError(f"time={time!r}: must be a stop of the film, not its last, and without a line yet")
        step = self.times.index(time) + 1
        start = None if step == 1 else self.second(time, leaves=True)
        end = None if step == len(self.times) - 1 else self.second(self.times[step], leaves=True)
        self._say(time, line, f"{step} of {len(self.times) - 1}: {line}", start, end)
        self._silent.remove(time)

    def narrate(self, told: Sequence[tuple[Any, str]]) -> None:
        """Lines below the drawing at any times: in place of `tell`, where the stops are not where a line begins.

        Each is seen from when the clock comes to its time until the next one is; the last one from when the clock goes
        on from its time.

        Args:
            told: each time and its line, ascending; the first is the film's start.

        Raises:
            ValueError: a line too long for its place, or times that do not ascend from the film's start.
        """
        times = [time for time, _ in told]
        if times[:1] != self.times[:1] or any(later <= earlier for earlier, later in pairwise(times)):
            raise ValueError(f"told={list(told)!r:.60}: must ascend from the film's start, {self.times[0]!r}")
        seen = [None, *(self.second(time, leaves=time == times[-1]) for time in times[1:]), None]
        for (time, line), start, end in zip(told, seen[:-1], seen[1:], strict=True):
            self._say(time, line, line, start, end)
        self._silent = []

    def _say(self, time: Any, line: str, caption: str, start: float | None, end: float | None) -> None:
        if len(caption) > LETTERS:
            raise ValueError(f"line={line!r:.60}: has {len(line)} letters, and a caption has room for {LETTERS}")
        self.lines.append(f"{self.says(time)}: {line}")
        self._captions.append(f'<p class="see"{_style({"a": start, "b": end})}>{escape(caption)}</p>')

    def _clock(self) -> str:
        """The run's time along the bottom: filled as far as it has come."""
        y, (left, right) = self.height + 14, self._ends
        half = [4 * len(self.says(time)) for time in self._ticks]
        words, free, last = "", 0.0, right - half[-1]  # free: the place from which a word has room
        for time, wide in zip(self._ticks, half, strict=True):
            x = self.x(time)
            if time == self.times[-1] or (free <= x - wide and x + wide + 10 <= last):
                words += word(min(x, WIDTH - wide), y + 20, self.says(time), "small")  # the last one ends on the page
                free = x + wide + 10
        filled = f'<rect x="{left:g}" y="{y:g}" width="{right - left:g}" height="6" fill="currentColor"/>'
        return words + outline(left, y, right - left, 6, "empty") + f'<g class="bare">{filled}</g>'

    def finished(self) -> Film:
        """This film, when all is drawn and told.

        Raises:
            ValueError: a step has no line, or the film has more than 60 kB.
        """
        if self._silent:
            raise ValueError(f"{self.headline!r:.60}: no line for {self._silent!r:.60}; tell(time, line) says it")
        self.html  # noqa: B018
        return self

    @cached_property
    def html(self) -> str:
        """The film as it stands in a page.

        Raises:
            ValueError: it has more than 60 kB.
        """
        stops = [self.second(time) for time in self.times]
        steps = range(1, len(stops))
        rules = "\n".join([STEP.format(step, step - 1, step % 2) for step in steps] + [SLIDE] * self._slides)
        end = stops[-1] + self._resting + AFTER
        numbers = "".join(f"--s{step}:{stop:g};" for step, stop in enumerate(stops))
        numbers += f"--end:{end:g};--ticks:{RATE * (end + BEFORE):.0f}"
        between = [
            (self.second(one, leaves=True), self.share(two) - self.share(one)) for one, two in pairwise(self.times)
        ]
        parts = [f"clamp(0,var(--t) - {leaves:g},{self._moving * share:.4g})" for leaves, share in between]
        passed = f"--c:calc(({' + '.join(parts)})/{self._moving:g})"
        keys = "".join(f'<label><input type="radio" name="step" class="k k{step}"/> {step}</label>' for step in steps)
        words = "".join(f"<li>{escape(line)}</li>" for line in self.lines)
        said = escape(self.headline)
        html = f"""<form class="film" style="{numbers}"><style>{CSS}
{rules}</style><div hidden="hidden">
<div class="plays" style="{passed}">
<svg viewBox="0 0 {WIDTH} {self.height + 46:g}" role="img" aria-label="{said}">{"".join(self._marks)}
{self._clock()}</svg>
<div class="caption" aria-hidden="true">{"".join(self._captions)}</div></div>
<label><input type="radio" name="step" checked="checked"/> play</label>{keys}</div>
<details><summary>{said}, in words</summary><ol>{words}</ol></details></form>"""
        if len(html.encode()) > MOST_BYTES:
            raise ValueError(
                f"{self.headline!r}: this film takes {len(html.encode()) / 1000:.0f} kB, and {MOST_BYTES // 1000} are "
                "the most: film fewer ranks, steps or parts"
            )
        return html

    def _repr_html_(self) -> str:
        return self.html


def _well_formed(mark: str) -> str:
    """The mark itself; a ValueError, if it is no well-formed SVG."""
    try:
        ElementTree.fromstring(f"<g>{mark}</g>")
    except ElementTree.ParseError as error:
        raise ValueError(f"mark={mark!r:.60}: is no well-formed SVG, such as '<line x1=\"0\" .../>': {error}") from None
    return mark


def _style(numbers: dict[str, Any]) -> str:
    """The attribute that gives CSS these numbers."""
    style = ";".join(f"--{name}:{value:g}" for name, value in numbers.items() if value is not None)
    return f' style="{style}"' if style else ""


def _through(window: tuple[float, float, float, float], mark: str) -> str:
    """SVG that is seen in a window only: an inner drawing with the same units, which hides what leaves it."""
    x, y, width, height = (f"{number:g}" for number in window)
    size = f'x="{x}" y="{y}" width="{width}" height="{height}" style="width:{width}px;height:{height}px"'
    return f'<svg {size} viewBox="{x} {y} {width} {height}">{mark}</svg>'


def word(x: float, y: float, text: object, look: str = "") -> str:
    """Text with its middle at (x, y). `look`: `small`, `strong`, `arrow` (large, pale), `left` (from x on)."""
    return f'<text x="{x:g}" y="{y:g}"{f" class={chr(34)}{look}{chr(34)}" if look else ""}>{escape(str(text))}</text>'


def box(
    x: float, y: float, width: float, height: float, fill: str, text: object = "", look: str = "", *, edge: str = ""
) -> str:
    """A rectangle in a colour of the theme, with a word in its middle that can be read on it; `edge` is its line."""
    ink = "dark" if theme.text_color(fill) == theme.INK else "light"
    inside = word(x + width / 2, y + height / 2, text, f"{ink} {look}".strip()) if str(text) else ""
    line = f' stroke="{edge}"' if edge else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"{line}/>{inside}'


def outline(x: float, y: float, width: float, height: float, look: str, *, thin: bool = False) -> str:
    """A rectangle: `empty` (a place), `frame` (it is complete), `letter` (on its way), `letter open`, or `wait`.

    With `thin`, its line is thin and not broken: for many small ones beside each other.
    """
    style = ' style="stroke-width:1;stroke-dasharray:0"' if thin else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{look}"{style}/>'


def shifted(mark: str, x: float, y: float) -> str:
    """SVG that was drawn around (0, 0), with that point at (x, y)."""
    return f'<g transform="translate({x:g} {y:g})">{mark}</g>'


def letter(x: float, y: float, width: float, height: float, text: object = "") -> str:
    """A message: a dashed frame that hides what lies below it, with a word in its middle."""
    inside = word(x + width / 2, y + height / 2, text, "small") if str(text) else ""
    return outline(x, y, width, height, "letter") + inside


def chip(x: float, y: float, width: float, height: float, rank: int) -> str:
    """A box with the number of a rank, in its colour."""
    return box(x, y, width, height, theme.rank_color(rank), rank)
