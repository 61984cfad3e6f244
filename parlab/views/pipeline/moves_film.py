"""The film of a schedule that is improved move by move, or by more memory: its actions glide to their new times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

from parlab.arguments import checked_rank
from parlab.pipeline import Action, Costs, KeptBytes, Schedule, ScheduleTimeline, simulate
from parlab.views.engine.picture import short_bytes
from parlab.views.engine.player import Film, box, outline, word
from parlab.views.pipeline.board import PAGE
from parlab.views.pipeline.panels import chunks_of, color_of, legend_entries, peaks
from parlab.views.pipeline.schedule import check_kept

LEFT, RIGHT, TOP, LANE, BAR = 70, 600, 76, 40, 28
STRIP, GAP = 50, 10  # the highest level of a rank's bytes, and the room around a strip
KEPT = (("F", "A: kept from F to I"), ("I", "A′: kept from I to W"))
MOST = 12
STAYS = 0.95  # of the way to the next stop: so long the bytes of a stop are seen
EDGE = 0.4  # by which a whole B is larger than its halves, so that none shines through at its border


def schedules(source: Any) -> bool:
    """Whether it is a list of schedules."""
    return isinstance(source, list | tuple) and bool(source) and all(isinstance(one, Schedule) for one in source)


def moves_film(
    source: Sequence[Schedule],
    costs: Costs | None = None,
    bound: float | None = None,
    waiting: int | None = None,
    kept: KeptBytes | None = None,
    names: Sequence[str] = (),
) -> Film:
    """The film of schedules of the same actions, each a few moves from the one before.

    Where they keep different numbers of activations, each stop says how many places its fullest rank needs. With
    `kept`, the bytes that each rank keeps stand below its actions, on the same clock, a box for each microbatch: in the
    colour of F until its backward for the input, then in that of I until its W. A W that is put off then travels above
    the others.

    With `names`, each stop has its name, and below the ranks stands how many microbatches the fullest one keeps.

    In the first schedule backwards may be whole, where the others have each of them cut in two: a B then lies over its
    halves until the film leaves that schedule.

    Args:
        source: the schedules, 2 to 12.
        costs: of all; None: F, I and W take 1 each, transfers nothing.
        bound: a makespan that none is below; None: no line is drawn.
        waiting: a rank whose first wait after its first action has a frame with the time that it lasts; None: no frame.
        kept: what a microbatch keeps on each stage; None: no bytes are drawn.
        names: of the schedules; empty: they are numbered.

    Raises:
        ValueError: fewer or more schedules, other actions on a rank, a schedule that cannot run, no such rank,
            `kept` of another number of stages, or of schedules with several stages a rank, or names with `kept` or
            for another number of schedules.
    """
    if not 2 <= len(source) <= MOST:
        raise ValueError(f"source: {len(source)} schedules; 2 to {MOST} can be filmed")
    costs = costs or Costs()
    cut = _has_whole(source[0]) and not _has_whole(source[1])
    own = [sorted(_halved(row) if cut else row) for row in source[0].actions]
    if any([sorted(row) for row in one.actions] != own for one in source[1:]):
        raise ValueError("source: each rank must have the same actions in all schedules")
    shown = [simulate(one, costs) for one in source]
    spans, rooms = [one.makespan for one in shown], [_places(one) for one in shown]
    last, ranks = len(shown) - 1, source[0].num_ranks
    if waiting is not None:
        checked_rank(waiting, "waiting", ranks)
    check_kept(kept, shown)
    if kept and source[0].num_stages != ranks:
        raise ValueError(
            f"kept={kept!r:.60}: bytes are drawn where each rank has one stage; here {ranks} ranks have "
            f"{source[0].num_stages} stages"
        )
    if names and (kept or len(names) != len(shown)):
        raise ValueError(f"names={names!r:.60}: one for each of {len(shown)} schedules is needed, and no `kept`")
    more = kept is None and len(set(rooms)) > 1  # or less
    width = (RIGHT - LEFT) / max(spans)
    what = f"room for {', '.join(f'{room:g}' for room in rooms)}" if more else f"{last} move{'s' * (last > 1)}"
    if kept:
        what = "bytes below actions"
    says = (lambda number: f"room for {rooms[number]:g}") if more else _stop
    if names:
        says = names.__getitem__
    headline = f"{what}: from {spans[0]:g} to {spans[-1]:g} units"
    top, lane = (TOP + 22, LANE + STRIP + GAP) if kept else (TOP, LANE)
    height = top + lane * ranks + (LANE if names else 0)
    film = Film(headline, list(range(last + 1)), height, moving=1.6 * last, resting=2.2, says=says)
    _legend(film, [(color, name) for color, name, _ in legend_entries(list(source))], 10)
    if kept:
        _legend(film, [(color_of(kind), name) for kind, name in KEPT], 32)
    film.draw("".join(word(34, top + lane * rank + LANE / 2, f"rank {rank}") for rank in range(ranks)))
    if bound is not None:
        film.draw(_line(LEFT + width * bound, top, top + lane * ranks, "none is below", f"{bound:g}", dashed=True))
    for end, stops in groupby(range(last + 1), key=spans.__getitem__):
        held = list(stops)
        first, until = held[0], held[-1]
        line = _line(LEFT + width * end, top, top + lane * ranks, "", f"{end:g}")
        film.draw(line, first or None, None if until == last else until)
    if waiting is not None:
        for number, timed in enumerate(shown):
            _frame(film, timed, waiting, width, number, number < last, (top, lane))
    most = [max(peaks(timed, kept)) for timed in shown]
    if kept:
        for number, timed in enumerate(shown):
            for rank in range(ranks):
                strip = _strip(timed, rank, kept, width, max(most), top + lane * rank + LANE + STRIP)
                film.draw(strip, number or None, number + STAYS if number < last else None)
    if names:
        film.draw(word(34, height - LANE / 2, "kept"))
        for number, most_kept in enumerate(rooms):
            row = _room(most_kept, max(rooms), height - LANE / 2)
            film.draw(row, number or None, number + STAYS if number < last else None)
    starts = [_starts(one) for one in shown]
    uncut = [(action, at) for action, at in starts[0].items() if cut and action.kind == "B"]
    if cut:
        starts[0] = _of_halves(starts[0], costs.per_stage("backward_weight", source[0].num_stages))
    paler = chunks_of(source[-1])
    together: dict[tuple[float, ...], str] = {}  # the actions that go the same way
    put_off = [_put_off(one, two) if kept else [] for one, two in pairwise(source)]
    hopping = sorted({action for moved in put_off for action in moved})
    for action, (rank, begin, takes) in starts[-1].items():
        if action in hopping:
            continue
        mark = _bar(action, begin, takes, width, top + lane * rank, white=paler[rank, action.stage])
        way = tuple(width * (of[action][1] - begin) for of in starts)
        together[way] = together.get(way, "") + mark
    for places, marks in together.items():
        film.slide(marks, places)
    for action in hopping:  # over the others, which stay on the lane
        aside = [-LANE / 2 if action in moved else 0 for moved in put_off]
        _hop(film, action, [of[action] for of in starts], aside, (width, top + lane * action.stage), cut)
    if cut:
        bars = (_bar(action, begin, takes, width, top + lane * rank, EDGE) for action, (rank, begin, takes) in uncut)
        film.draw("".join(bars), None, 0)
    for number, (one, two) in enumerate(pairwise(source)):
        room = f"with room for {rooms[number + 1]:g} " if more else ""
        said = f"{room}{_move(one, two)}" if kept is None else f"{_order(one, two)}"
        bytes_said = f"; at most {short_bytes(most[number + 1])} on a rank" if kept else ""
        film.tell(number, f"{said}: {spans[number]:g} → {spans[number + 1]:g} units{bytes_said}")
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


def _frame(
    film: Film,
    shown: ScheduleTimeline,
    rank: int,
    width: float,
    number: int,
    leaves: bool,
    lanes: tuple[float, float],
) -> None:
    """A rank's first wait after it has begun, with its length; `lanes`: the top, and the distance of two lanes."""
    for one, two in pairwise(shown.steps(rank)):
        if (units := two.start - one.end) > 0:
            x, y = LEFT + width * one.end, lanes[0] + lanes[1] * rank + (LANE - BAR) / 2
            mark = outline(round(x, 1), y, round(width * units - 1, 1), BAR, "wait")
            said = f"waits {units:g}" if width * units > 55 else f"{units:g}"
            mark += word(round(x + width * units / 2, 1), y + BAR / 2, said, "small")
            film.draw(mark, number or None, number if leaves else None)
            return


