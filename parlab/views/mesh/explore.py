"""Eight ranks with sliders: the mesh, the schedule and the ZeRO stage, and the costs of a step."""

from __future__ import annotations

from collections import Counter
from functools import cache, partial
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import MultipleLocator

from parlab import arrays, pipeline
from parlab.arguments import checked, one_of
from parlab.nn import AdamW, Llama, LlamaConfig
from parlab.train import Mesh, Trainer, bytes_by_strategy, step_bytes
from parlab.views.arguments import within
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import name_rows
from parlab.views.drawing.picture import Picture, key, panel, scale, sheet, short_bytes, write
from parlab.views.mesh.strategies import STRATEGIES
from parlab.views.widgets.explorer import Explorer, choice, steps
from parlab.views.zero_redundancy.step_memory import LAYERS, PLACES
from parlab.world import Cluster, Comm, run
from parlab.world.units import format_bytes
from parlab.zero import accounting

RANKS, B, S = 8, 16, 16  # devices, rows of the batch, tokens of a row
NAMES, UP = ("dp", "pp", "cp", "tp"), (1, 2, 4, 8)
MESHES = [sizes for sizes in product(UP[::-1], UP, UP, UP) if prod(sizes) == RANKS]
SCHEDULES = {"GPipe": "gpipe", "1F1B": "one_f_one_b", "ZB-H1": "zb_h1", "ZB-H2": "zb_h2"}
CONFIG = LlamaConfig(vocab_size=32, hidden_size=64, intermediate_size=128, num_hidden_layers=8, num_attention_heads=8)
CLUSTER = Cluster.uniform(latency=1e-6, bandwidth=1e10, flops=1e11)
LEFT, RIGHT, TOP, BOTTOM, BETWEEN, HEIGHT = 0.5, 0.3, 0.9, 0.5, 0.6, 3.4  # inches
END = 7 * 2**20  # bytes, the end of the axis of held bytes
KEPT = {layer.name: layer for layer in LAYERS}


class MeasuredStep(NamedTuple):
    """The time, the sent bytes and the held bytes of a step on a mesh."""

    took: str  # its makespan
    sent: dict[str, int]  # bytes of all ranks by strategy
    formula: dict[str, int]  # the same in closed form
    held: dict[str, int]  # bytes of the fullest rank at its peak, by kind


@cache
def measured(mesh: tuple[int, int, int, int], schedule: str, zero: int) -> MeasuredStep:
    """One real step of a small Llama. It runs once for each choice."""
    pp = mesh[1]
    built = pipeline.gpipe(1, 1) if pp == 1 else getattr(pipeline, schedule)(pp, 2 * pp)
    tokens = arrays.generator(0).integers(CONFIG.vocab_size, size=(B, S + 1))
    serial = Llama.random(CONFIG, xp=np, dtype="float32")

    def program(comm: Comm) -> dict[str, int]:
        trainer = Trainer(Mesh(comm, *mesh), serial, AdamW(), schedule=built, zero=zero)
        trainer.step(tokens[:, :-1], tokens[:, 1:])
        return step_bytes(trainer, B, S)

    done = run(program, RANKS, cluster=CLUSTER)
    timeline = done.timeline
    fullest = max(range(RANKS), key=timeline.peak_bytes)
    held: Counter[str] = Counter()
    for name, nbytes in timeline.peak_by_name(fullest).items():
        held[LAYERS[PLACES.get(name, PLACES[accounting.ACTIVATIONS])].name] += nbytes
    return MeasuredStep(timeline.format(timeline.makespan), bytes_by_strategy(timeline), done.results[0], held)


@checked({"schedule": partial(one_of, choices=tuple(SCHEDULES.values())), "zero": partial(within, least=0, most=3)})
def mesh(axes: tuple[int, int, int, int] = (2, 2, 1, 2), schedule: str = "one_f_one_b", zero: int = 1) -> Picture:
    """Draw the bytes that a step on 8 ranks sends, by strategy, and those that its fullest rank holds.

    `explore_mesh` shows this.

    Args:
        axes: dp, pp, cp, tp, whose product is 8.
        schedule: the name of the function that makes the pipeline's schedule.
        zero: the ZeRO stage.

    Raises:
        ValueError: no such mesh, schedule or stage, or an argument that `Trainer` refuses.
    """
    if not isinstance(axes, tuple) or axes not in MESHES:
        raise ValueError(f"axes={axes!r}: dp, pp, cp and tp are needed, whose product is {RANKS}")
    step = measured(axes, schedule, zero)
    sent, held = sum(step.sent.values()), sum(step.held.values())
    spelled = " · ".join(map("{} {}".format, NAMES, axes))
    most = f"{format_bytes(held)} held by the fullest rank"
    headline = f"{spelled}: {step.took} a step, {format_bytes(sent)} sent, {most}"
    lines = [
        f"{name:>5} sends {format_bytes(step.sent[name]):>10}, in closed form {format_bytes(step.formula[name]):>10}"
        for name in step.sent
    ]
    parts = {name: step.held[name] for name in KEPT if step.held[name]}
    lines += [f"holds {format_bytes(nbytes):>10} of {KEPT[name].said}" for name, nbytes in parts.items()]
    figure = sheet([headline, *lines], HEIGHT, headline)
    width, height = (theme.WIDTH - LEFT - RIGHT - BETWEEN) / 2, HEIGHT - TOP - BOTTOM
    right = LEFT + width + BETWEEN
    for left, what in ((LEFT, "sent by all ranks, in bytes"), (right, "held by the fullest rank at its peak")):
        write(figure, left, TOP - 0.08, what, theme.TEXT, va="baseline")
    bars = panel(figure, LEFT, TOP, width, height)
    nbytes = [step.sent[name] for name in STRATEGIES]
    scale(bars.xaxis, ends=(0, max([*nbytes, 1]) * 1.35), ticks=(), line=False)
    name_rows(bars, len(nbytes), list(STRATEGIES))
    marks.bars(bars, "sent", 0, nbytes, [kind.color for kind in STRATEGIES.values()], half=0.3)
    for row, value in enumerate(nbytes):
        marks.word(bars, value, row, f" {format_bytes(value)}")
    stack = panel(figure, right, TOP, width, height)
    scale(stack.xaxis, ends=(0, END), ticks=MultipleLocator(2**20), says=short_bytes)
    scale(stack.yaxis, ends=(1.6, -0.5), ticks=())
    colors = {name: KEPT[name].color for name in parts}
    marks.stacked(stack, {name: [value] for name, value in parts.items()}, colors, half=0.3)
    said = [f"{KEPT[name].said} {format_bytes(value)}" for name, value in parts.items()]
    longest = max(map(marks.text_width, said[::2])) / 72  # inches, of the first column
    second = 1.75 if longest < 1.7 else longest + 0.4
    for place, (name, words) in enumerate(zip(parts, said, strict=True)):
        row, column = divmod(place, 2)
        key(figure, right + second * column, HEIGHT - 1.55 + 0.26 * row, KEPT[name].color, words)
    return figure


def explore_mesh() -> Explorer:
    """Sliders for `mesh`: the sizes of the axes, the schedule, and the ZeRO stage."""
    spelled = {" · ".join(map("{}{}".format, NAMES, sizes)): sizes for sizes in MESHES}
    controls = {
        "axes": steps("mesh of 8 ranks", spelled.items(), (2, 2, 1, 2)),
        "schedule": choice("schedule", list(SCHEDULES.items()), "one_f_one_b"),
        "zero": steps("stage of ZeRO", range(4), 1),
    }
    return Explorer("explore_mesh", controls, mesh)
