"""Memory through a training step: the bytes that one rank holds over time, stacked by kind, a panel a run."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator

from parlab.arguments import amount
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import legend_of, time_axis, timelines_of
from parlab.views.drawing.marks import text_width
from parlab.views.drawing.picture import BOUND, Picture, inches, line_legend, panel, scale, sheet, short_bytes
from parlab.views.zero_redundancy.model_state import COLORS
from parlab.world import Run, Timeline
from parlab.world.timeline import Span
from parlab.world.units import format_bytes
from parlab.zero import accounting, state_bytes_held

SENT, RECEIVED = "sent", "received"  # the names under which messages are held


class Area(NamedTuple):
    """One area of the stack: the name under which its bytes are held, its colour, and its name in the legend."""

    name: str
    color: str
    said: str


LAYERS = (  # from the bottom to the top
    Area(accounting.OPTIMIZER, COLORS["optimizer"], "optimizer state"),
    Area(accounting.WEIGHTS, COLORS["weights"], "weights"),
    Area(accounting.GRADIENTS, COLORS["gradients"], "gradients"),
    Area(accounting.GATHERED, "#8CC4EF", "gathered weights"),
    Area(accounting.LEAVING, "#F7D488", "gradients on their way"),
    Area(RECEIVED, theme.KINDS["receive"].color, "messages"),
    Area("", "#000000", "other"),  # held by the program itself
    Area(accounting.ACTIVATIONS, COLORS["activations"], "activations"),
)
Stack = tuple[list[int], np.ndarray]  # times of changes, and from each on the bytes of LAYERS: [layers, times]
PLACES = {layer.name: place for place, layer in enumerate(LAYERS)}
PLACES[SENT] = PLACES[RECEIVED]  # sent messages too, until they have passed
ROW, HEAD, FOOT = 2.9, 0.35, 0.4  # inches: of a row of panels, of which above and below its axes
ABOVE, BELOW, LEFT, RIGHT, BETWEEN = 0.95, 0.25, 0.95, 0.2, 0.3  # inches: margins
FEW = 3  # panels that stand below each other, as wide as the page; so many are lower
LOW = 2.2  # inches: such a row
HEADROOM = 1.16  # of the highest stack: the phases are named above it


def step_memory(
    runs: Mapping[str, Run | Timeline], *, formula: Mapping[str, float] | None = None, headline: str | None = None
) -> Picture:
    """Draw the bytes that rank 0 holds on its device through a training step, stacked by kind, a panel a run.

    All panels have the same scales. Offloaded optimizer state is not on the device, and is not drawn.

    Args:
        runs: runs or timelines by the names of their panels, such as `"stage 1"`, all with the same number of ranks.
        formula: bytes of the model's state by the same names, from `model_state_bytes`: a dashed line.
        headline: the sentence above; None: the largest and the smallest peak.

    Raises:
        ValueError: no runs, something else, another number of ranks, or a formula for what did not run.
    """
    shown, levels = _checked(runs, formula)
    end = max(timeline.makespan for timeline in shown.values())
    stacks = {name: stack_of(timeline, 0, end) for name, timeline in shown.items()}
    rows = {name: _row(timeline, stacks[name]) for name, timeline in shown.items()}
    peaks = {name: row[-1] for name, row in rows.items()}
    highest = max(*peaks.values(), *levels.values(), 1)
    most = f"at most {format_bytes(max(peaks.values()))}"
    if len(peaks) > 1:
        fewest, largest = min(peaks, key=lambda name: peaks[name]), max(peaks, key=lambda name: peaks[name])
        most = f"most in {largest}, {format_bytes(peaks[largest])}, least in {fewest}, {format_bytes(peaks[fewest])}"
    headline = headline or f"A step on rank 0 of {next(iter(shown.values())).size}: {most}"
    columns = 1 if len(shown) <= FEW else 2
    high = LOW if len(shown) == FEW else ROW
    figure = sheet(_table(headline, rows, levels), ABOVE + high * -(-len(shown) // columns) + BELOW, headline)
    wide = (theme.WIDTH - LEFT - RIGHT - BETWEEN * (columns - 1)) / columns
    for place, (name, timeline) in enumerate(shown.items()):
        row, column = divmod(place, columns)
        axes = panel(figure, LEFT + column * (wide + BETWEEN), ABOVE + high * row + HEAD, wide, high - HEAD - FOOT)
        time_axis(axes, timeline, end)
        axes.xaxis.get_major_locator().set_params(nbins=6)
        if place < len(shown) - columns:
            axes.set_xlabel("")
        ticks = byte_ticks(highest / 4)
        scale(axes.yaxis, ends=(0, HEADROOM * highest), ticks=ticks, says=short_bytes, words=not column)
        _draw_stack(axes, *stacks[name])
        if name in levels:
            axes.plot([0, end or 1], [levels[name]] * 2, gid=f"formula {name}", zorder=3, **BOUND)
        _draw_phases(axes, _phases(timeline), highest)
        _name_panel(axes, name, rows[name][0], peaks[name])
    legend_of(figure, entries_of(stacks.values()))
    if levels:
        line_legend(figure, [("model state by the formula, when all gradients have come", BOUND)], y=0.83)
    return figure


def _checked(runs: Any, formula: Any) -> tuple[dict[str, Timeline], dict[str, float]]:
    shown = timelines_of(runs)
    sizes = {timeline.size for timeline in shown.values()}
    if len(sizes) > 1:
        raise ValueError(f"runs: they have {sorted(sizes)} ranks, and need the same number")
    if formula is not None and not isinstance(formula, Mapping):
        raise ValueError(f"formula={formula!r:.60}: must be {{name: bytes}}")
    for name, level in (formula or {}).items():
        amount(f"formula[{name!r}]", level)
        if name not in runs:
            raise ValueError(f"formula[{name!r}]={level!r}: the runs are {', '.join(shown)}")
    levels = {str(name): float(level) for name, level in (formula or {}).items()}
    return shown, levels


def stack_of(timeline: Timeline, rank: int, end: int) -> Stack:
    """The bytes that `rank` holds over time, by area."""
    held = timeline.held_by_name(rank)
    times, by_name = levels_at_changes(held, end)
    layers = np.zeros((len(LAYERS), len(times)), dtype=int)
    for name, levels in zip(held, by_name, strict=True):
        if name != accounting.OFFLOADED:
            layers[PLACES.get(name, PLACES[""])] += levels
    return times, layers


def levels_at_changes(by_name: dict[str, list[tuple[int, int]]], end: int) -> tuple[list[int], list[list[int]]]:
    """The times of all changes, and for each name its bytes after each of these times."""
    times = sorted({0, end, *(time for steps in by_name.values() for time, _ in steps)})
    layers = []
    for steps in by_name.values():
        changes, levels = [time for time, _ in steps], [0, *(nbytes for _, nbytes in steps)]
        layers.append([levels[bisect_right(changes, time)] for time in times])  # of several changes at once, the last
    return times, layers


def _phases(timeline: Timeline) -> list[tuple[str, int, int]]:
    """The phases of a training step, each (name, start, end): forward and backward of every microbatch, and the step.

    The step lasts until the next forward computes. If no computation is called "forward", the run is no training step,
    and there are no phases.
    """
    spans = sorted((span for span in timeline.computes if span.rank == 0), key=lambda span: span.start)
    groups = [(kind, list(of_kind)) for kind, of_kind in groupby(spans, _kind)]
    if all(kind != "forward" for kind, _ in groups):
        return []
    later = [of_kind[0].start for _, of_kind in groups[1:]] + [timeline.makespan]
    phases, start = [], 0
    for (kind, of_kind), following in zip(groups, later, strict=True):
        stop = following if kind == "step" else of_kind[-1].end
        phases.append((kind, start, stop))
        start = stop
    return phases + [("step", start, timeline.makespan)] * (start < timeline.makespan)


def _kind(span: Span) -> str:
    first = span.name.partition(" ")[0]
    return first if first in ("forward", "backward") else "step"


def _row(timeline: Timeline, stack: Stack) -> list[int]:
    """Bytes of the model's state, and the peaks of blocks in use, of messages, of activations, and of all together."""
    names = (accounting.GATHERED, accounting.LEAVING, RECEIVED, accounting.ACTIVATIONS)
    gathered, leaving, messages, activations = (stack[1][PLACES[name]] for name in names)
    tops = [int(heights.max()) for heights in (gathered + leaving, messages, activations, stack[1].sum(axis=0))]
    return [sum(state_bytes_held(timeline, 0).values()), *tops]