def _bar(
    action: Action, begin: float, takes: float, width: float, top: float, edge: float = 0, white: float = 0
) -> str:
    """An action on its rank's lane, larger by `edge` on each side, made paler."""
    x, y, length = LEFT + width * begin - edge, top + (LANE - BAR) / 2 - edge, width * takes - 1 + 2 * edge
    return box(
        round(x, 1), y, round(length, 1), BAR + 2 * edge, color_of(action.kind, white), action.microbatch, "small"
    )


def _hop(
    film: Film,
    action: Action,
    places: Sequence[tuple[int, float, float]],
    aside: Sequence[float],
    scale: tuple[float, float],
    covered: bool,
) -> None:
    """An action that stands at each stop in its place, and leaves its lane by `aside` half-way to the next.

    `scale`: the width of a unit, and the top of the lane. If it is `covered` at the first stop, it is not drawn there.
    """
    width, top = scale
    last, first = len(places) - 1, 0
    for number, (_, begin, takes) in enumerate(places):
        by = width * (places[number + 1][1] - begin) if number < last else 0
        if not by and number < last:
            continue  # it stands there until a later stop
        mark = _bar(action, begin, takes, width, top)
        if number or not covered:
            film.draw(mark, first or None, number if number < last else None)
        if by:
            film.move(mark, number, number + 1, (round(by, 1), 0), (0, aside[number]))
        first = number + 1


