"""The film of a pipeline schedule: microbatches travel between ranks, and fill and free their memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from parlab.arguments import flag, text, whole
from parlab.pipeline import Action, Costs, Schedule, ScheduleTimeline
from parlab.views.engine.player import LETTERS, WIDTH, Film, box, outline, thinned, word
from parlab.views.pipeline.panels import WHOLE, Bar, bars_of_all, chunks_of, color_of, legend_entries
from parlab.views.pipeline.schedule import simulated, summary
from parlab.views.world.timeline import ACTION

MOST_STOPS = 34
ENDS = (70, 470)  # of the lanes; a message has room at the right of the end
SLOTS = (500, 632)  # the memory of a rank, a slot for each chunk that it keeps
LANE, BAR = 40, 26
CHIP = 20  # a message


def schedule_film(
    source: Schedule | ScheduleTimeline,
    costs: Costs | None = None,
    *,
    phases: bool = False,
    stops: int | Mapping[Any, str] = MOST_STOPS,
    unit: str = "",
) -> Film:
    """The film of a pipeline schedule.

    Below the hand of the clock microbatches travel between lanes. At the right each rank fills a slot with each
    microbatch whose activations it keeps: in the colour of F until the backward for the input, then in that of I until
    W, paler for a later chunk of the rank. A slot that was once needed keeps its outline. Where a backward ends and a
    forward takes its slot at once, an arrow shows which slot that is.

    Args:
        source: a schedule, or what `simulate` returned.
        costs: of a schedule; None: F, I and W take 1 each, transfers nothing.
        phases: stop only where rank 0 goes from one phase to the next: it fills its memory, waits for the first
            gradient, does forwards and backwards in turn, and empties its memory. Where backwards are cut in two: where
            the last rank, whose W's wait most, goes to its first forward, its first W, and from its last I on.
        stops: without phases, the most stops: of more, those that are nearest to the next share its stop. Or the stops
            themselves: {time: a line about what begins there}, the first at 0, in ascending order.
        unit: of the costs, such as "ms", if they have one.

    Raises:
        ValueError: a schedule that cannot run, costs for one that is simulated already, phases of one in which rank 0
            has no forward or no backward, fewer than 2 stops, or stops that do not ascend from 0 to before the end.
    """
    shown = simulated("source", source, costs)
    flag("phases", phases)
    text("unit", unit)
    most = MOST_STOPS
    if isinstance(stops, Mapping):
        told = dict(stops)
        if [0, *sorted({*told} - {0})] != [*told] or max(told, default=0) >= shown.makespan:
            raise ValueError(f"stops={stops!r:.60}: must ascend from 0, and end before {shown.makespan:g}")
    else:
        most = whole("stops", stops, 2)
        told = _phases(shown) if phases else {}
    times = [*told, shown.makespan] if told else thinned(_events(shown), most)
    legend, top = _legend(shown)
    height = top + LANE * shown.size
    resting = 1.5 if told else 0.35
    headline = summary(shown).replace(" units,", f" {unit},") if unit else summary(shown)

    def says(time: float) -> str:
        return f"{time:g} {unit}".rstrip()

    film = Film(headline, times, height, moving=12, resting=resting, says=says, ends=ENDS)
    middles = [top + LANE * (rank + 0.5) for rank in range(shown.size)]
    film.draw(legend + word(sum(SLOTS) / 2, top - 12, "keeps", "strong"))
    film.draw("".join(word(34, y, f"rank {rank}") for rank, y in enumerate(middles)))
    paler = chunks_of(shown.schedule)
    film.reveal("".join(_bar(film, bar, paler, middles) for bar in bars_of_all(shown)))
    film.ride(f'<path class="trail" d="M{ENDS[0]} {top}v{height - top}"/>')
    before = _kept(film, shown, middles, _events(shown) if told else times, told=bool(told))
    for t in shown.transfers:
        action = ACTION.fullmatch(t.label)
        assert action is not None, "a simulated message is labelled by the action that sends it"
        x, y = film.x(t.start) + 3, middles[t.src] - CHIP / 2
        mark = box(x, y, CHIP, CHIP, color_of(action[1]), action[2], "small")
        film.move(mark, t.start, t.end, (film.x(t.end) - film.x(t.start), middles[t.dst] - middles[t.src]))
    for start, end in pairwise(times):
        film.tell(start, told[start] if told else _line(shown, start, end, before))
    return film


def _phases(shown: ScheduleTimeline) -> dict[Any, str]:
    """When each phase begins, and a line about it; phases that take no time are left out. Of rank 0, or, where
    backwards are cut in two, of the last rank, whose W's wait most.
    """
    last = [bar for bar in bars_of_all(shown) if bar.rank == shown.size - 1]
    if {"F", "I", "W"} <= {bar.action.kind for bar in last}:
        own, told = last, _phases_of_w
    else:
        own, told = [bar for bar in bars_of_all(shown) if bar.rank == 0], _phases_of_rank_0
        if len({bar.action.kind == "F" for bar in own}) < 2:
            raise ValueError("phases=True: rank 0 has no forward, or no backward")
    found = [*told(shown, own), (shown.makespan, "")]
    return {time: line for (time, line), (later, _) in pairwise(found) if time < later}


def _phases_of_rank_0(shown: ScheduleTimeline, own: list[Bar]) -> list[tuple[Any, str]]:
    """Of full backwards: those of rank 0. Where all ranks do all forwards first, there is no turn of both."""
    forwards = [bar for bar in own if bar.action.kind == "F"]
    first = next(bar for bar in own if bar.action.kind != "F")
    warm_up = [bar for bar in forwards if bar.start < first.start]
    fills = f"rank 0 does {len(warm_up)} forwards, and keeps as many activations"
    if len(warm_up) == 1:
        fills = "rank 0 does 1 forward, and keeps its activations"
    if all(_all_forwards_first(shown, rank) for rank in range(shown.size)):
        last = max(step.end for step in shown.steps(shown.size - 1) if step.actions[0].kind == "F")
        return [
            (0, fills),
            (warm_up[-1].end, "rank 0 waits while others do their forwards; nothing is freed"),
            (last, f"rank {shown.size - 1} has done all forwards: a first gradient comes up"),
            (first.start, "backwards only: each frees a place, and no forward takes it"),
        ]
    return [
        (0, fills),
        (warm_up[-1].end, "rank 0 waits until the first gradient has come up, and its backward has freed a place"),
        (first.end, "in turn: each forward goes into the place that a backward has just freed (the arrow)"),
        (max(first.end, forwards[-1].end), "no forward is left for rank 0: backwards empty the places"),
    ]


def _all_forwards_first(shown: ScheduleTimeline, rank: int) -> bool:
    kinds = [action.kind for step in shown.steps(rank) for action in step.actions]
    return "F" not in kinds[kinds.count("F") :]


def _phases_of_w(shown: ScheduleTimeline, own: list[Bar]) -> list[tuple[Any, str]]:
    """Of backwards cut in two: those of the last rank, by where its W's stand."""
    name = f"rank {shown.size - 1}"
    first, last = (next(bar for bar in order if bar.action.kind == "I") for order in (own, own[::-1]))
    w = next(bar for bar in own if bar.action.kind == "W")
    turn = min(w.start, last.end)
    return [
        (0, f"{name} waits for its first forward"),
        (own[0].start, f"{name} does no W yet: each I goes up at once, and its W waits"),
        (turn, f"a W of {name} for each new forward: it frees the place"),
        (max(turn, last.end), f"no I is left on {name}: its W's come where it would only wait"),
    ]


