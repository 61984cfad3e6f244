"""The model's state on one device, stage by stage: the formula, and what runs held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from parlab.arguments import positive
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import timeline_of
from parlab.zero import StateBytes, model_state_bytes, state_bytes_held

STAGES = range(4)
NAMES = ("data parallel", "ZeRO stage 1", "ZeRO stage 2", "ZeRO stage 3")
PARTS = ("weights", "gradients", "optimizer")
COLORS = {"weights": "#0072B2", "gradients": "#E08214", "optimizer": "#0F5238"}  # as in the paper: blue, orange, green
LABELS = {"weights": "weights", "gradients": "gradients", "optimizer": "optimizer state"}
POINT = {"marker": "o", "markersize": 6.5, "linestyle": "none", "color": theme.PAPER, "markeredgecolor": theme.INK}


def state_by_stage(num_params: float, ranks: int, state: StateBytes) -> dict[int, list[float]]:
    """Bytes a device of weights, gradients and optimizer state, by stage.

    Raises:
        ValueError: what `model_state_bytes` refuses, or no parameters.
    """
    if not model_state_bytes(num_params, ranks, 0, state=state) > 0:
        raise ValueError(f"num_params={num_params!r}, state={state!r}: a model has parameters, of a byte or more")
    only = (StateBytes(state.weight, 0, 0), StateBytes(0, state.gradient, 0), StateBytes(0, 0, state.optimizer))
    return {stage: [model_state_bytes(num_params, ranks, stage, state=part) for part in only] for stage in STAGES}


def state_formula(stage: int, state: StateBytes) -> str:
    """What a device holds, as the paper writes it.

    >>> state_formula(1, StateBytes())
    '4Ψ + 12Ψ/N'
    """
    whole = sum(state[: 3 - stage])
    sharded = state.total - whole
    return " + ".join([f"{whole}Ψ"] * (whole > 0) + [f"{sharded}Ψ/N"] * (sharded > 0))


def decimal_bytes(nbytes: float) -> str:
    """Three significant digits in powers of 1000, as the paper and the makers of devices count.

    >>> decimal_bytes(31.41e9)
    '31.4 GB'
    """
    nbytes *= 1 + 1e-12  # so that 41.25 is 41.3, as in the paper, and not the even 41.2
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if float(f"{nbytes / size:.3g}") >= 1:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.3g} B"


def spoken(number: float) -> str:
    """A number of parameters as people say it.

    >>> [spoken(number) for number in (54560, 7.5e9, 1e12)]
    ['54560', '7.5 billion', '1 trillion']
    """
    for word, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if number >= size:
            return f"{number / size:.4g} {word}"
    return f"{number:g}"


def draw_state(axes: Axes, formula: Mapping[int, Sequence[float]]) -> None:
    """A bar a stage, stage 0 on top: weights, gradients and optimizer state one after the other."""
    left = [0.0] * len(formula)
    for number, part in enumerate(PARTS):
        right = [start + parts[number] for start, parts in zip(left, formula.values(), strict=True)]
        marks.bars(axes, part, left, right, COLORS[part], half=0.32)
        left = right


def measured_state(measured: Any, ranks: int, num_params: float) -> dict[int, list[float]]:
    """Bytes of the three parts by stage, the mean over ranks: however uneven the shards, it is the formula's."""
    if not isinstance(measured, Mapping):
        raise ValueError(f"measured={measured!r:.60}: must be {{stage: run}}")
    positive("measured_params", num_params)
    held = {}
    for stage, run in measured.items():
        if stage not in STAGES:
            raise ValueError(f"measured: {stage!r} is no stage, they are 0, 1, 2 and 3")
        timeline = timeline_of(run, f"measured[{stage}]")
        if timeline.size != ranks:
            raise ValueError(f"measured[{stage}] has {timeline.size} ranks, but ranks={ranks}")
        by_rank = [state_bytes_held(timeline, rank) for rank in range(ranks)]
        held[stage] = [sum(of_rank[part] for of_rank in by_rank) / ranks for part in PARTS]
    return held


def compared(held: Mapping[int, Sequence[float]], formula: Mapping[int, Sequence[float]]) -> list[str]:
    """A line a run: what it held, beside the formula for as many parameters."""
    lines = []
    for stage, parts in held.items():
        equal = all(abs(have - want) <= 1e-9 * want for have, want in zip(parts, formula[stage], strict=True))
        said = "= formula" if equal else f"NOT the formula's {sum(formula[stage]):g}"
        lines.append(f"held by a run at stage {stage}: {sum(parts):g} bytes, {said}")
    return lines
