"""The fastest way to cut a sequence: a map over ranks and lengths, from the formulas, with one point of the reader."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from math import inf, log2
from typing import Any

import numpy as np

from parlab.arguments import checked, one_of
from parlab.sequence import (
    FLASH_ATTENTION_3,
    METHODS,
    AttentionShape,
    MethodTime,
    double_ring_cost,
    method_times,
    step_time,
    usp_cost,
)
from parlab.sequence.times import TWO_LEVELS
from parlab.views.arguments import RULES
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import legend_of
from parlab.views.drawing.picture import Picture, panel, scale, sheet
from parlab.views.widgets.explorer import Explorer, choice, steps
from parlab.world import CLASSROOM, DGX_A100, DGX_H100, Cluster
from parlab.world.units import format_bytes, format_time

RANKS = tuple(2**k for k in range(1, 8))
LENGTHS = tuple(2**k for k in range(10, 21))
FASTEST = "fastest"
COLORS = {"ring": "#E0D8C3", "double ring": "#BFD3EA", "Ulysses": "#FBD9A0", "USP": "#BFE6D8", "all-gather": "#EBCBDD"}
SLOWER = ((1.1, "#FFFFFF"), (1.5, "#F3E3E3"), (3, "#E3BDBD"), (float("inf"), "#CF9090"))  # than the fastest, up to
NONE = "#EEEEEE"
TIE = 5  # percent
STEPS = (0, 1, 2, 5, 10, 20)  # times the least that a step costs
HATCHED: dict[str, Any] = {
    "color": "#00000038",
    "hatch": "//",
    "linewidths": 0,
    "hatch_linewidth": 0.7,
}  # where methods tie
LOST = "#B388FF"  # the colour of a transfer: no work hides it
BESIDE = "#8C8C8C"  # calls and merges
ITEMSIZE = 2  # bf16
At = tuple[int, int]  # tokens and ranks
Times = dict[str, MethodTime]  # of each method
Found = dict[At, Times]
LEFT, MAP, BARS, TOP, HIGH, HEIGHT = 0.95, 5.6, 2.75, 0.95, 3.4, 5.0  # inches


@checked(RULES | {"method": partial(one_of, choices=(FASTEST, *METHODS))})
def attention_map(
    S: int = 131072,
    size: int = 16,
    *,
    H: int = 32,
    G: int = 8,
    D: int = 128,
    cluster: Cluster = DGX_H100,
    kernel: float = FLASH_ATTENTION_3,
    step: float = 1.0,
    method: str = FASTEST,
) -> Picture:
    """Draw the fastest method for every length and number of ranks, and every method at the reader's point. A cell is
    hatched where another method takes at most 5 % longer, and so are the bars of the methods that tie. Rings attend in
    P steps, USP in P/U, Ulysses and all-gather in one; each step after the first has a call and a merge, which the
    simulated clock leaves out. They are charged here `step` times the least that they can cost (`step_time`).

    `method_times` computes each cell, for the causal forward in bf16 with batch 1, each method with the fastest of its
    exchanges on this cluster. The number after USP is the number of ranks in a Ulysses group.

    Args:
        S, size: the reader's point: 1024 to 1048576 tokens on 2 to 128 ranks, both powers of two.
        H, G, D: query heads, key/value heads, head size.
        cluster: the hardware of the formulas.
        kernel: the fraction of the device's peak that attention reaches, at most 1.
        step: what a call and a merge cost, times the least; at 0 the clock alone.
        method: "fastest", or one of `METHODS`: each cell then says how much longer this method takes than the fastest.

    Raises:
        ValueError: a point off the map, no such method, or heads that do not share evenly.
    """
    for name, value, known in (("S", S, LENGTHS), ("size", size, RANKS)):
        if value not in known:
            raise ValueError(f"{name}={value!r}: must be one of {', '.join(map(str, known))}")
    if H % G:
        raise ValueError(f"H={H}, G={G}: G must divide H")
    found = _times(H, G, D, cluster, kernel, step)
    here = found[S, size]
    order = sorted(here, key=lambda name: here[name].picoseconds)
    shape = AttentionShape(S, H, G, D, ITEMSIZE)
    headline = f"{_verdict(here, order)}: {S} tokens on {size} ranks, at {100 * kernel:g} % of the peak"
    sent = {name: _sent(name, time, shape, size, cluster) for name, time in here.items()}
    rows = [
        f"{_named(name, here):<11} {format_time(here[name].picoseconds):>10}, {here[name].exchange}, sends "
        f"{format_bytes(sent[name])} a rank"
        for name in order
    ]
    grid = {at: _cell_of(times, method) for at, times in found.items()}
    ties = {at for at, times in found.items() if len(_tied(times)) > 1} if method == FASTEST else set()
    lines = [f"{'tokens':>8} | " + " ".join(f"{f'{p} ranks':>12}" for p in RANKS)]
    for s in reversed(LENGTHS):
        cells = [grid[s, p][0] + ("=" if (s, p) in ties else " ") for p in RANKS]
        lines.append(f"{s:>8} | " + " ".join(f"{cell:>12}" for cell in cells).rstrip())
    if ties:
        lines.append(f"=: another method is within {TIE} %")
    beside = round(step * step_time(shape, size, cluster))
    if step:
        lines.append(f"a call and a merge in each step after the first: {format_time(beside)} at the framed point")
    figure = sheet([headline, *rows, *lines], HEIGHT, headline)
    _draw_map(figure, grid, ties, method, S, size, f"ranks, with {H} query heads and {G} K/V heads")
    compute = method_times(shape, size, replace(cluster, intra=FREE, inter=FREE), kernel)["ring"]
    steps = {name: 1 if name == "all-gather" else size // time.ulysses for name, time in here.items()}
    works = {name: compute.picoseconds + (steps[name] - 1) * beside for name in here}
    _draw_bars(figure, here, sent, compute.picoseconds, works)
    return figure


FREE = Cluster.uniform(0, float("inf")).intra


@lru_cache(maxsize=32)
def _times(H: int, G: int, D: int, cluster: Cluster, kernel: float, step: float) -> Found:
    return {
        (s, p): method_times(AttentionShape(s, H, G, D, ITEMSIZE), p, cluster, kernel, step=step)
        for s in LENGTHS
        for p in RANKS
    }


def _named(name: str, times: Times) -> str:
    """The method's name; that of USP with the size of its group."""
    return f"USP {times[name].ulysses}" if name == "USP" else name


