"""The film of a schedule that is improved move by move, or by more memory: its actions glide to their new times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise

from parlab.pipeline import Action, Costs, Schedule, ScheduleTimeline, simulate
from parlab.views.engine.player import Film, box, word
from parlab.views.pipeline.panels import chunks_of, color_of, legend_entries

LEFT, RIGHT, TOP, LANE, BAR = 70, 600, 76, 40, 28
MOST = 12
STAYS = 0.95  # of the way to the next stop: so long its number of microbatches is seen


def moves_film(
    source: Sequence[Schedule],
    costs: Costs | None = None,
    bound: float | None = None,
    names: Sequence[str] = (),
) -> Film:
    """The film of schedules of the same actions, each a few moves from the one before.

    Where they keep different numbers of activations, each stop says how many places its fullest rank needs. With
    `names`, each stop has its name, and below the ranks stands how many microbatches the fullest one keeps.

    Args:
        source: the schedules, 2 to 12.
        costs: of all; None: F, I and W take 1 each, transfers nothing.
        bound: a makespan that none is below; None: no line is drawn.
        names: of the schedules; empty: they are numbered.

    Raises:
        ValueError: fewer or more schedules, other actions on a rank, a schedule that cannot run, or names for another
            number of schedules.
    """
    if not 2 <= len(source) <= MOST:
        raise ValueError(f"source: {len(source)} schedules; 2 to {MOST} can be filmed")
    costs = costs or Costs()
    own = [sorted(row) for row in source[0].actions]
    if any([sorted(row) for row in one.actions] != own for one in source[1:]):
        raise ValueError("source: each rank must have the same actions in all schedules")
    shown = [simulate(one, costs) for one in source]
    spans, rooms = [one.makespan for one in shown], [_places(one) for one in shown]
    last, ranks = len(shown) - 1, source[0].num_ranks
    if names and len(names) != len(shown):
        raise ValueError(f"names={names!r:.60}: one for each of {len(shown)} schedules is needed")
    more = len(set(rooms)) > 1  # or less
    width = (RIGHT - LEFT) / max(spans)
    what = f"room for {', '.join(f'{room:g}' for room in rooms)}" if more else f"{last} move{'s' * (last > 1)}"
    says = (lambda number: f"room for {rooms[number]:g}") if more else _stop
    if names:
        says = names.__getitem__
    headline = f"{what}: from {spans[0]:g} to {spans[-1]:g} units"
    if names:
        headline = ", ".join(f"{name}: {span:g} units" for name, span in zip(names, spans, strict=True))
    bottom = TOP + LANE * ranks
    height = bottom + (LANE if names else 0)
    film = Film(headline, list(range(last + 1)), height, moving=1.6 * last, resting=2.2, says=says)
    _legend(film, [(color, name) for color, name, _ in legend_entries(list(source))], 10)
    film.draw("".join(word(34, TOP + LANE * (rank + 0.5), f"rank {rank}") for rank in range(ranks)))
    if bound is not None:
        film.draw(_line(LEFT + width * bound, TOP, bottom, "none is below", f"{bound:g}", dashed=True))
    for end, stops in groupby(range(last + 1), key=spans.__getitem__):
        held = list(stops)
        first, until = held[0], held[-1]
        line = _line(LEFT + width * end, TOP, bottom, "", f"{end:g}")
        film.draw(line, first or None, None if until == last else until)
    if names:
        film.draw(word(34, height - LANE / 2, "kept"))
        for number, most_kept in enumerate(rooms):
            row = _room(most_kept, max(rooms), height - LANE / 2)
            film.draw(row, number or None, number + STAYS if number < last else None)
    starts = [_starts(one) for one in shown]
    paler = chunks_of(source[-1])
    together: dict[tuple[float, ...], str] = {}  # the actions that go the same way
    for action, (rank, begin, takes) in starts[-1].items():
        mark = _bar(action, begin, takes, width, TOP + LANE * rank, paler[rank, action.stage])
        way = tuple(width * (of[action][1] - begin) for of in starts)
        together[way] = together.get(way, "") + mark
    for places, marks in together.items():
        film.slide(marks, places)
    for number, (one, two) in enumerate(pairwise(source)):
        units = f"{spans[number]:g} → {spans[number + 1]:g} units"
        if names:
            kept = f"{rooms[number]:g} → {rooms[number + 1]:g} microbatches kept"
            film.tell(number, f"to {names[number + 1]}: {kept}, {units}")
        else:
            room = f"with room for {rooms[number + 1]:g} " if more else ""
            film.tell(number, f"{room}{_move(one, two)}: {units}")
    return film


def _legend(film: Film, entries: Sequence[tuple[str, str]], y: float) -> None:
    """A row of colours and their names."""
    x = 10
    for color, name in entries:
        film.draw(box(x, y - 7, 14, 14, color) + word(x + 20, y, name, "small left"))
        x += 32 + 8 * len(name)


def _stop(number: int) -> str:
    return str(number) if number else "start"


def _places(shown: ScheduleTimeline) -> float:
    """Activations of a whole rank's layers that the fullest rank keeps."""
    return max(shown.peak_activations) * shown.size / shown.schedule.num_stages


def _room(room: float, most: float, y: float) -> str:
    """The microbatches that the fullest rank keeps, of the `most` in the film, a box of its F's color for each."""
    wide, x = 30, LEFT
    places = [min(1.0, room - place) for place in range(math.ceil(room))]
    full = "".join(
        box(x + wide * place, y - 11, wide * part - 2, 22, color_of("F")) for place, part in enumerate(places)
    )
    said = f"{room:g} microbatches on the fullest rank"
    return full + word(x + wide * math.ceil(most) + 8, y, said, "small left")


def _bar(action: Action, begin: float, takes: float, width: float, top: float, white: float) -> str:
    """An action on its rank's lane, made paler by `white`."""
    x, y, length = LEFT + width * begin, top + (LANE - BAR) / 2, width * takes - 1
    return box(round(x, 1), y, round(length, 1), BAR, color_of(action.kind, white), action.microbatch, "small")


def _starts(shown: ScheduleTimeline) -> dict[Action, tuple[int, float, float]]:
    """The rank, the start and the time of each action."""
    return {
        action: (rank, step.start, step.end - step.start)
        for rank in range(shown.size)
        for step in shown.steps(rank)
        for action in step.actions
    }


def _line(x: float, top: float, bottom: float, name: str, number: str, *, dashed: bool = False) -> str:
    """A time, as a line through all lanes."""
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    named = word(x - 20 - 4 * len(name), top - 40, name, "small") if name else ""
    line = f'<path d="M{x:g} {top - 12:g}V{bottom:g}" stroke="currentColor" stroke-width="2" fill="none"{dashes}/>'
    return line + named + word(x, top - (40 if name else 22), number, "strong")


def _move(one: Schedule, two: Schedule) -> str:
    """The first place at which two schedules differ."""
    for rank, rows in enumerate(zip(one.actions, two.actions, strict=True)):
        for old, new in zip(*rows, strict=True):
            if old != new:
                return f"rank {rank} does {new.kind}{new.microbatch} before {old.kind}{old.microbatch}"
    return "nothing moves"
