"""The film of a schedule that is improved move by move, or by more memory: its actions glide to their new times."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

from parlab.arguments import whole
from parlab.pipeline import Action, Costs, Schedule, ScheduleTimeline, simulate
from parlab.views.drawing.film import Film, box, outline, word
from parlab.views.schedules.panels import color_of, legend_entries

LEFT, RIGHT, TOP, LANE, BAR = 70, 600, 76, 40, 28
MOST = 12


def schedules(source: Any) -> bool:
    """Whether it is a list of schedules."""
    return isinstance(source, list | tuple) and bool(source) and all(isinstance(one, Schedule) for one in source)


def moves_film(
    source: Sequence[Schedule], costs: Costs | None = None, bound: float | None = None, waiting: int | None = None
) -> Film:
    """The film of schedules of the same actions, each a few moves from the one before.

    Where they keep different numbers of activations, each stop says how many places its fullest rank needs.

    Args:
        source: the schedules, 2 to 12.
        costs: of all; None: F, I and W take 1 each, transfers nothing.
        bound: a makespan that none is below; None: no line is drawn.
        waiting: a rank whose first wait after its first action has a frame with the time that it lasts; None: no frame.

    Raises:
        ValueError: fewer or more schedules, other actions on a rank, a schedule that cannot run, or no such rank.
    """
    if not 2 <= len(source) <= MOST:
        raise ValueError(f"source: {len(source)} schedules; 2 to {MOST} can be filmed")
    if any([sorted(row) for row in one.actions] != [sorted(row) for row in source[0].actions] for one in source):
        raise ValueError("source: each rank must have the same actions in all schedules")
    shown = [simulate(one, costs or Costs()) for one in source]
    spans, rooms = [one.makespan for one in shown], [_places(one) for one in shown]
    last, ranks = len(shown) - 1, source[0].num_ranks
    if waiting is not None:
        whole("waiting", waiting, 0)
        if waiting >= ranks:
            raise ValueError(f"waiting={waiting}: the schedules have ranks 0 to {ranks - 1}")
    more = len(set(rooms)) > 1  # or less
    width = (RIGHT - LEFT) / max(spans)
    what = f"room for {', '.join(f'{room:g}' for room in rooms)}" if more else f"{last} move{'s' * (last > 1)}"
    says = (lambda number: f"room for {rooms[number]:g}") if more else _stop
    headline = f"{what}: from {spans[0]:g} to {spans[-1]:g} units"
    film = Film(headline, list(range(last + 1)), TOP + LANE * ranks, moving=1.6 * last, resting=2.2, says=says)
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
        film.draw(_line(LEFT + width * end, ranks, "", f"{end:g}"), first or None, None if until == last else until)
    if waiting is not None:
        for number, timed in enumerate(shown):
            _frame(film, timed, waiting, width, number, number < last)
    starts = [_starts(one) for one in shown]
    together: dict[tuple[float, ...], str] = {}  # the actions that go the same way
    for action, (rank, begin, takes) in starts[-1].items():
        y = TOP + LANE * rank + (LANE - BAR) / 2
        color = color_of(action.kind)
        mark = box(
            round(LEFT + width * begin, 1), y, round(width * takes - 1, 1), BAR, color, action.microbatch, "small"
        )
        way = tuple(width * (of[action][1] - begin) for of in starts)
        together[way] = together.get(way, "") + mark
    for places, marks in together.items():
        film.slide(marks, places)
    for number, (one, two) in enumerate(pairwise(source)):
        room = f"with room for {rooms[number + 1]:g} " if more else ""
        film.tell(number, f"{room}{_move(one, two)}: {spans[number]:g} → {spans[number + 1]:g} units")
    return film


def _stop(number: int) -> str:
    return str(number) if number else "start"


def _places(shown: ScheduleTimeline) -> float:
    """Activations of a whole rank's layers that the fullest rank keeps."""
    return max(shown.peak_activations) * shown.size / shown.schedule.num_stages


def _frame(film: Film, shown: ScheduleTimeline, rank: int, width: float, number: int, leaves: bool) -> None:
    """A rank's first wait after it has begun, with its length."""
    for one, two in pairwise(shown.steps(rank)):
        if (units := two.start - one.end) > 0:
            x, y = LEFT + width * one.end, TOP + LANE * rank + (LANE - BAR) / 2
            mark = outline(round(x, 1), y, round(width * units - 1, 1), BAR, "wait")
            said = f"waits {units:g}" if width * units > 55 else f"{units:g}"
            mark += word(round(x + width * units / 2, 1), y + BAR / 2, said, "small")
            film.draw(mark, number or None, number if leaves else None)
            return


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


def _move(one: Schedule, two: Schedule) -> str:
    """The first place at which two schedules differ."""
    for rank, rows in enumerate(zip(one.actions, two.actions, strict=True)):
        for old, new in zip(*rows, strict=True):
            if old != new:
                return f"rank {rank} does {new.kind}{new.microbatch} before {old.kind}{old.microbatch}"
    return "nothing moves"
