"""Why tensor parallelism of 8: what Llama 3's step waits for at other sizes, on nodes of 8 and in a rack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes

from parlab.pipeline import Costs, looped_bfs, simulate
from parlab.plan import LLAMA_3, LLAMA_405B, Estimate, estimate, search
from parlab.views.drawing import marks, theme
from parlab.views.drawing.picture import Picture, panel, scale, sheet, write
from parlab.views.planning.bills import TIME
from parlab.views.planning.verdict import META, RANKS, STEP
from parlab.world import DGX_H100

NODE, RACK = (4, 8, 16, 32), (8, 16, 32, 64)
GPUS = 64  # of the 72 of a rack: groups of 16, 32 and 64 divide them
HIGH, TOP, HALF = 2.2, 1.0, 0.36  # inches, inches, and of a bar's place
STYLE: dict[str, Any] = {"color": theme.RANKS[5], "marker": "s", "linestyle": "solid"}


def tensor_sizes(headline: str = "") -> Picture:
    """Draw what Llama 3's step waits for with each size of tensor parallelism, and the best step in a rack.

    Left: Llama 3's layout on nodes of 8, 16 stages of 8 chunks, with tp 4 to 32, and dp as it follows: the seconds in
    which a rank is idle, and those in which it waits for turns of tensor parallelism. The planner refuses tp 4, which
    has 8 microbatches for 16 stages; its seconds are those of the simulated schedule.

    Right: 64 of the 72 GPUs that share an NVLink network. The shortest step with tp 8 to 64, by the best layout of
    whole sequences that fits, with ZeRO-2 at most.

    Args:
        headline: above the figure. Empty: the sizes with the least waiting and the shortest steps.
    """
    waits = {tp: _waits(tp) for tp in NODE}
    rack = replace(DGX_H100, ranks_per_node=GPUS)
    fixed: dict[str, Any] = {
        "cp": 1,
        "zero": [1, 2],
        "recompute": ["none", "full"],
        "software": LLAMA_3.but(sends_by_group=False),
    }
    best = [search(LLAMA_405B, rack, RANKS, **STEP, **fixed, tp=tp).best for tp in RACK]
    least = min(waits, key=lambda tp: sum(waits[tp]))
    first = min(best, key=lambda e: e.total_seconds).layout.tp
    said = headline or f"tp {least} waits least; in a rack tp {first} is the best"
    lines = [f"node of 8, tp {tp:2}: idle {idle:.2f} s, turns {turns:.2f} s" for tp, (idle, turns) in waits.items()]
    steps = ", ".join(f"tp {e.layout.tp} {e.total_seconds:.2f} s" for e in best)
    lines.append(f"{GPUS} GPUs of a rack: {steps}")
    figure = sheet([said, *lines], TOP + HIGH + 0.55, said)
    _draw_waits(figure, panel(figure, 0.9, TOP, 3.9, HIGH), waits)
    _draw_rack(figure, panel(figure, 5.75, TOP, 3.6, HIGH), best)
    return figure


def _waits(tp: int) -> tuple[float, float]:
    """Seconds that a rank is idle, and that it waits for turns, in Llama 3's layout with another tp on nodes of 8."""
    if tp >= META.tp:
        seconds = _turned(tp).seconds
        return seconds["bubble"], seconds["tp"]
    usual = _turned(META.tp)
    m = STEP["batch"] // (META.dp * META.tp // tp)
    part = m / (STEP["batch"] // META.dp)  # of the microbatches; each stays with a rank for as much longer
    turns = usual.seconds["tp"] * part * ((tp - 1) / tp) / ((META.tp - 1) / META.tp)
    work = usual.seconds["products"] + usual.seconds["attention"] + usual.seconds["elementwise"]
    third = (work + turns) / (m * META.chunks) / 3  # a chunk's forward, and each half of its backward
    ran = simulate(looped_bfs(META.pp, m, META.chunks), Costs(third, third, third))
    return float(ran.makespan) - work - turns, turns


def _turned(tp: int) -> Estimate:
    layout = META.but(tp=tp, dp=META.dp * META.tp // tp)
    return estimate(LLAMA_405B, DGX_H100, layout, **STEP)


def _draw_waits(figure: Picture, axes: Axes, waits: dict[int, tuple[float, float]]) -> None:
    most = 1.2 * max(map(sum, waits.values()))
    scale(axes.yaxis, "seconds waited", ends=(0, most), size=theme.SMALL)
    names = [f"tp {tp}" for tp in waits]
    places = range(len(waits))
    scale(axes.xaxis, ends=(-0.6, len(waits) - 0.4), ticks=places, says=names, size=theme.SMALL)
    for place, (idle, turns) in enumerate(waits.values()):
        for name, low, high, color in (("turns", 0, turns, TIME["tp"]), ("idle", turns, turns + idle, TIME["bubble"])):
            marks.rectangles(axes, name, place - HALF, place + HALF, low, high, color)
            if high - low > 0.12 * most:
                ink = theme.text_color(color)
                marks.word(axes, place, (low + high) / 2, name, ha="center", color=ink)
        marks.word(axes, place, idle + turns + 0.06 * most, f"{idle + turns:.1f} s", ha="center", gid="sum")
    write(figure, 0.9, TOP - 0.4, "Nodes of 8: Llama 3's layout, another tp", weight="bold")


def _draw_rack(figure: Picture, axes: Axes, best: list[Estimate]) -> None:
    seconds = [e.total_seconds for e in best]
    most = max(seconds)
    scale(axes.yaxis, "seconds a step", ends=(4, 1.08 * most), size=theme.SMALL)
    ends = (-0.6, len(RACK) - 0.4)
    scale(axes.xaxis, ends=ends, ticks=range(len(RACK)), says=[f"tp {tp}" for tp in RACK], size=theme.SMALL)
    axes.plot(range(len(RACK)), seconds, gid="steps", linewidth=2, markersize=7, **STYLE)
    for place, y in enumerate(seconds):
        steep = place and y > 1.1 * seconds[place - 1]  # the line comes from below: the number stands at its left
        marks.word(
            axes, place - 0.15 * steep, y + 0.085 * most * (not steep), f"{y:.2f}", ha="right" if steep else "center"
        )
    at = min(range(len(RACK)), key=seconds.__getitem__)
    axes.plot([at], [seconds[at]], gid="best", **STYLE | {"markersize": 13, "linestyle": "none"})
    write(figure, 5.75, TOP - 0.4, f"{GPUS} GPUs of a rack: the best step, ZeRO-2 at most", weight="bold")