def _events(shown: ScheduleTimeline) -> list[Any]:
    """The times at which an action starts or ends."""
    return sorted({0, shown.makespan, *(time for bar in bars_of_all(shown) for time in (bar.start, bar.end))})


def _legend(shown: ScheduleTimeline) -> tuple[str, int]:
    """The colour of each kind of action, and the place from which the lanes have room below it."""
    marks, x, y = "", 10, 10
    for color, name, _ in legend_entries([shown.schedule]):
        width = 32 + 8 * len(name)
        if x + width > WIDTH:
            x, y = 10, y + 22
        marks += box(x, y - 7, 14, 14, color) + word(x + 20, y, name, "small left")
        x += width
    return marks, y + 36


def _bar(film: Film, bar: Bar, paler: dict[tuple[int, int], float], middles: list[float]) -> str:
    """An action; of a pair that overlaps, the forward is above."""
    x, width = film.x(bar.start), round(film.x(bar.end) - film.x(bar.start), 1)
    color = color_of(bar.action.kind, paler[bar.rank, bar.action.stage])
    text = str(bar.action.microbatch)
    low, high = (BAR * part / WHOLE[1] / 2 for part in bar.where)
    return box(x, middles[bar.rank] + low, width, high - low, color, text if width > 8 * len(text) else "", "small")


