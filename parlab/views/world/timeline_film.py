"""The film of a run: a lane a rank, and messages that are posted, wait, travel and arrive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from parlab.arguments import whole
from parlab.views.engine import theme
from parlab.views.engine.lanes import timeline_of
from parlab.views.engine.player import LETTERS, Film, box, letter, outline, shifted, thinned, word
from parlab.views.engine.words import do, spans, the_ranks
from parlab.views.world.timeline import ACTION, awaited, kind_of, time_spent
from parlab.views.world.waiting import waiting
from parlab.views.world.waits_film import waits_film
from parlab.world import Run, Timeline, Transfer
from parlab.world.units import format_bytes, several

MOST_RANKS, MOST_STOPS, MOST_STANDING = 8, 12, 12
ENDS = (78, 506)  # of the lanes; a message and a word have room at the right of the end
BAR, MESSAGE = 24, (66, 20)  # heights and widths
APART = 11  # a message leaves so far below the middle of its lane, and arrives so far above the middle


def timeline_film(run: Run | Timeline, ranks: int | None = None, waits: bool = False) -> Film:
    """The film of a run of at most 8 ranks. At the right of the hand of the clock is what is posted now.

    A dashed message waits on its sender's lane until the receiver has come; a solid one travels. An empty place waits
    on the lane of a receiver, until the message stands in it. Waits are hatched or dotted, as in `timeline`. Messages
    of no bytes, such as a barrier's, are not drawn. Where more than 12 times have events, those that are nearest to
    each other share a stop.

    Args:
        run: the run, or its timeline.
        ranks: only the lanes of ranks 0 to `ranks` - 1; None: all.
        waits: the ranks as a ring instead, and who waits for whom: see `waits_film`.

    Raises:
        ValueError: more than 8 ranks, or a run in which nothing takes time.
    """
    shown = timeline_of(run)
    if waits:
        return waits_film(shown)
    size = shown.size if ranks is None else min(shown.size, whole("ranks", ranks, 1))
    if size > MOST_RANKS:
        raise ValueError(
            f"ranks={ranks}: the run has {shown.size} ranks, and a film has lanes for {MOST_RANKS} of them"
        )
    if not shown.makespan:
        raise ValueError(f"source={shown!r:.60}: nothing takes any time")
    messages = [t for t in shown.transfers if max(t.src, t.dst) < size and t.src != t.dst and t.nbytes]
    stops = _stops(shown, messages, size)
    lane = 58 if size <= 4 else 46
    film = Film(f"{several(size, 'rank')}: {time_spent(shown)}", stops, lane * size + 6, says=shown.format, ends=ENDS)
    middles = [lane * rank + lane / 2 for rank in range(size)]
    for rank, y in enumerate(middles):
        film.draw(word(36, y, f"rank {rank}") + box(66, y - BAR / 2, 5, BAR, theme.rank_color(rank)))
    trails = "".join(_trail(film, t, middles) for t in messages if t.end > t.start and abs(t.src - t.dst) == 1)
    bars = ""
    words: defaultdict[Any, str] = defaultdict(str)
    for rank, y in enumerate(middles):
        for bar, text, end in program(film, shown, rank, y):
            bars += bar
            words[end] += text
    film.reveal(trails + bars)
    for end, texts in words.items():  # when its bar is whole: the hand of the clock would cut it
        if texts:
            film.draw(texts, end)
    film.ride(f'<path class="trail" d="M{ENDS[0]} 0v{lane * size + 6}"/>')
    for t in messages:
        _message(film, shown, t, middles, stands=len(messages) <= MOST_STANDING)
    for start, end in pairwise(stops):
        film.tell(start, _line(shown, messages, size, start, end))
    return film


def _stops(shown: Timeline, messages: list[Transfer], size: int) -> list[Any]:
    """The times at which something starts or ends, at most 12."""
    times = {0, shown.makespan}
    times |= {time for t in messages for time in (t.start, t.end)}
    times |= {time for span in shown.computes if span.rank < size for time in (span.start, span.end)}
    times |= {wait.start for wait in shown.waits if wait.rank < size}
    return thinned(times, MOST_STOPS)


def program(film: Film, shown: Timeline, rank: int, y: float, bar: float = BAR) -> Iterator[tuple[str, str, Any]]:
    """The bars of a rank, laid around `y`, with their words and ends: its work, its waits for a rank or a transfer."""
    for span in shown.computes:
        if span.rank == rank and span.end > span.start:
            action = ACTION.fullmatch(span.name)
            color = theme.KINDS[kind_of(span.name)].color
            text = action[2] if action else span.name
            x, width = film.x(span.start), film.x(span.end) - film.x(span.start)
            text, width = _fitting(width, [text]), round(width, 1)
            ink = "dark" if theme.text_color(color) == theme.INK else "light"
            said = word(x + width / 2, y, text, f"{ink} small") if text else ""
            yield box(x, y - bar / 2, width, bar, color), said, span.end
    for wait in shown.waits:
        if wait.rank != rank:
            continue
        for kind, start, end in (("wait", wait.start, wait.came), ("transfer", wait.came, wait.end)):
            x, width = film.x(start), round(film.x(end) - film.x(start), 1)
            text = _fitting(width, awaited(kind, wait))
            if width > 0:
                said = word(x + width / 2, y, text, "small dark") if text else ""
                yield waiting(kind, x, y - bar / 2, width, bar), said, end


def _fitting(width: float, texts: Iterable[str]) -> str:
    """The first of the texts that has room."""
    return next((text for text in texts if 7.5 * len(text) <= width), "")


def _trail(film: Film, t: Transfer, middles: list[float]) -> str:
    """The way that a message has taken to the next lane; a longer one would run behind the bars of others."""
    down = 1 if t.dst > t.src else -1
    start = complex(film.x(t.start), middles[t.src] + down * BAR / 2)
    tip = complex(film.x(t.end), middles[t.dst] - down * BAR / 2)
    back = 8 * (start - tip) / abs(start - tip)
    points = [start, tip, tip + back * (1 + 0.4j), tip, tip + back * (1 - 0.4j)]
    return f'<path class="trail" d="M{"L".join(f"{point.real:.4g} {point.imag:.4g}" for point in points)}"/>'


def _message(film: Film, shown: Timeline, t: Transfer, middles: list[float], stands: bool) -> None:
    """A message: posted by one, awaited by the other, on its way; `stands`: seen also while the clock stands."""
    width, height = MESSAGE
    text = format_bytes(t.nbytes)
    posted, awaits = (
        min([w.start for w in shown.waits if (w.rank, w.peer) == pair and w.start <= t.ready < w.end], default=t.ready)
        for pair in ((t.src, t.dst), (t.dst, t.src))
    )
    below, above = middles[t.src] + APART - height / 2, middles[t.dst] - APART - height / 2
    dashed = letter(3, 0, width, height, text) + word(width + 9, height / 2, "posted", "small left")
    place = outline(3, 0, width, height, "wait") + word(width + 9, height / 2, f"from {t.src}", "small left")
    sent = box(3, 0, width, height, theme.KINDS["send"].color, text, "small")
    for mark, y, start, end in ((dashed, below, posted, t.start), (place, above, awaits, t.end)):
        if start < end:
            film.move(shifted(mark, film.x(start), y), start, end, (film.x(end) - film.x(start), 0))
        for time in sorted({start, t.start}) if stands else ():
            _stand(film, shifted(mark, film.x(time), y), time)
    film.move(shifted(sent, film.x(t.start), below), t.start, t.end, (film.x(t.end) - film.x(t.start), above - below))
    if stands:
        _stand(film, shifted(sent, film.x(t.end), above), t.end)


def _stand(film: Film, mark: str, time: Any) -> None:
    """The mark while the clock stands at `time`, if it is a stop; what moves is seen only when the clock goes on."""
    if time in film.times:
        film.draw(mark, time, None if time == film.times[-1] else time)


def _line(shown: Timeline, messages: list[Transfer], size: int, start: Any, end: Any) -> str:
    """The events that begin from `start` on and before `end`."""
    works: dict[str, list[int]] = {}
    for span in shown.computes:
        if span.rank < size and start <= span.start < end and span.end > span.start:
            works.setdefault(span.name, []).append(span.rank)
    said = [f"{the_ranks(ranks, spans(ranks))} {do(len(ranks), 'compute')} {name}" for name, ranks in works.items()]
    ways: dict[int, list[tuple[int, int]]] = {}
    for t in messages:
        if start <= t.start < end:
            ways.setdefault(t.nbytes, []).append((t.src, t.dst))
    said += [_travel(format_bytes(nbytes), way, shown.size) for nbytes, way in ways.items()]
    said += [
        f"rank {wait.rank} waits for rank {wait.peer}"
        for wait in shown.waits
        if wait.rank < size and start <= wait.start < end and wait.came > wait.start
    ]
    ends = [(max([s.end for s in shown.spans if s.rank == rank], default=0), rank) for rank in range(size)]
    said += [f"rank {rank} is done" for done, rank in ends if start <= done < end]
    came = sorted({t.dst for t in messages if start <= t.end < end})
    arrived = f"the message{'s' * (len(came) > 1)} for {', '.join(map(str, came))} arrived"
    return _joined(said or [arrived if came else "only messages without bytes travel"])


def _travel(size: str, ways: list[tuple[int, int]], ranks: int) -> str:
    if len(ways) > 2 and all(dst == (src + 1) % ranks for src, dst in ways):
        return f"ranks {spans(src for src, _ in ways)} send {size} to the right"
    return f"{size} travel {', '.join(f'from {src} to {dst}' for src, dst in ways)}"


def _joined(said: list[str]) -> str:
    """As many of the sentences as a caption has room for; the last ones tell who waits."""
    most, kept = LETTERS - 20, list(said)
    while len(kept) > 1 and len("; ".join(kept)) > most:
        del kept[0]
    shown = "; ".join(kept)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"
