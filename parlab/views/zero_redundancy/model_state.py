"""The model's state on one device, stage by stage: the formula, and the bytes that runs held."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator

from parlab.arguments import checked, positive
from parlab.views.arguments import RULES
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import name_rows, timeline_of
from parlab.views.drawing.picture import BAR, BOUND, Picture, line_legend, plot, scale, write
from parlab.views.widgets.explorer import Explorer, choice, steps
from parlab.world import Run, Timeline
from parlab.world.units import several
from parlab.zero import MIXED, StateBytes, model_state_bytes, state_bytes_held

Parts = list[float]  # bytes of each of PARTS
STAGES = range(4)
NAMES = ("data parallel", "ZeRO stage 1", "ZeRO stage 2", "ZeRO stage 3")
PARTS = {"weights": "weights", "gradients": "gradients", "optimizer": "optimizer state"}  # with their names in a legend
COLORS = {  # blue and green as in the paper; its orange is hard to tell from the amber of rank 1
    "weights": "#0072B2",
    "gradients": "#B35806",
    "optimizer": "#0F5238",
    "activations": "#CC79A7",
}
POINT = {"marker": "o", "markersize": 6.5, "linestyle": "none", "color": theme.PAPER, "markeredgecolor": theme.INK}
DEVICE = 80e9  # bytes of memory
END = 2 * DEVICE  # of the axis; longer bars are cut there
CHOSEN = "#ECECEC"  # behind the stage that is chosen
BOOKS = {
    "16: float16, float32 masters": MIXED,
    "18: gradients in float32": StateBytes(gradient=4),
    "20: gradients in both": StateBytes(gradient=6),
    "16: float32 alone": StateBytes(4, 4, 8),
}
SIZES = (1e9, 1.5e9, 3e9, 7.5e9, 13e9, 30e9, 70e9, 128e9, 175e9, 405e9, 1e12)
APART = "Activations, buffers and the blocks in use come on top: ZeRO shards the model's state alone."


def state_formula(stage: int, state: StateBytes) -> str:
    """The bytes of a device as a formula of the paper: `4Ψ + 12Ψ/P`."""
    whole = sum(state[: 3 - stage])
    sharded = state.total - whole
    return " + ".join([f"{whole}Ψ"] * (whole > 0) + [f"{sharded}Ψ/P"] * (sharded > 0))


def decimal_bytes(nbytes: float) -> str:
    """Bytes with three significant digits in powers of 1000, as in the paper and in data sheets: `31.4 GB`."""
    nbytes *= 1 + 1e-12  # 41.25 becomes 41.3, as in the paper, and not the even 41.2
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if float(f"{nbytes / size:.3g}") >= 1:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.3g} B"


def spoken(number: float) -> str:
    """A number of parameters in words.

    >>> [spoken(number) for number in (54560, 7.5e9, 1e12)]
    ['54560', '7.5 billion', '1 trillion']
    """
    for word, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if number >= size:
            return f"{number / size:.4g} {word}"
    return f"{number:g}"


def state_of_runs(runs: Any, ranks: int, num_params: float) -> dict[int, Parts]:
    """Bytes of the three parts by stage, the mean over ranks, which equals the formula for uneven shards, too."""
    if not isinstance(runs, Mapping):
        raise ValueError(f"runs={runs!r:.60}: must be {{stage: run}}")
    positive("runs_params", num_params)
    held = {}
    for stage, run in runs.items():
        if stage not in STAGES:
            raise ValueError(f"runs: {stage!r} is no stage, they are 0, 1, 2 and 3")
        timeline = timeline_of(run, f"runs[{stage}]")
        if timeline.size != ranks:
            raise ValueError(f"runs[{stage}] has {several(timeline.size, 'rank')}, but ranks={ranks}")
        by_rank = [state_bytes_held(timeline, rank) for rank in range(ranks)]
        held[stage] = [sum(of_rank[part] for of_rank in by_rank) / ranks for part in PARTS]
    return held


def _compared(stage: int, parts: Parts, formula: Parts) -> str:
    """The bytes that a run held, beside the formula for as many parameters."""
    equal = all(abs(have - want) <= 1e-9 * want for have, want in zip(parts, formula, strict=True))
    said = "= formula" if equal else f"NOT the formula's {sum(formula):g}"
    return f"held by a run at stage {stage}: {sum(parts):g} bytes, {said}"


@checked(RULES)
def zero(
    params: float = 7.5e9,
    P: int = 64,
    stage: int = 2,
    state: StateBytes = MIXED,
    offload: bool = False,
    *,
    runs: Mapping[int, Run | Timeline] | None = None,
    runs_params: int | None = None,
    formulas: bool = True,
    headline: str | None = None,
    end: float = END,
) -> Picture:
    """Draw the model's state on a device at each stage, beside 80 GB. `explore_zero` shows this.

    Args:
        params: Ψ. P: devices that share the state. stage: the stage in the headline. state: bytes a parameter. offload:
        stages 1 to 3 keep the optimizer's state in the host's memory. runs: runs by stage, on P ranks. The mean
        over ranks is drawn as a point. Every part is proportional to Ψ, so
            a small model shows the bytes of a large one.
        runs_params: parameters of the model that ran. Its bytes are drawn times `params` over this. None: Ψ.
        formulas: beside the bars, too. False: before they are asked for.
        headline: above the figure. None: the bytes of `stage`.
        end: of the axis, in bytes, where longer bars are cut; 80 GB stand on it.

    Raises:
        ValueError: an argument that `model_state_bytes` refuses, no parameters, a run of no stage or on other ranks, or
            an axis that ends before 80 GB.

    Source: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", figure 1.

    >>> zero(7.5e9, 64, stage=1)
    Stage 1, Ψ = 7.5 billion, P = 64: 31.4 GB of model state, fits an 80 GB device
    stage     weights   gradients   optimizer   on device  fits
        0       15 GB       15 GB       90 GB      120 GB  no
        1       15 GB       15 GB     1.41 GB     31.4 GB  yes
        2       15 GB      234 MB     1.41 GB     16.6 GB  yes
        3      234 MB      234 MB     1.41 GB     1.88 GB  yes
    Stage 1 on 64 devices fits up to Ψ = 19.1 billion; Ψ = 7.5 billion fits from P = 2 on.
    Activations, buffers and the blocks in use come on top: ZeRO shards the model's state alone.
    """
    if not model_state_bytes(params, P, stage, state=state) > 0:
        raise ValueError(f"num_params={params!r}, state={state!r}: a model has parameters, of a byte or more")
    if not end >= DEVICE:
        raise ValueError(f"end={end!r}: must be at least the {DEVICE:g} bytes of a device")
    on_device = [StateBytes(state.weight, state.gradient, 0) if offload and number else state for number in STAGES]
    whole, held = ([_parts(params, P, at, states[at]) for at in STAGES] for states in ([state] * 4, on_device))
    small = params if runs_params is None else runs_params
    points = state_of_runs({} if runs is None else runs, P, small)
    total = sum(held[stage])
    verdict = "fits" if total <= DEVICE else "does not fit"
    said = f"{decimal_bytes(total)} of model state, {verdict} an 80 GB device"
    headline = headline or f"Stage {stage}, Ψ = {spoken(params)}, P = {P}: {said}"
    limits = _limits(params, P, stage, on_device[stage])
    compared = [_compared(at, parts, _parts(small, P, at, on_device[at])) for at, parts in points.items()]
    text = [headline, *_table(whole, held, offload), *compared, limits, APART]
    figure, axes = plot(text, 4.6, headline, left=1.45, right=2.75, top=1.0, bottom=1.15)
    scale(axes.xaxis, "model state on a device", ends=(0, end), ticks=MultipleLocator(end / 4), says=decimal_bytes)
    name_rows(axes, len(STAGES), NAMES)
    marks.rectangles(axes, "chosen", 0, end, stage - 0.46, stage + 0.46, CHOSEN)
    lengths = np.diff(np.minimum(np.cumsum(held, axis=1), end), axis=1, prepend=0)  # [stages, parts]
    marks.stacked(axes, dict(zip(PARTS, lengths.T, strict=True)), COLORS, half=0.32)
    for number, parts in points.items():
        axes.plot([sum(parts) * params / small], [number], gid=f"runs {number}", zorder=3, **POINT)
    axes.axvline(DEVICE, color=theme.PAPER, linewidth=4)  # white under the dashes, for dark bars
    axes.axvline(DEVICE, gid="device", **BOUND)
    _say_totals(axes, whole, held, stage, on_device if formulas else None, end)
    for top, words in ((4.24, limits), (4.46, APART)):
        write(figure, 0.15, top, words, va="baseline")
    entries = [(name, {"color": COLORS[part], **BAR}) for part, name in PARTS.items()] + [("80 GB", BOUND)]
    line_legend(figure, entries + [("what a run held", POINT)] * bool(points))
    return figure


def _parts(params: float, P: int, stage: int, state: StateBytes) -> Parts:
    """The bytes of each part alone, by the formula."""
    return [model_state_bytes(params, P, stage, state=StateBytes(*alone)) for alone in np.diag(state).tolist()]


def _limits(params: float, P: int, stage: int, on_device: StateBytes) -> str:
    """A sentence: the largest model that fits P devices, and the number of devices that this one needs."""
    most = DEVICE / model_state_bytes(1, P, stage, state=on_device)
    replicated, sharded = params * sum(on_device[: 3 - stage]), params * sum(on_device[3 - stage :])
    first = f"Stage {stage} on {P} device{'s' if P > 1 else ''} fits up to Ψ = {spoken(float(f'{most:.3g}'))}"
    if replicated > DEVICE or (replicated == DEVICE and sharded):
        every = f"{sum(on_device[: 3 - stage])}Ψ"
        return f"{first}; for Ψ = {spoken(params)} no P is enough: {every} on each is {decimal_bytes(replicated)}."
    needed = math.ceil(sharded / (DEVICE - replicated)) if sharded else 1
    return f"{first}; Ψ = {spoken(params)} fits from P = {max(1, needed)} on."


def _table(whole: list[Parts], held: list[Parts], offload: bool) -> list[str]:
    lines = [f"{'stage':>5}" + "".join(f"{name:>12}" for name in (*PARTS, "on device")) + "  fits"]
    for stage, parts in enumerate(whole):
        total = sum(held[stage])
        cells = "".join(f"{decimal_bytes(nbytes):>12}" for nbytes in (*parts, total))
        lines.append(f"{stage:>5}{cells}  {'yes' if total <= DEVICE else 'no'}")
    return lines + ["The optimizer's state of stages 1 to 3 is in the host's memory."] * offload


def _say_totals(
    axes: Axes, whole: list[Parts], held: list[Parts], chosen: int, states: list[StateBytes] | None, end: float
) -> None:
    """Beside each bar: its bytes, the formula, whether it fits, and the bytes on the host."""
    for stage, parts in enumerate(held):
        total, away = sum(parts), parts[2] < whole[stage][2]
        host = f"; {decimal_bytes(whole[stage][2])} on the host" if away else ""
        fits = "fits" if total <= DEVICE else "does not fit"
        weight = "bold" if stage == chosen else "normal"
        formula = f" = {state_formula(stage, states[stage])}" if states else ""
        words = f"{decimal_bytes(total)}{formula}\n{fits}{host}"
        if total > end and not (states or host):  # a bar that is cut does not show it
            words = f"{decimal_bytes(total)}, {fits}\n{decimal_bytes(parts[2])} is {PARTS['optimizer']}"
        marks.word(axes, 1.02, stage, words, transform=axes.get_yaxis_transform(), weight=weight)
        if total > end:
            axes.plot([0.985 * end], [stage], ">", color=theme.PAPER, markersize=8, gid="longer")


def explore_zero() -> Explorer:
    """Sliders for `zero`: parameters, devices, stage, bytes a parameter, and offloading."""
    controls = {
        "params": steps("parameters Ψ", SIZES, 7.5e9, spoken),
        "P": steps("devices P", [2**k for k in range(11)], 64),
        "stage": steps("stage", STAGES, 2),
        "state": choice("bytes a parameter", list(BOOKS.items()), MIXED),
        "offload": choice("optimizer state", [("on the device", False), ("offloaded to the host", True)], False),
    }
    return Explorer("explore_zero", controls, zero)
