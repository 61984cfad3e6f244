"""The film of a step of ZeRO-3, ranks × blocks: blocks are gathered, used and dropped, gradients reduced."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import NamedTuple

from parlab.views.engine import theme
from parlab.views.engine.player import Film, box, chip, outline, word
from parlab.views.zero.model_state import COLORS
from parlab.world import Timeline

MOST_RANKS, MOST_BLOCKS = 4, 6
LEFT, RIGHT = 70, 630  # of the blocks
TOP, ROW, HIGH = 44, 74, 22  # of the first rank; between two ranks; of a block's weights, and of its gradients
FORWARD, BACKWARD = "forward ", "backward "
GRADIENT = COLORS["gradients"]
UPDATE = "the optimizer updates, on each rank, its own shards; no new weights travel"


class Use(NamedTuple):
    """A rank computes with a block, from `start` to `end`."""

    block: int
    backward: bool
    start: int
    end: int


class Trip(NamedTuple):
    """A collective of all ranks for a block: its first message leaves at `start`, its last arrives at `end`."""

    block: int
    start: int
    end: int


class ZeroStep(NamedTuple):
    """A step: the names of the blocks, their uses, the gathers before these, and the reductions of gradients."""

    blocks: list[str]
    uses: list[Use]
    gathers: list[Trip]
    reductions: list[Trip]


def step_of(shown: Timeline) -> ZeroStep | None:
    """The step of ZeRO-3 that was run on 2 to 4 ranks, or None: it gathers each block twice and reduces it once."""
    spans = [span for span in shown.computes if span.rank == 0]
    blocks = [span.name.removeprefix(FORWARD) for span in spans if span.name.startswith(FORWARD)]
    there = [f"{FORWARD}{name}" for name in blocks] + [f"{BACKWARD}{name}" for name in reversed(blocks)]
    if not 2 <= shown.size <= MOST_RANKS or not 1 <= len(blocks) <= MOST_BLOCKS:
        return None
    uses = [span for span in spans if span.name.startswith((FORWARD, BACKWARD))]
    order = [*range(len(blocks)), *reversed(range(len(blocks)))]
    gathers, reductions = _trips(shown, "all_gather", len(order)), _trips(shown, "reduce_scatter", len(blocks))
    if [span.name for span in uses] != there or not gathers or not reductions:
        return None
    return ZeroStep(
        blocks,
        [
            Use(block, span.name.startswith(BACKWARD), span.start, span.end)
            for block, span in zip(order, uses, strict=True)
        ],
        [Trip(block, *times) for block, times in zip(order, gathers, strict=True)],
        [Trip(block, *times) for block, times in zip(reversed(range(len(blocks))), reductions, strict=True)],
    )


def _trips(shown: Timeline, name: str, count: int) -> list[tuple[int, int]]:
    """Start and end of each of `count` collectives of all ranks with this name. Empty where there are not so many.

    A rank sends P − 1 messages in each, or, in two levels on k nodes of g ranks, k + g − 2.
    """
    of_rank = [[t for t in shown.transfers if t.name == name and t.src == rank] for rank in range(shown.size)]
    hops = len(of_rank[0]) // count
    possible = {per_node + shown.size // per_node - 2 for per_node in (1, 2) if shown.size % per_node == 0}
    if {len(sent) for sent in of_rank} != {hops * count} or hops not in possible:
        return []
    rings = range(0, len(of_rank[0]), hops)
    return [
        (min(sent[first].start for sent in of_rank), max(sent[first + hops - 1].end for sent in of_rank))
        for first in rings
    ]


def zero_film(shown: Timeline) -> Film:
    """The film of one step of stage 3 (see `step_of`), each block gathered before its forward and its backward."""
    step = step_of(shown)
    assert step is not None  # `views.film` has asked
    size, last = shown.size, max(trip.end for trip in step.reductions)
    long = [use for use in step.uses if use.end > use.start]
    times = [0, *(use.start for use in long), max(use.end for use in step.uses), last, shown.makespan]
    times = [time for time, _ in groupby(sorted(times))]
    film = Film(
        f"A step of ZeRO-3, {size} ranks, weights above gradients: {shown.format(shown.makespan)}",
        times,
        TOP + ROW * size + 4,
        moving=12.0,
    )
    for block, name in enumerate(_names(step)):
        film.draw(word(_middle(step, block), 16, name, "strong"))
    for rank in range(size):
        film.draw(word(34, _y(rank) + HIGH, f"rank {rank}", "strong"))
        for block in range(len(step.blocks)):
            _draw_places(film, step, rank, block, size)
    for use, trip in zip(step.uses, step.gathers, strict=True):
        _draw_gather(film, step, trip, use.end, size)
        _draw_use(film, step, use, size)
    for trip in step.reductions:
        (made,) = [use.end for use in step.uses if use.backward and use.block == trip.block]
        _draw_reduction(film, step, trip, made, size)
    own = [_shard(step, rank, block, rank, size) for rank in range(size) for block in range(len(step.blocks))]
    film.draw("".join(outline(x - 2, y - 2, wide + 4, 2 * high + 8, "frame") for x, y, wide, high in own), last)
    for time, until in pairwise(times):
        film.tell(time, UPDATE if time >= last else _told(step, time, until))
    return film


def _names(step: ZeroStep) -> list[str]:
    return [name.replace("layers.", "layer ") for name in step.blocks]


def _told(step: ZeroStep, time: int, until: int) -> str:
    """One line for the time between two stops."""
    now = [use for use in step.uses if use.start <= time < use.end]
    passing = [trip.start < until and trip.end > time for trip in step.gathers]
    coming = [use for use, passes in zip(step.uses, passing, strict=True) if passes]
    names = _names(step)
    gathered = [names[use.block] for use in coming]
    reduced = [names[trip.block] for trip in step.reductions if trip.start < until and trip.end > time]
    parts = [f"{'backward' if use.backward else 'forward'} of {names[use.block]}" for use in now]
    second = "second " * any(use.backward for use in coming)
    parts += [f"{second}gather of {' and '.join(gathered)}"] * bool(gathered)
    parts += [f"reduction of {' and '.join(reduced)}"] * bool(reduced)
    return "; ".join(parts)


def _wide(step: ZeroStep) -> float:
    return (RIGHT - LEFT) / len(step.blocks)


def _x(step: ZeroStep, block: int) -> float:
    return LEFT + _wide(step) * block + 4


def _middle(step: ZeroStep, block: int) -> float:
    return _x(step, block) + (_wide(step) - 8) / 2


def _y(rank: int) -> float:
    return TOP + ROW * rank


def _shard(step: ZeroStep, rank: int, block: int, owner: int, size: int) -> tuple[float, float, float, float]:
    """The place, in `rank`'s row, of the weights of `block` that `owner` owns."""
    wide = (_wide(step) - 8) / size
    return round(_x(step, block) + wide * owner, 1), _y(rank), round(wide - 1, 1), HIGH


