"""Memory through a training step: what one rank holds, stacked by what it is, a panel a stage."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

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


class Layer(NamedTuple):
    """One area of the stack: the name under which bytes are held, its colour, and its name in the legend."""

    name: str
    color: str
    said: str


LAYERS = (  # from the bottom to the top
    Layer(accounting.OPTIMIZER, COLORS["optimizer"], "optimizer state"),
    Layer(accounting.WEIGHTS, COLORS["weights"], "weights"),
    Layer(accounting.GRADIENTS, COLORS["gradients"], "gradients"),
    Layer(accounting.GATHERED, "#8CC4EF", "gathered weights"),
    Layer(accounting.LEAVING, "#F7D488", "gradients on their way"),
    Layer(RECEIVED, theme.KINDS["receive"].color, "messages"),
    Layer("", "#000000", "other"),  # what the program itself holds
    Layer(accounting.ACTIVATIONS, "#DDDDDD", "activations"),
)
Stack = tuple[list[int], list[list[int]]]  # times of changes, and the bytes of each of LAYERS from then on
MESSAGES = [layer.name for layer in LAYERS].index(RECEIVED)  # what is sent, too, until it has passed
ROW, HEAD, FOOT = 2.9, 0.35, 0.4  # inches: of a row of panels, of which above and below its axes
ABOVE, BELOW, LEFT, RIGHT, BETWEEN = 0.95, 0.25, 0.95, 0.2, 0.3  # inches: margins
FEW = 2  # panels that stand below each other, as wide as the page
HEADROOM = 1.16  # of the highest stack: the phases are named above it


class Phase(NamedTuple):
    """Forward, backward or step, from `start` to `end`."""

    name: str
    start: int
    end: int


def step_memory(runs: Mapping[str, Run | Timeline], *, formula: Mapping[str, float] | None = None) -> Picture:
    """Draw what rank 0 holds on its device through a training step, stacked by what it is; a panel a run.

    All panels have the same scales. Optimizer state that is offloaded is not on the device, and not drawn.

    Args:
        runs: what `run` returned, or a timeline, by the name of its panel, such as `"stage 1"`; all on as many ranks.
        formula: bytes of the model's state by the same names, from `model_state_bytes`: a dashed line.

    Raises:
        ValueError: no runs, something else, another number of ranks, or a formula for what did not run.
    """
    shown, levels = _checked(runs, formula)
    end = max(timeline.makespan for timeline in shown.values())
    stacks = {name: stack_of(timeline, 0, end) for name, timeline in shown.items()}
    peaks = {name: max(map(sum, zip(*layers, strict=True))) for name, (_, layers) in stacks.items()}
    states = {name: sum(state_bytes_held(timeline, 0).values()) for name, timeline in shown.items()}
    highest = max(*peaks.values(), *levels.values(), 1)
    most = f"at most {format_bytes(max(peaks.values()))}"
    if len(peaks) > 1:
        fewest, largest = min(peaks, key=lambda name: peaks[name]), max(peaks, key=lambda name: peaks[name])
        most = f"most in {largest}, {format_bytes(peaks[largest])}, least in {fewest}, {format_bytes(peaks[fewest])}"
    headline = f"A step on rank 0 of {next(iter(shown.values())).size}: {most}"
    rows = {name: [states[name], *_tops(stacks[name]), peaks[name]] for name in shown}
    text = _table(headline, rows, levels)
    columns = 1 if len(shown) <= FEW else 2
    figure = sheet(text, ABOVE + ROW * -(-len(shown) // columns) + BELOW, headline)
    wide = (theme.WIDTH - LEFT - RIGHT - BETWEEN * (columns - 1)) / columns
    for place, (name, timeline) in enumerate(shown.items()):
        row, column = divmod(place, columns)
        axes = panel(figure, LEFT + column * (wide + BETWEEN), ABOVE + ROW * row + HEAD, wide, ROW - HEAD - FOOT)
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
        _name_panel(axes, name, states[name], peaks[name])
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
    """What `rank` holds over time, by layer."""
    held = timeline.held_by_name(rank)
    times, by_name = stacked(held, end)
    layer_of = {layer.name: number for number, layer in enumerate(LAYERS)} | {SENT: MESSAGES}
    layers = [[0] * len(times) for _ in LAYERS]
    for name, values in zip(held, by_name, strict=True):
        if name != accounting.OFFLOADED:
            number = layer_of.get(name, layer_of[""])
            layers[number] = [sum(pair) for pair in zip(layers[number], values, strict=True)]
    return times, layers


def stacked(by_name: dict[str, list[tuple[int, int]]], end: int) -> Stack:
    """The times of all changes, and for each name its bytes from each of these times on."""
    times = sorted({0, end, *(time for steps in by_name.values() for time, _ in steps)})
    layers = []
    for steps in by_name.values():
        changes, levels = [time for time, _ in steps], [0, *(nbytes for _, nbytes in steps)]
        layers.append([levels[bisect_right(changes, time)] for time in times])  # of several changes at once, the last
    return times, layers


def _phases(timeline: Timeline) -> list[Phase]:
    """Forward and backward of every microbatch, and the step, which lasts until the next forward computes.

    None, if nothing is called "forward": then it is no training step.
    """
    spans = sorted((span for span in timeline.computes if span.rank == 0), key=lambda span: span.start)
    groups = [(kind, list(of_kind)) for kind, of_kind in groupby(spans, _kind)]
    phases, start = [], 0
    for number, (kind, of_kind) in enumerate(groups):
        stop = of_kind[-1].end
        if kind == "step":
            stop = timeline.makespan if number + 1 == len(groups) else groups[number + 1][1][0].start
        phases.append(Phase(kind, start, stop))
        start = stop
    if phases and start < timeline.makespan:
        phases.append(Phase("step", start, timeline.makespan))
    return phases if any(phase.name == "forward" for phase in phases) else []


def _kind(span: Span) -> str:
    first = span.name.partition(" ")[0]
    return first if first in ("forward", "backward") else "step"


def _tops(stack: Stack) -> list[int]:
    """The most bytes of blocks in use, of messages and of activations."""
    heights = {layer.name: of_layer for layer, of_layer in zip(LAYERS, stack[1], strict=True)}
    in_use = map(sum, zip(heights[accounting.GATHERED], heights[accounting.LEAVING], strict=True))
    return [max(in_use), max(heights[RECEIVED]), max(heights[accounting.ACTIVATIONS])]


def _table(headline: str, rows: Mapping[str, list[int]], levels: Mapping[str, float]) -> str:
    width = max(5, *map(len, rows))
    names = ["state", *(["formula"] if levels else []), "blocks in use", "messages", "activations", "all at once"]
    lines = [f"{headline}; peaks in bytes", f"{'':<{width}}" + "".join(f"{name:>15}" for name in names)]
    for name, (state, *rest) in rows.items():
        level = [_exact(levels[name]) if name in levels else ""] if levels else []
        lines.append(f"{name:<{width}}" + "".join(f"{cell:>15}" for cell in (state, *level, *rest)))
    return "\n".join(lines)


def _exact(nbytes: float) -> str:
    return f"{nbytes:.0f}" if nbytes == round(nbytes) else f"{nbytes:.1f}"


def _draw_stack(axes: Axes, times: list[int], layers: list[list[int]]) -> None:
    base = [0] * len(times)
    for layer, heights in zip(LAYERS, layers, strict=True):
        roof = [below + height for below, height in zip(base, heights, strict=True)]
        if any(heights):
            style = {"color": layer.color, "linewidth": 0, "gid": f"layer {layer.said}"}
            axes.fill_between(times, base, roof, step="post", **style)
        base = roof


def _draw_phases(axes: Axes, phases: Sequence[Phase], highest: float) -> None:
    """A thin line where one ends, and its name above the stack where there is room."""
    line = {"color": theme.FAINT, "linewidth": 0.8, "linestyle": "dotted"}
    axes.vlines([phase.end for phase in phases], 0, HEADROOM * highest, gid="phases", **line)
    points = 72 * inches(axes)[0] / axes.get_xlim()[1]
    for phase in phases:
        middle, room = (phase.start + phase.end) / 2, (phase.end - phase.start) * points
        size = next((size for size in (theme.SMALL, theme.TINY) if text_width(phase.name, size) <= room), None)
        if size is not None:
            marks.word(axes, middle, 1.09 * highest, phase.name, size, ha="center")


def _name_panel(axes: Axes, name: str, state: int, peak: int) -> None:
    """The longest of these words that fits above it."""
    held, most = short_bytes(state), short_bytes(peak)
    choices = (f"{name}: model state {held}, at most {most} in all", f"{name}: {held}, at most {most}", name)
    fits = (text for text in choices if text_width(text, theme.TEXT) <= 72 * inches(axes)[0])
    axes.set_title(next(fits, ""), size=theme.TEXT, color=theme.INK, loc="left", pad=6)


def entries_of(stacks: Iterable[Stack]) -> list[tuple[str, str, str]]:
    """The layers that are ever there, for a legend."""
    drawn = {layer for _, layers in stacks for layer, heights in zip(LAYERS, layers, strict=True) if any(heights)}
    return [(layer.color, layer.said, "") for layer in LAYERS if layer in drawn]


def byte_ticks(apart: float) -> MultipleLocator:
    """Ticks about so many bytes apart, at whole numbers in powers of 1024."""
    return MultipleLocator(2.0 ** max(0, round(math.log2(apart))))