def _kept(
    film: Film, shown: ScheduleTimeline, middles: list[float], until: list[Any], *, told: bool
) -> dict[Action, int]:
    """The slots of each rank, from the F of a chunk to its B or W; for each F that starts when its slot was freed, the
    microbatch that was there before. An arrow stays to the next of the times `until`. A slot is filled when the clock
    goes on from the F's start: its input has come. It is free when the clock goes on from the end of the B or W. Where
    the stops are `told` it is free when the clock comes there, so that a stop shows the empty slot."""
    before: dict[Action, int] = {}
    paler = chunks_of(shown.schedule)
    width = round(min((SLOTS[1] - SLOTS[0]) / max(shown.peak_activations), 22), 1)
    for rank, y in enumerate(middles):
        slots: list[tuple[int, int] | None] = []  # the stage and the microbatch in each
        begun: dict[tuple[int, int], Any] = {}
        freed: dict[int, tuple[Any, int]] = {}  # when each slot was, and by which microbatch
        for step in shown.steps(rank):
            for action in sorted(step.actions, key=lambda action: action.kind != "F"):
                chunk = action.stage, action.microbatch
                if action.kind == "F":
                    if None not in slots:
                        x = SLOTS[0] + width * len(slots)
                        film.draw(outline(x, y - BAR / 2, width - 2, BAR, "wait"), step.start)
                        slots.append(None)
                    slot = slots.index(None)
                    slots[slot], begun[chunk] = chunk, step.start
                    time, microbatch = freed.get(slot, (None, 0))
                    if time == step.start:
                        before[action] = microbatch
                        arrow = _arrow(film.x(time), SLOTS[0] + width * (slot + 0.5) - 1, y)
                        film.draw(arrow, time, until[bisect_right(until, time)])
                    continue
                slot = slots.index(chunk)
                x = SLOTS[0] + width * slot
                text = str(action.microbatch) if width > 9 * len(str(action.microbatch)) else ""
                color = color_of("I" if action.kind == "W" else "F", paler[rank, action.stage])
                filled = box(x, y - BAR / 2, width - 2, BAR, color, text, "small")
                frees = told and action.kind != "I"
                film.draw(filled, begun[chunk], step.end, between=frees, after=not frees and action.kind != "W")
                begun[chunk] = step.end
                if action.kind != "I":
                    slots[slot], freed[slot] = None, (step.end, action.microbatch)
    return before


def _arrow(x: float, to: float, y: float) -> str:
    """From the hand of the clock, below the lane, up to the slot that was freed."""
    low, tip = y + BAR / 2 + 5, y + BAR / 2
    return f'<path class="trail" d="M{x:g} {low:g}H{to:g}V{tip:g}l-4 4m4 -4l4 4"/>'


def _line(shown: ScheduleTimeline, start: Any, end: Any, before: dict[Action, int]) -> str:
    """The actions that start from `start` on and before `end`, in whose place, and the chunks that are kept at last."""
    starting: dict[str, list[str]] = {}
    many_chunks = shown.schedule.num_stages > shown.size  # a microbatch passes a rank more than once
    for bar in bars_of_all(shown):
        if start <= bar.start < end:
            name = str(bar.action) if many_chunks else f"{bar.action.kind}{bar.action.microbatch}"
            place = f" in the place of {before[bar.action]}" if bar.action in before else ""
            starting.setdefault(f"rank {bar.rank}", []).append(name + place)
    said = ", ".join(f"{rank} {' '.join(actions)}" for rank, actions in starting.items()) or "nothing"
    kept = [[0, *(chunks for time, chunks in shown.kept(rank) if time < end)][-1] for rank in range(shown.size)]
    told = f"{said} start{'s' * (len(starting) < 2)}; kept {', '.join(map(str, kept))}"
    return told if len(told) < LETTERS - 20 else f"kept {', '.join(map(str, kept))}"
