"""Eight ranks with sliders: the mesh and its microbatches, and the costs of a step.

The axes of bytes are the same at all settings of the sliders, so that pictures can be compared.
"""

from __future__ import annotations

from functools import partial

from matplotlib.ticker import MultipleLocator

from parlab.arguments import checked, one_of, optional
from parlab.views.arguments import among, within
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import name_rows
from parlab.views.drawing.picture import BOUND, Picture, key, panel, scale, sheet, short_bytes, write
from parlab.views.mesh.steps import MICROBATCHES, NAMES, B, StepCosts, detailed, fitting, meshes, step_on
from parlab.views.mesh.strategies import STRATEGIES
from parlab.views.widgets.explorer import Explorer, steps
from parlab.views.zero_redundancy.step_memory import LAYERS
from parlab.world.units import format_bytes

RANKS = 8
SCHEDULES = "gpipe", "one_f_one_b", "zb_h1"
LEFT, RIGHT, TOP, BOTTOM, BETWEEN, HEIGHT = 0.85, 0.3, 1.1, 0.5, 0.6, 3.6  # inches
ENDS = {10 * 2**30: 2 * 2**30, 28 * 2**30: 8 * 2**30}  # of the axis of held bytes, and its ticks; ZeRO 0 needs more
SENT = 2**27, 2**42  # bytes, the ends of the logarithmic axis of sent ones
TICKS = [2**exponent for exponent in (30, 33, 36, 39)]
DOT = {"marker": "o", "markersize": 9, "linestyle": "none", "markeredgewidth": 0}
ROWS = {"dp": "dp × cp"}  # the name of a row that is not that of an axis: ZeRO reduces over both
KEPT = {layer.name: layer for layer in LAYERS}
BESIDE = (1, 8, 1, 1), 16  # the step whose held bytes are marked: pp 8, 16 microbatches, ZeRO 1, under 1F1B
BESIDE_SAID = "pp 8, 16 microbatches"