def _tied(times: Times) -> list[str]:
    """The methods that take at most 5 % longer than the fastest, which is the first."""
    first, *others = sorted(times, key=lambda name: times[name].picoseconds)
    most = (100 + TIE) * times[first].picoseconds
    return [first, *(name for name in others if 100 * times[name].picoseconds <= most)]


def _verdict(times: Times, order: list[str]) -> str:
    """The fastest method, and how much longer the next one takes; or those that tie with it."""
    first, *others = [_named(name, times) for name in _tied(times)]
    if others:
        said = f"{', '.join([first, *others[:-1]])} and {others[-1]} tie"
    else:
        said = f"{first} is fastest"
        if len(order) > 1:
            longer = 100 * (_ratio(times[order[1]], times[order[0]]) - 1)
            said += f", {_named(order[1], times)} takes {longer:.0f} % longer"
    return said[0].upper() + said[1:]


def _cell_of(times: Times, method: str) -> tuple[str, str]:
    """The text of a cell of the map, and its colour."""
    fastest = min(times, key=lambda name: times[name].picoseconds)
    if method == FASTEST:
        return _named(fastest, times), COLORS[fastest]
    if method not in times:
        return "–", NONE
    ratio = _ratio(times[method], times[fastest])
    return f"{ratio:.1f} ×", next(color for most, color in SLOWER if ratio <= most)


def _ratio(time: MethodTime, fastest: MethodTime) -> float:
    """The time over the fastest time; 1 where both take no time."""
    if time.picoseconds == fastest.picoseconds:
        return 1.0
    return time.picoseconds / fastest.picoseconds if fastest.picoseconds else inf


def _sent(name: str, time: MethodTime, shape: AttentionShape, size: int, cluster: Cluster) -> int:
    """Bytes that rank 0 sends. All-gather, flat or in two levels, sends as many as a ring."""
    if name == "double ring":
        return double_ring_cost(shape, size, ranks_per_node=cluster.ranks_per_node).nbytes
    per_node = cluster.ranks_per_node if time.exchange == TWO_LEVELS else None
    return usp_cost(shape, size, ulysses=time.ulysses, ranks_per_node=per_node if time.ulysses > 1 else None).nbytes


