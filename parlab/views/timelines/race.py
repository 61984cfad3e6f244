"""The film of several clocks of one program: they start together, and the hand of each stops when its run is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from parlab.views.drawing import theme
from parlab.views.drawing.film import Film, box, outline, word
from parlab.views.drawing.lanes import timelines_of
from parlab.views.timelines.film import program
from parlab.views.timelines.measured import from_first_computation
from parlab.views.timelines.timeline import kind_of
from parlab.world import Run, Timeline

MOST_CLOCKS, MOST_RANKS = 3, 4
ENDS = (78, 600)  # of the lanes
LANE, BAR, HEAD, LEGEND = 26, 20, 30, 24
LOOKS = 8  # stops, at least: the film's clock also stands at the end of each run


def clocks(source: Any) -> bool:
    """Whether this is {name: run}, and each run computes something."""
    if not isinstance(source, Mapping) or not source:
        return False
    shown = [run.timeline if isinstance(run, Run) else run for run in source.values()]
    return all(isinstance(one, Timeline) and one.computes for one in shown)


def clock_race_film(runs: Mapping[str, Run | Timeline]) -> Film:
    """The film of up to three runs one below the other, on one clock, each from its first computation on.

    Args:
        runs: {name: run}, each of at most 4 ranks; `run.wallclock` is the one of a watch.

    Raises:
        ValueError: too many runs or ranks, or clocks of several units.
    """
    shown = {name: from_first_computation(one) for name, one in timelines_of(runs, MOST_CLOCKS, one_clock=True).items()}
    if max(one.size for one in shown.values()) > MOST_RANKS:
        raise ValueError(f"source: a race has lanes for {MOST_RANKS} ranks of each run")
    says = next(iter(shown.values())).format
    last = max(one.makespan for one in shown.values())
    times = sorted({last * look // LOOKS for look in range(LOOKS)} | {one.makespan for one in shown.values()})
    height = LEGEND + sum(HEAD + LANE * one.size for one in shown.values())
    headline = "; ".join(f"{name} {says(one.makespan)}" for name, one in shown.items())
    film = Film(headline, times, height, resting=0.3, says=says, ends=ENDS)
    film.draw(_legend(shown.values()))
    marks, top = "", LEGEND
    for name, one in shown.items():
        film.draw(word(ENDS[0], top + 14, name, "strong left"))
        film.draw(word(ENDS[1] - 60, top + 14, f"done: {says(one.makespan)}", "small"), one.makespan)
        for rank in range(one.size):
            y = top + HEAD + LANE * (rank + 0.5)
            film.draw(word(36, y, f"rank {rank}", "small") + box(66, y - BAR / 2, 5, BAR, theme.rank_color(rank)))
            marks += program(film, one, rank, y, BAR)
        top += HEAD + LANE * one.size
    film.bare(marks)
    film.ride(f'<path class="trail" d="M{ENDS[0]} {LEGEND + HEAD}v{height - LEGEND - HEAD}"/>')
    for start, _ in pairwise(times):
        film.tell(start, "; ".join(f"{name}: {_ended(one, start)}" for name, one in shown.items()))
    return film


def _legend(shown: Iterable[Timeline]) -> str:
    """The colour of each kind of work, and the dashes of a wait."""
    kinds = {kind_of(span.name) for one in shown for span in one.computes}
    marks, x = "", ENDS[0]
    for kind in [kind for kind in theme.KINDS if kind in kinds]:
        name = theme.KINDS[kind].name
        marks += box(x, 3, 14, 14, theme.KINDS[kind].color) + word(x + 20, 10, name, "small left")
        x += 36 + 8 * len(name)
    return marks + outline(x, 3, 14, 14, "wait") + word(x + 20, 10, "waits", "small left")


def _ended(shown: Timeline, time: int) -> str:
    ended = sum(span.end <= time for span in shown.computes)
    return "done" if ended == len(shown.computes) else f"{ended} of {len(shown.computes)} actions done"
