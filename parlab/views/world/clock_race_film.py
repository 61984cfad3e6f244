"""The film of several clocks of one program, over each other: below an action stands the same one by the next clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise

from parlab.arguments import flag
from parlab.views.engine import theme
from parlab.views.engine.lanes import timelines_of
from parlab.views.engine.player import WIDTH, Film, box, outline, shifted, word
from parlab.views.world.carried_film import carried_film, from_first_computation
from parlab.views.world.timeline import ACTION, kind_of
from parlab.world import Run, Timeline

MOST_CLOCKS, MOST_RANKS, MOST_LETTERS = 3, 4, 9
ENDS = (148, 606)  # of the rows; at their left stand the rank and the clock
BAR, GAP, BETWEEN, LINE = 17, 14, 13, 24  # heights: of a row, between two rows of a rank, between ranks, of a text
LOOKS = 4  # stops, about: the film's clock also stands at the end of each run
ROUND = (1, 2, 2.5, 4, 5, 8, 10)  # the first digits of the time between two stops
MOST_LINES = 8  # between two rows of a rank: more are a grey fan
DIGIT, LETTER, ROOM = 8, 8, 2  # the width of a letter on a bar and in the legend, and the room beside a bar's

Ends = dict[tuple[int, str], int]  # when a rank's action ended


def clock_race_film(runs: Mapping[str, Run | Timeline], messages: bool = False) -> Film:
    """The film of up to three runs on one clock, each from its first computation on. A rank has a row for each run.

    A line joins the same action in two rows, from its end to its end: it is upright where both clocks agree. Of many
    actions every second, third, ... has one.

    Args:
        runs: {name: run}, each of at most 4 ranks; `run.wallclock` is the one of a watch. A name has up to 9 letters.
        messages: two ranks side by side instead, and the messages between them: see `carried_film`.

    Raises:
        ValueError: a run that computes nothing, too many runs or ranks, a longer name, or clocks of several units.
    """
    flag("messages", messages)
    for name, one in timelines_of(runs).items():
        if not one.computes:
            raise ValueError(f"source: {name} computes nothing, and this film shows when each action ends")
    if messages:
        return carried_film(runs)
    shown = {name: from_first_computation(one) for name, one in timelines_of(runs, MOST_CLOCKS, one_clock=True).items()}
    if max(one.size for one in shown.values()) > MOST_RANKS:
        raise ValueError(f"source: a race has lanes for {MOST_RANKS} ranks of each run")
    for name in shown:
        if len(name) > MOST_LETTERS:
            raise ValueError(f"source: the name {name!r} has {len(name)} letters, and {MOST_LETTERS} have room")
    says, ends = next(iter(shown.values())).format, [one.makespan for one in shown.values()]
    between = _round(max(ends) / LOOKS)
    looks = {between * look for look in range(max(ends) // between + 1)}
    times = sorted({look for look in looks if all(abs(look - end) > max(ends) // 40 for end in ends)} | set(ends))
    lane = len(shown) * BAR + (len(shown) - 1) * GAP + BETWEEN
    size = max(one.size for one in shown.values())
    legend, lines = _legend(shown.values())
    done_at = LINE * lines + 10
    header = done_at + 16
    height = header + lane * size - BETWEEN
    film = Film(
        "; ".join(f"{name} {says(one.makespan)}" for name, one in shown.items()),
        times,
        height,
        says=says,
        ends=ENDS,
        resting=0.4,
    )
    film.draw(legend)
    for number, (name, one) in enumerate(shown.items()):
        film.draw(
            word(
                ENDS[0] + (230 if len(shown) < 3 else 154) * number,
                done_at,
                f"{name}: done at {says(one.makespan)}",
                "small left",
            ),
            one.makespan,
        )
    marks = ""
    for rank in range(size):
        top = header + lane * rank
        rows = [top + (BAR + GAP) * number for number in range(len(shown))]
        film.draw(word(30, (top + rows[-1] + BAR) / 2, f"rank {rank}"))
        film.draw(box(60, top, 5, rows[-1] + BAR - top, theme.rank_color(rank)))
        for y, (name, one) in zip(rows, shown.items(), strict=True):
            film.draw(word(72, y + BAR / 2, name, "small left"))
            marks += _row(film, one, rank, y)
        for (y, above), (_, below) in pairwise(zip(rows, map(_ends, shown.values()), strict=True)):
            marks += _joined(film, above, below, rank, y + BAR)
    film.reveal(marks)
    film.ride(f'<path class="trail" d="M{ENDS[0]} {header}v{height - header}"/>')
    for start, end in pairwise(times):
        film.tell(start, _line(shown, end))
    return film


def _round(time: float) -> int:
    """The time with one or two digits that is nearest to `time`."""
    unit = 10.0 ** math.floor(math.log10(max(time, 1)))
    nearest = min((first * unit for first in ROUND), key=lambda found: abs(found - time))
    return max(1, round(nearest))


def _legend(shown: Iterable[Timeline]) -> tuple[str, int]:
    """The colour of each kind of work, the dashes of a wait, and the line between two clocks; and how many lines of
    text that is.
    """
    kinds = {kind_of(span.name) for one in shown for span in one.computes}
    signs = {
        theme.KINDS[kind].name: box(0, 3, 14, 14, theme.KINDS[kind].color) for kind in theme.KINDS if kind in kinds
    }
    signs["waits"] = outline(0, 3, 14, 14, "wait")
    signs["the same action ends"] = '<path class="trail" d="M0 3l12 14"/>'
    marks, x, y = "", ENDS[0], 0
    for name, sign in signs.items():
        if x + 20 + LETTER * len(name) > WIDTH:
            x, y = ENDS[0], y + LINE
        marks += shifted(sign + word(20, 10, name, "small left"), x, y)
        x += 36 + LETTER * len(name)
    return marks, y // LINE + 1


def _row(film: Film, shown: Timeline, rank: int, y: float) -> str:
    """The work and the waits of a rank, as one path for each kind: many bars take few bytes."""
    bars: dict[str, str] = {}
    texts: dict[str, str] = {}
    for span in shown.computes:
        x, width = film.x(span.start), round(film.x(span.end) - film.x(span.start), 1)
        if span.rank != rank or width <= 0:
            continue
        color = theme.KINDS[kind_of(span.name)].color
        bars[color] = bars.get(color, "") + _bar(x, y, width)
        text = action[2] if (action := ACTION.fullmatch(span.name)) else span.name
        if DIGIT * len(text) + ROOM <= width:
            texts[color] = texts.get(color, "") + f'<tspan x="{x + width / 2:.4g}">{text}</tspan>'
    waits = [(film.x(w.start), film.x(w.end)) for w in shown.waits if w.rank == rank]
    dashes = "".join(_bar(start, y, round(end - start, 1)) for start, end in waits if end - start >= 1)
    marks = f'<path class="wait" d="{dashes}"/>' if dashes else ""
    for color, drawn in bars.items():
        marks += f'<path fill="{color}" d="{drawn}"/>'
    for color, said in texts.items():
        ink = "dark" if theme.text_color(color) == theme.INK else "light"
        marks += f'<text y="{y + BAR / 2:g}" class="{ink} small">{said}</text>'
    return marks


def _bar(x: float, y: float, width: float) -> str:
    return f"M{x:g} {y:g}h{max(width - 0.8, 0.4):.3g}v{BAR}h{-max(width - 0.8, 0.4):.3g}z"


def _ends(shown: Timeline) -> Ends:
    return {(span.rank, span.name): span.end for span in shown.computes}


def _joined(film: Film, above: Ends, below: Ends, rank: int, y: float) -> str:
    """A line from the end of each action in the row above to its end in the row below, the last action's always."""
    own = sorted((end, key) for key, end in above.items() if key[0] == rank and key in below)
    every = math.ceil(len(own) / MOST_LINES) or 1  # counted from the last one
    both = [(film.x(end), film.x(below[key])) for end, key in reversed(own[::-every])]
    lines = "".join(f"M{start:g} {y:g}L{end:g} {y + GAP:g}" for start, end in both)
    return f'<path class="trail" d="{lines}"/>' if lines else ""


def _line(shown: Mapping[str, Timeline], time: int) -> str:
    """How many actions have ended at `time` by each clock, and how late the last clock's newest is, by the first."""
    done = {name: sum(span.end <= time for span in one.computes) for name, one in shown.items()}
    first, *others = [f"{name} {done[name]}" for name in shown]
    total = len(next(iter(shown.values())).computes)
    says = next(iter(shown.values())).format
    said = f"by {says(time)}: {', '.join([f'{first} of {total}', *others])}"
    clock, watch = _ends(next(iter(shown.values()))), _ends(list(shown.values())[-1])
    ended = [(end, key) for key, end in watch.items() if end <= time and key in clock]
    if len(shown) == 1 or not ended:
        return said
    end, (rank, name) = max(ended)
    late = end - clock[rank, name]
    short = action[1] + action[2] if (action := ACTION.fullmatch(name)) else name
    return f"{said}; {short} of rank {rank}: {says(abs(late))} {'late' if late >= 0 else 'early'}"