def _draw_map(
    figure: Picture, grid: dict[At, tuple[str, str]], ties: set[At], method: str, S: int, size: int, below: str
) -> None:
    axes = panel(figure, LEFT, TOP, MAP, HIGH)
    ranks, lengths = list(map(log2, RANKS)), list(map(log2, LENGTHS))
    sizes = [f"{s // 1024}k" for s in LENGTHS]
    scale(axes.xaxis, below, ends=(0.5, len(RANKS) + 0.5), ticks=ranks, says=list(map(str, RANKS)), dashes=False)
    scale(axes.yaxis, "tokens, k = 1024", ends=(9.5, 20.5), ticks=lengths, says=sizes, dashes=False)
    cells, lanes = [_around(p) for _, p in grid], [log2(s) for s, _ in grid]
    colors, texts = [color for _, color in grid.values()], [[text] for text, _ in grid.values()]
    marks.boxes(axes, "cells", cells, lanes, (-0.5, 0.5), colors, texts)
    between = [_around(p) for _, p in ties], [log2(s) for s, _ in ties]
    marks.frames(axes, "ties", *between, (-0.5, 0.5), **HATCHED)
    marks.frames(axes, "you", [_around(size)], [log2(S)], (-0.5, 0.5))
    names = COLORS
    if method != FASTEST:
        limits = [f"up to {most:g} ×" for most, _ in SLOWER[:-1]]
        said = [f"{method} against the fastest: {limits[0]}", *limits[1:], "longer", "heads do not share evenly"]
        names = dict(zip(said, [*(color for _, color in SLOWER), NONE], strict=True))
    said_of_ties = [(theme.PAPER, f"a tie: within {TIE} %", "//")] if ties else []
    legend_of(figure, [*((color, name, "") for name, color in names.items()), *said_of_ties])


def _around(ranks: int) -> marks.Interval:
    return marks.Interval(log2(ranks) - 0.5, log2(ranks) + 0.5)


def _draw_bars(figure: Picture, here: Times, sent: dict[str, int], compute: int, works: dict[str, int]) -> None:
    """The times at the framed point, the fastest method first: to attend, for calls and merges, and waiting for
    messages. Where several tie, their bars are hatched.
    """
    spans = {name: time.picoseconds for name, time in sorted(here.items(), key=lambda item: item[1].picoseconds)}
    most = max(spans.values())
    left = LEFT + MAP + 0.4
    axes = panel(figure, left, TOP, BARS, HIGH)
    scale(axes.xaxis, ends=(0, most or 1), ticks=(), line=False)
    scale(axes.yaxis, ends=(len(METHODS) - 0.5, -0.75), ticks=())
    lanes, work = np.arange(len(spans)), theme.KINDS["compute"].color
    ends = [works[name] for name in spans]
    marks.rectangles(axes, "work", 0, compute, lanes - 0.12, lanes + 0.25, work)
    marks.rectangles(axes, "beside", compute, ends, lanes - 0.12, lanes + 0.25, BESIDE)
    marks.rectangles(axes, "lost", ends, list(spans.values()), lanes - 0.12, lanes + 0.25, LOST)
    tied = _tied(here)
    if len(tied) > 1:
        bars, rows = [marks.Interval(0, spans[name]) for name in tied], [list(spans).index(name) for name in tied]
        marks.frames(axes, "tied", bars, rows, (-0.12, 0.25), **HATCHED)
    for lane, name in enumerate(spans):
        text = f"{_named(name, here)}: {format_time(spans[name])}, {format_bytes(sent[name])}"
        marks.word(axes, 0.01 * most, lane - 0.2, text, va="bottom")
    said = [(work, "attend", ""), (BESIDE, "calls, merges", ""), (LOST, "wait", "")]
    legend_of(figure, said, left=left, below=HEIGHT - 0.35)


def explore_long_sequences() -> Explorer:
    """Sliders for `attention_map`: the step, the method, the reader's point, the heads, the node, the cluster, the
    kernel.
    """

    def draw(
        step: int, method: str, S: int, size: int, H: int, G: int, node: int, cluster: Cluster, kernel: float
    ) -> Picture:
        where = replace(cluster, ranks_per_node=node)
        return attention_map(S, size, H=H, G=min(G, H), cluster=where, kernel=kernel, step=step, method=method)

    controls = {
        "step": steps("a step costs, × least", STEPS, 1),
        "method": choice("method", (FASTEST, *METHODS), FASTEST),
        "S": steps("tokens S", LENGTHS, 131072),
        "size": steps("ranks P", RANKS, 16),
        "H": steps("query heads H", (8, 16, 32, 64, 128), 32),
        "G": steps("K/V heads G", (1, 2, 4, 8, 16, 32), 8),
        "node": steps("ranks a node", (4, 8, 16, 64), 8),
        "cluster": choice("cluster", (DGX_H100, DGX_A100, CLASSROOM), DGX_H100, lambda one: one.name),
        "kernel": steps(
            "kernel, of the peak", (0.3, 0.4, 0.5, FLASH_ATTENTION_3, 0.8, 0.85, 0.9, 1.0), FLASH_ATTENTION_3
        ),
    }
    return Explorer("explore_long_sequences", controls, draw)