def _has_whole(schedule: Schedule) -> bool:
    """Whether it has a backward that is not cut."""
    return any(action.kind == "B" for row in schedule.actions for action in row)


def _halved(row: Sequence[Action]) -> list[Action]:
    """A row with each B as I and W."""
    return [one._replace(kind=kind) for one in row for kind in ("IW" if one.kind == "B" else one.kind)]


def _starts(shown: ScheduleTimeline) -> dict[Action, tuple[int, float, float]]:
    """The rank, the start and the time of each action."""
    return {
        action: (rank, step.start, step.end - step.start)
        for rank in range(shown.size)
        for step in shown.steps(rank)
        for action in step.actions
    }


def _of_halves(
    starts: dict[Action, tuple[int, float, float]], weight: Sequence[float]
) -> dict[Action, tuple[int, float, float]]:
    """The same, with each B as I and then W, which takes `weight` of its stage."""
    found = {}
    for action, (rank, begin, takes) in starts.items():
        late = weight[action.stage] if action.kind == "B" else 0
        kind = "I" if action.kind == "B" else action.kind
        found[action._replace(kind=kind)] = (rank, begin, takes - late)
        if action.kind == "B":
            found[action._replace(kind="W")] = (rank, begin + takes - late, late)
    return found


def _line(x: float, top: float, bottom: float, name: str, number: str, *, dashed: bool = False) -> str:
    """A time, as a line through all lanes."""
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    named = word(x - 20 - 4 * len(name), top - 40, name, "small") if name else ""
    line = f'<path d="M{x:g} {top - 12:g}V{bottom:g}" stroke="currentColor" stroke-width="2" fill="none"{dashes}/>'
    return line + named + word(x, top - (40 if name else 22), number, "strong")


def _strip(shown: ScheduleTimeline, rank: int, kept: KeptBytes, width: float, highest: float, floor: float) -> str:
    """A rank's bytes over time, a box for each microbatch: below those before their I, above those that wait for their
    W; at the left the most that it keeps.
    """
    each = [STRIP * of_stage[rank] / highest for of_stage in (kept.activation, kept.pending)]
    before = dict(shown.kept_bytes(rank, activation=1, pending=0))  # of several changes at a time, the last
    both = dict(shown.kept_bytes(rank, activation=1, pending=1))
    number, total, last = 0, 0, (0, 0)
    spans: dict[tuple[int, float], list[list[float]]] = {}  # which bytes and how high: the times from and until
    times = sorted({*before, *both, shown.makespan})
    for time, until in pairwise(times):
        number, total = before.get(time, number), both.get(time, total)
        counts, y = (number, total - number), floor
        for which, (count, changes) in enumerate(zip(counts, (before, both), strict=True)):
            another = time in changes and count == last[which]  # one goes and one comes
            for place in range(count):
                y -= each[which]
                here = spans.setdefault((which, round(y, 1)), [])
                if here and here[-1][1] == time and not (another and place == count - 1):
                    here[-1][1] = until
                else:
                    here.append([time, until])
        last = counts
    boxes = ["", ""]
    for (which, y), slots in spans.items():
        for time, until in slots:
            x = LEFT + width * time
            boxes[which] += f"M{x:.1f} {y:.1f}h{width * (until - time):.1f}v{each[which]:.1f}H{x:.1f}z"
    drawn = word(34, floor - STRIP / 2, short_bytes(peaks(shown, kept)[rank]), "small")
    for (kind, _), path in zip(KEPT, boxes, strict=True):
        drawn += f'<path d="{path}" fill="{color_of(kind)}" style="stroke:{PAGE}"/>' if path else ""
    return drawn + f'<path d="M{LEFT} {floor:g}H{RIGHT}" class="trail"/>'


def _order(one: Schedule, two: Schedule) -> str:
    """The W's that stand later than before, of each rank; where backwards are cut, that they are."""
    if _has_whole(one) and not _has_whole(two):
        return "each B is cut in two"
    said = []
    for rank in range(one.num_ranks):
        if later := [f"W{action.microbatch}" for action in _put_off(one, two) if action.stage == rank]:
            said.append(f"rank {rank} puts off {' '.join(later)}")
    return ", ".join(said) or _move(one, two)


def _put_off(one: Schedule, two: Schedule) -> list[Action]:
    """The W's that stand later than before, where no backward is cut."""
    if _has_whole(one) and not _has_whole(two):
        return []
    return [
        action
        for old, new in zip(one.actions, two.actions, strict=True)
        for action in old
        if action.kind == "W" and _before(action, new) > _before(action, old)
    ]


def _move(one: Schedule, two: Schedule) -> str:
    """The first place at which two schedules differ."""
    for rank, rows in enumerate(zip(one.actions, two.actions, strict=True)):
        for old, new in zip(*rows, strict=True):
            if old != new:
                return f"rank {rank} does {new.kind}{new.microbatch} before {old.kind}{old.microbatch}"
    return "nothing moves"


def _before(action: Action, row: Sequence[Action]) -> int:
    """How many actions other than W's stand before it in a row."""
    return sum(one.kind != "W" for one in row[: row.index(action)])