def _table(headline: str, rows: Mapping[str, list[int]], levels: Mapping[str, float]) -> str:
    width = max(5, *map(len, rows))
    names = ["state", *(["formula"] if levels else []), "blocks in use", "messages", "activations", "all at once"]
    lines = [f"{headline}; peaks in bytes", f"{'':<{width}}" + "".join(f"{name:>15}" for name in names)]
    for name, (state, *rest) in rows.items():
        level = [f"{levels[name]:.1f}".removesuffix(".0") if name in levels else ""] if levels else []
        lines.append(f"{name:<{width}}" + "".join(f"{cell:>15}" for cell in (state, *level, *rest)))
    return "\n".join(lines)


def _draw_stack(axes: Axes, times: list[int], layers: np.ndarray) -> None:
    roofs = layers.cumsum(axis=0)
    for layer, heights, roof in zip(LAYERS, layers, roofs, strict=True):
        if heights.any():
            style = {"color": layer.color, "linewidth": 0, "gid": f"layer {layer.said}"}
            axes.fill_between(times, roof - heights, roof, step="post", **style)


def _draw_phases(axes: Axes, phases: Sequence[tuple[str, int, int]], highest: float) -> None:
    """A thin line at the end of each phase, and its name above the stack if there is room."""
    line = {"color": theme.FAINT, "linewidth": 0.8, "linestyle": "dotted"}
    axes.vlines([end for _, _, end in phases], 0, HEADROOM * highest, gid="phases", **line)
    points = 72 * inches(axes)[0] / axes.get_xlim()[1]
    for name, start, end in phases:
        fitting = (size for size in (theme.SMALL, theme.TINY) if text_width(name, size) <= (end - start) * points)
        if size := next(fitting, None):
            marks.word(axes, (start + end) / 2, 1.09 * highest, name, size, ha="center")


def _name_panel(axes: Axes, name: str, state: int, peak: int) -> None:
    """The title of a panel: the longest of three texts that fits."""
    held, most = short_bytes(state), short_bytes(peak)
    choices = (f"{name}: model state {held}, at most {most} in all", f"{name}: {held}, at most {most}", name)
    fits = (text for text in choices if text_width(text, theme.TEXT) <= 72 * inches(axes)[0])
    axes.set_title(next(fits, ""), size=theme.TEXT, color=theme.INK, loc="left", pad=6)


def entries_of(stacks: Iterable[Stack]) -> list[tuple[str, str, str]]:
    """The entries of a legend: the areas that are not always empty."""
    drawn = {layer for _, layers in stacks for layer, heights in zip(LAYERS, layers, strict=True) if heights.any()}
    return [(layer.color, layer.said, "") for layer in LAYERS if layer in drawn]


def byte_ticks(apart: float) -> MultipleLocator:
    """Ticks about `apart` bytes apart, at multiples of a power of 2."""
    return MultipleLocator(2.0 ** max(0, round(math.log2(apart))))
