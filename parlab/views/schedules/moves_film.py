"""The film of a schedule that is improved move by move: its actions glide to their new times."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

from parlab.pipeline import Action, Costs, Schedule, ScheduleTimeline, simulate
from parlab.views.drawing.film import Film, box, word
from parlab.views.schedules.panels import color_of, legend_entries

LEFT, RIGHT, TOP, LANE, BAR = 70, 600, 76, 40, 28
MOST = 12


def schedules(source: Any) -> bool:
    """Whether it is a list of schedules."""
    return isinstance(source, list | tuple) and bool(source) and all(isinstance(one, Schedule) for one in source)


def moves_film(source: Sequence[Schedule], costs: Costs | None = None, bound: float | None = None) -> Film:
    """The film of schedules of the same actions, each a few moves from the one before.

    Args:
        source: the schedules, 2 to 12.
        costs: of all; None: F, I and W take 1 each, transfers nothing.
        bound: a makespan that none is below; None: no line is drawn.

    Raises:
        ValueError: fewer or more schedules, other actions on a rank, or a schedule that cannot run.
    """
    if not 2 <= len(source) <= MOST:
        raise ValueError(f"source: {len(source)} schedules; 2 to {MOST} can be filmed")
    if any([sorted(row) for row in one.actions] != [sorted(row) for row in source[0].actions] for one in source):
        raise ValueError("source: each rank must have the same actions in all schedules")
    shown = [simulate(one, costs or Costs()) for one in source]
    spans = [one.makespan for one in shown]
    last, ranks = len(shown) - 1, source[0].num_ranks
    width = (RIGHT - LEFT) / max(spans)
    headline = f"{last} move{'s' * (last > 1)}: from {spans[0]:g} to {spans[-1]:g} units"
    film = Film(headline, list(range(last + 1)), TOP + LANE * ranks, moving=1.6 * last, resting=2.2, says=_stop)
    x = 10
    for color, name, _ in legend_entries(list(source)):
        film.draw(box(x, 3, 14, 14, color) + word(x + 20, 10, name, "small left"))
        x += 32 + 8 * len(name)
    film.draw("".join(word(34, TOP + LANE * (rank + 0.5), f"rank {rank}") for rank in range(ranks)))
    if bound is not None:
        film.draw(_line(LEFT + width * bound, ranks, "none is below", f"{bound:g}", dashed=True))
    for end, stops in groupby(range(last + 1), key=spans.__getitem__):
        held = list(stops)
        first, until = held[0], held[-1]
        film.draw(_line(LEFT + width * end, ranks, "", f"{end:g}"), first, None if until == last else until)
    starts = [_starts(one) for one in shown]
    for action, (rank, _, takes) in starts[0].items():
        look = (TOP + LANE * rank + (LANE - BAR) / 2, width * takes, color_of(action.kind), action.microbatch)
        _glide(film, [LEFT + width * of[action][1] for of in starts], look)
    for number, (one, two) in enumerate(pairwise(source)):
        film.tell(number, f"{_move(one, two)}: {spans[number]:g} → {spans[number + 1]:g} units")
    return film


def _stop(number: int) -> str:
    return str(number) if number else "start"


def _starts(shown: ScheduleTimeline) -> dict[Action, tuple[int, float, float]]:
    """The rank, the start and the time of each action."""
    return {
        action: (rank, step.start, step.end - step.start)
        for rank in range(shown.size)
        for step in shown.steps(rank)
        for action in step.actions
    }


def _line(x: float, ranks: int, name: str, number: str, *, dashed: bool = False) -> str:
    """A time, as a line through all lanes."""
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    named = word(x - 20 - 4 * len(name), 36, name, "small") if name else ""
    line = f'<path d="M{x:g} 64V{TOP + LANE * ranks}" stroke="currentColor" stroke-width="2" fill="none"{dashes}/>'
    return line + named + word(x, 54 if not name else 36, number, "strong")


def _glide(film: Film, places: Sequence[float], look: tuple[float, float, str, int]) -> None:
    """A bar that stands at each stop, and travels between two where its place changes."""
    top, width, color, text = look
    number = 0
    for x, same in groupby(places):
        until = number + len(list(same)) - 1
        mark = box(round(x, 1), top, round(width - 1, 1), BAR, color, text, "small")
        film.draw(mark, number, None if until == len(places) - 1 else until)
        if until < len(places) - 1:
            film.move(mark, until, until + 1, (round(places[until + 1] - x, 1), 0))
        number = until + 1


def _move(one: Schedule, two: Schedule) -> str:
    """The first place at which two schedules differ."""
    for rank, rows in enumerate(zip(one.actions, two.actions, strict=True)):
        for old, new in zip(*rows, strict=True):
            if old != new:
                return f"rank {rank} does {new.kind}{new.microbatch} before {old.kind}{old.microbatch}"
    return "nothing moves"
