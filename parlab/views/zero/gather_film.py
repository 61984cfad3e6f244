"""The film of ZeRO-3's gathers: block k + 1 travels beside the work of block k, and the work waits, or does not."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby, pairwise
from typing import Any

from parlab.views.engine import theme
from parlab.views.engine.lanes import timelines_of
from parlab.views.engine.player import Film, box, outline, word
from parlab.views.zero.model_state import COLORS
from parlab.views.zero.zero_film import ZeroStep, step_of
from parlab.world import Run, Timeline

MOST_RUNS = 2
ENDS = (96, 600)  # of the lanes
TOP, ROW, MESSAGE, WORK, BAR = 28, 112, 26, 66, 24  # the first run, a run's height; in it the tops of two lanes, a bar
NARROW = 13  # a bar below this has no room for a block's name
LOOKS = {
    "gather": COLORS["weights"],
    "reduction": COLORS["gradients"],
    "work": theme.KINDS["compute"].color,
}
PHASES = ("first gather", "forward", "the turn", "backward", "the end")


def gathers(source: Any) -> bool:
    """Whether this is {name: run}, and each run is a step of ZeRO-3 that has a film."""
    if not isinstance(source, Mapping) or not source:
        return False
    shown = [run.timeline if isinstance(run, Run) else run for run in source.values()]
    return all(isinstance(one, Timeline) and step_of(one) is not None for one in shown)


def gather_film(runs: Mapping[str, Run | Timeline]) -> Film:
    """The film of one or two steps of ZeRO-3 on one clock: the messages of all ranks above the work of rank 0.

    A line leads from the end of a block's gather to its work. It is upright if the work has waited for it. Waiting is
    dotted, and told in all at the end of each part of the longest step. A block whose messages are too short for its
    name stands in the legend.

    Args:
        runs: {name: run}, each as `step_of` needs it.

    Raises:
        ValueError: more than two runs, or clocks of several units.
    """
    shown = timelines_of(runs, MOST_RUNS, one_clock=True)
    steps = {name: found for name, one in shown.items() if (found := step_of(one)) is not None}
    waits = {name: _waits(step) for name, step in steps.items()}
    longest = max(shown, key=lambda name: shown[name].makespan)
    says = shown[longest].format
    shares = {name: f"{_within(waits[name], 0, one.makespan) / one.makespan:.0%}" for name, one in shown.items()}
    headline = f"Waiting, of a step of ZeRO-3: {'; '.join(f'{name} {share}' for name, share in shares.items())}"
    phases = _phases(steps[longest], shown[longest].makespan)
    film = Film(headline, sorted(phases), TOP + ROW * len(shown), moving=14.0, says=says, ends=ENDS)
    left = 96.0
    for name, color in LOOKS.items():
        film.draw(box(left, 4, 16, 16, color) + word(left + 22, 12, name, "small left"))
        left += 40 + 8 * len(name)
    film.draw(outline(left, 4, 16, 16, "wait") + word(left + 22, 12, "waits", "small left"))
    if thin := [name for block, name in enumerate(steps[longest].blocks) if _thin(film, steps[longest], block)]:
        film.draw(box(left + 84, 4, 1, 16, LOOKS["gather"]) + word(left + 92, 12, ", ".join(thin), "small left"))
    marks = ""
    for number, name in enumerate(shown):
        top = TOP + ROW * number
        film.draw(word(ENDS[0], top + 12, name, "strong left"))
        share = f"waits {shares[name]} of its step"
        film.draw(word(ENDS[0] + 16 + 9 * len(name), top + 12, share, "left"), steps[name].reductions[-1].end)
        film.draw(
            word(46, top + MESSAGE + BAR / 2, "messages", "small") + word(46, top + WORK + BAR / 2, "work", "small")
        )
        marks += _lanes(film, steps[name], waits[name], top)
    film.bare(marks)
    film.ride(f'<path class="trail" d="M{ENDS[0]} {TOP}v{ROW * len(shown)}"/>')
    for start, end in pairwise(film.times):
        line = f"{longest}, {phases[start]}: waited {says(_within(waits[longest], 0, end))} so far"
        others = [f"{name}: {says(_within(waits[name], 0, end))}" for name in shown if name != longest]
        film.tell(start, "; ".join([line, *others]))
    return film


def _phases(step: ZeroStep, makespan: int) -> dict[int, str]:
    """The time at which each part of the step begins; those that take no time are left out. The end has no name."""
    forward, backward = (
        [use for use in step.uses if use.backward == way and use.end > use.start] for way in (False, True)
    )
    inner = backward[min(1, len(backward) - 1)]
    begins = [0, forward[0].start, forward[-1].end, inner.start, backward[-1].end]
    named = [*zip(begins, PHASES, strict=False), (makespan, "")]
    return {time: list(group)[-1][1] for time, group in groupby(named, key=lambda one: one[0])}


def _waits(step: ZeroStep) -> list[tuple[int, int]]:
    """From and to of the times in which rank 0 does not work, until the last reduction is over."""
    works = [(use.start, use.end) for use in step.uses if use.end > use.start]
    last = max(trip.end for trip in step.reductions)
    gaps = pairwise([(0, 0), *works, (last, last)])
    return [(before[1], after[0]) for before, after in gaps if after[0] > before[1]]


def _within(waits: list[tuple[int, int]], start: int, end: int) -> int:
    return sum(max(0, min(end, until) - max(start, since)) for since, until in waits)


def _lanes(film: Film, step: ZeroStep, waits: list[tuple[int, int]], top: float) -> str:
    """The two lanes of a run, and a line from each gather to the work that needs it."""
    marks = ""
    for trips, kind in ((step.gathers, "gather"), (step.reductions, "reduction")):
        for trip in trips:
            marks += _bar(film, step, trip.block, trip.start, trip.end, top + MESSAGE, kind)
    for use, trip in zip(step.uses, step.gathers, strict=True):
        if use.end > use.start:
            marks += _bar(film, step, use.block, use.start, use.end, top + WORK, "work")
            come = f"M{film.x(trip.end):g} {top + MESSAGE + BAR:g}L{film.x(use.start):g} {top + WORK:g}"
            marks += f'<path class="trail" d="{come}"/>'
    for start, end in waits:
        x = film.x(start)
        marks += outline(x + 1, top + WORK + 1, max(1, film.x(end) - x - 2), BAR - 2, "wait")
    return marks


def _thin(film: Film, step: ZeroStep, block: int) -> bool:
    """Whether no gather of the block has room for its name."""
    wide = [film.x(trip.end) - film.x(trip.start) for trip in step.gathers if trip.block == block]
    return max(wide) < NARROW


def _bar(film: Film, step: ZeroStep, block: int, start: int, end: int, top: float, kind: str) -> str:
    x, name = film.x(start), step.blocks[block].removeprefix("layers.")
    wide = round(max(1.0, film.x(end) - x - 1), 1)
    return box(x, top, wide, BAR, LOOKS[kind], name if wide >= NARROW * max(1, len(name) / 1.6) else "", "small")