@checked(
    {
        "schedule": partial(one_of, choices=SCHEDULES),
        "zero": partial(within, least=0, most=3),
        "asked": optional(partial(among, choices=MICROBATCHES)),
    }
)
def mesh(
    axes: tuple[int, int, int, int] = (1, 2, 2, 2),
    schedule: str = "one_f_one_b",
    zero: int = 1,
    microbatches: int = 4,
    asked: int | None = None,
) -> Picture:
    """Draw the bytes that a step on 8 ranks sends, by strategy, and those that its fullest rank holds.

    A dashed line marks what pp 8 holds with 16 microbatches under 1F1B. `explore_mesh` shows this.

    Args:
        axes: dp, pp, cp, tp, whose product is 8.
        schedule: the name of the function that makes the pipeline's schedule.
        zero: the ZeRO stage.
        microbatches: into which each replica cuts its rows, of 16 in all.
        asked: another number of microbatches, 1, 2, 4, 8 or 16, of which the picture says that it is not shown.

    Raises:
        ValueError: no such mesh, schedule or stage, or microbatches that the mesh cannot have.
    """
    if not isinstance(axes, tuple) or axes not in meshes(RANKS):
        raise ValueError(f"axes={axes!r}: dp, pp, cp and tp are needed, whose product is {RANKS}")
    if microbatches not in fitting(axes):
        fit = ", ".join(map(str, fitting(axes)))
        raise ValueError(f"microbatches={microbatches!r:.60}: a replica of {axes} can cut its rows into {fit}")
    step = _costs(axes, microbatches, schedule, zero)
    sent, held = sum(step.sent.values()), sum(step.held.values())
    spelled = " ".join(map("{} {}".format, NAMES, axes))
    most = f"{format_bytes(held)} held by the fullest rank"
    many = f"{microbatches} microbatch{'es' if microbatches > 1 else ''}"
    said = many if asked in (None, microbatches) else f"{many}, not {asked}: {_why(axes, asked)}"
    mark = sum(detailed()[BESIDE].held.values())
    than = "as much as" if held == mark else "more than" if held > mark else "less than"
    headline = f"{1e3 * step.seconds:.3g} ms a step; {format_bytes(held)} held, {than} by {BESIDE_SAID}"
    settings = f"{spelled}, {said}: {format_bytes(sent)} sent, {most}; of {BESIDE_SAID} {format_bytes(mark)}"
    both = {
        ROWS.get(name, name): (format_bytes(step.sent[name]), format_bytes(step.formula[name])) for name in step.sent
    }
    lines = [f"{name:>7} sends {nbytes:>10}, in closed form {formula:>10}" for name, (nbytes, formula) in both.items()]
    parts = {name: step.held[name] for name in KEPT if step.held.get(name)}
    lines += [f"holds {format_bytes(nbytes):>10} of {KEPT[name].said}" for name, nbytes in parts.items()]
    figure = sheet([headline, settings, *lines], HEIGHT, headline)
    width, height = (theme.WIDTH - LEFT - RIGHT - BETWEEN) / 2, HEIGHT - TOP - BOTTOM
    right = LEFT + width + BETWEEN
    write(figure, 0.15, 0.48, said)
    for left, what in ((LEFT, "sent by all ranks, logarithmic"), (right, "held by the fullest rank at its peak")):
        write(figure, left, TOP - 0.08, what, theme.TEXT, va="baseline")
    bars = panel(figure, LEFT, TOP, width, height)
    nbytes = {name: step.sent[name] for name in STRATEGIES}
    scale(bars.xaxis, ends=SENT, log=2, ticks=TICKS, says=short_bytes)
    name_rows(bars, len(nbytes), [ROWS.get(name, name) for name in nbytes])
    for row, (name, value) in enumerate(nbytes.items()):
        if value:
            bars.plot([value], [row], gid=f"sent {name}", color=STRATEGIES[name].color, **DOT)
        marks.word(bars, max(value, SENT[0]), row, f"   {format_bytes(value)}")
    stack = panel(figure, right, TOP, width, height)
    end = min(end for end in ENDS if held < end)
    scale(stack.xaxis, ends=(0, end), ticks=MultipleLocator(ENDS[end]), says=short_bytes)
    scale(stack.yaxis, ends=(1.6, -0.5), ticks=())
    colors = {name: KEPT[name].color for name in parts}
    marks.stacked(stack, {name: [value] for name, value in parts.items()}, colors, half=0.3)
    stack.axvline(mark, ymin=0.58, ymax=0.97, gid="beside", **BOUND)
    marks.word(stack, mark, -0.42, f" {BESIDE_SAID}", color=theme.FAINT)
    keys = [f"{KEPT[name].said} {format_bytes(value)}" for name, value in parts.items()]
    longest = max(map(marks.text_width, keys[::2])) / 72  # inches, of the first column
    second = max(1.75, longest + 0.4)
    for place, (name, words) in enumerate(zip(parts, keys, strict=True)):
        row, column = divmod(place, 2)
        key(figure, right + second * column, HEIGHT - 1.55 + 0.26 * row, KEPT[name].color, words)
    return figure


def explore_mesh() -> Explorer:
    """Sliders for `mesh` under 1F1B at ZeRO 1: the sizes of the axes, and the microbatches."""
    every = meshes(RANKS)
    named = [[pair for pair in zip(NAMES, sizes, strict=True) if pair[1] > 1] for sizes in every]
    spelled = {" ".join(f"{name}{size}" for name, size in own): sizes for own, sizes in zip(named, every, strict=True)}
    controls = {
        "axes": steps("mesh of 8 ranks", spelled.items(), (1, 2, 2, 2)),
        "microbatches": steps("microbatches", MICROBATCHES, 4),
    }
    return Explorer("explore_mesh", controls, _nearest)


def _nearest(axes: tuple[int, int, int, int] = (1, 2, 2, 2), microbatches: int = 4) -> Picture:
    """`mesh` with the number of microbatches that the mesh can have and that is nearest to the slider's."""
    return mesh(axes, microbatches=min(fitting(axes), key=lambda m: abs(m - microbatches)), asked=microbatches)


def _costs(axes: tuple[int, int, int, int], microbatches: int, schedule: str, zero: int) -> StepCosts:
    """Stored ones, which a slider shows at once, or those of a step that runs now."""
    if (schedule, zero) == ("one_f_one_b", 1):
        return detailed()[axes, microbatches]
    return step_on(axes, microbatches, schedule, zero)


def _why(axes: tuple[int, int, int, int], asked: int) -> str:
    """Why a number of microbatches is not shown."""
    if asked > B // axes[0]:
        return f"a replica has {B // axes[0]} rows"
    return f"the pipeline has {axes[1]} stages"
