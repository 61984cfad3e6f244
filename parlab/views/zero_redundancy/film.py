"""A film of a training step of ZeRO: the bytes that each rank holds, its work, and its messages."""

from __future__ import annotations

from parlab.views.drawing import marks
from parlab.views.drawing.lanes import lane_height, legend_of, name_lanes
from parlab.views.drawing.marks import Interval
from parlab.views.drawing.picture import Picture, plot, png, scale, short_bytes
from parlab.views.drawing.png_film import Film, moments_of, step_at
from parlab.views.zero_redundancy.step_memory import LAYERS, Stack, byte_ticks, entries_of, stack_of
from parlab.world import Timeline
from parlab.world.units import format_bytes
from parlab.zero import accounting

MOST_RANKS = 8
MOST_MOMENTS = 100  # that have a line of their own
BAR, WORDS = (-0.42, 0.12), (0.16, 0.42)  # of a lane


def sharded(shown: Timeline) -> bool:
    """Whether a run holds a model's state as `parlab.zero` does."""
    ranks = range(shown.size)
    return shown.size <= MOST_RANKS and all(accounting.OPTIMIZER in shown.held_by_name(rank) for rank in ranks)


def zero_film(shown: Timeline) -> Film:
    """For `step_through`: for each rank a bar of the bytes that it holds, and below it its work or its wait."""
    stacks = [stack_of(shown, rank, shown.makespan) for rank in range(shown.size)]
    highest = max(int(layers.sum(axis=0).max()) for _, layers in stacks)
    headline = f"{shown.size} ranks through a step: each holds at most {format_bytes(highest)}"
    starts = sorted({0, *(span.start for span in shown.computes), *(t.start for t in shown.transfers)})
    does = [_does(shown, time) for time in starts]
    changes = [time for number, time in enumerate(starts) if not number or does[number] != does[number - 1]]
    times = changes[:MOST_MOMENTS]
    lines = [_line(shown, stacks, time) for time in times]
    moments = moments_of(times, shown.makespan)
    return Film(headline, lines, moments, lambda time: png(_frame(shown, stacks, headline, highest, time)))


def _frame(shown: Timeline, stacks: list[Stack], headline: str, highest: int, time: float) -> Picture:
    figure, axes = plot(headline, 1.75 + max(0.6, lane_height(shown.size)) * shown.size, headline, top=1.0, right=0.5)
    label = f"bytes held, {shown.format(round(time))} after the start"
    scale(axes.xaxis, label, ends=(0, 1.02 * highest), ticks=byte_ticks(highest / 6), says=short_bytes)
    name_lanes(axes, list(range(shown.size)))
    held = [_held(stack, time) for stack in stacks]
    for number, layer in enumerate(LAYERS):
        full = [rank for rank, parts in enumerate(held) if parts[number]]
        spans = [Interval(sum(held[rank][:number]), sum(held[rank][: number + 1])) for rank in full]
        marks.boxes(axes, layer.said, spans, full, BAR, layer.color)
    for rank, words in enumerate(_does(shown, time)):
        marks.word(axes, 0, rank + sum(WORDS) / 2, words)
    legend_of(figure, entries_of(stacks))
    return figure


def _held(stack: Stack, time: float) -> list[int]:
    """The bytes of each of LAYERS."""
    times, layers = stack
    return [int(nbytes) for nbytes in layers[:, step_at(times, time)]]


def _does(shown: Timeline, time: float) -> list[str]:
    """The work of each rank, and the messages that it sends meanwhile."""
    words = []
    for rank in range(shown.size):
        computes = [span.name for span in shown.computes if span.rank == rank and span.start <= time < span.end]
        under_way = [t.name.replace("_", "-") for t in shown.transfers if t.src == rank and t.start <= time < t.end]
        sends = [f"sends ({name})" for name in dict.fromkeys(under_way)]
        words.append(" and ".join([*(f"computes {name}" for name in computes), *sends]) or "waits")
    return words


def _line(shown: Timeline, stacks: list[Stack], time: int) -> str:
    held = _held(stacks[0], time)
    parts = [f"{layer.said} {format_bytes(nbytes)}" for layer, nbytes in zip(LAYERS, held, strict=True) if nbytes]
    by_words: dict[str, list[str]] = {}
    for rank, words in enumerate(_does(shown, time)):
        by_words.setdefault(words, []).append(str(rank))
    who = {words: "every rank" if len(of) == shown.size else f"rank {', '.join(of)}" for words, of in by_words.items()}
    does = "; ".join(f"{of}: {words}" for words, of in who.items())
    return f"{shown.format(time)}: {does}. Rank 0 holds {format_bytes(sum(held))}: {', '.join(parts)}"