def _draw_places(film: Film, step: ZeroStep, rank: int, block: int, size: int) -> None:
    x, y, wide = _x(step, block), _y(rank), _wide(step) - 8
    film.draw(outline(x, y, wide - 1, HIGH, "empty") + outline(x, y + HIGH + 4, wide - 1, HIGH, "empty"))
    film.draw(chip(*_shard(step, rank, block, rank, size), rank))


def _draw_gather(film: Film, step: ZeroStep, trip: Trip, dropped: int, size: int) -> None:
    """Each rank's shard flies to all others, and stays there until the block has been used."""
    for rank in range(size):
        there = ""
        for owner in range(size):
            if owner != rank:
                color = theme.rank_color(owner)
                there += box(*_shard(step, rank, trip.block, owner, size), color)
                flying = box(*_shard(step, owner, trip.block, owner, size), color)
                film.move(flying, trip.start, trip.end, (0, _y(rank) - _y(owner)))
        film.draw(there, trip.end, dropped)


def _draw_use(film: Film, step: ZeroStep, use: Use, size: int) -> None:
    x, wide = _x(step, use.block), _wide(step) - 8
    if use.end > use.start:
        frames = "".join(outline(x - 2, _y(rank) - 2, wide + 3, HIGH + 4, "frame") for rank in range(size))
        film.draw(frames, use.start + 1, use.end)  # from when the clock goes on, as the caption


def _draw_reduction(film: Film, step: ZeroStep, trip: Trip, made: int, size: int) -> None:
    """Each rank's gradient of a whole block goes, piece by piece, to the owners; a rank keeps the sum of its own."""
    wide = _wide(step) - 8
    for rank in range(size):
        x, y = _x(step, trip.block), _y(rank) + HIGH + 4
        film.draw(box(x, y, wide - 1, HIGH, GRADIENT), made, trip.end)
        own = _shard(step, rank, trip.block, rank, size)
        film.draw(box(own[0], y, own[2], HIGH, GRADIENT, "Σ"), trip.end)
        for owner in range(size):
            if owner != rank:
                place = _shard(step, rank, trip.block, owner, size)
                piece = box(place[0], y, place[2], HIGH, theme.paler(GRADIENT, 0.4))
                film.move(piece, trip.start, trip.end, (0, _y(owner) - _y(rank)))
