"""A hop of a million tokens' K/V beside the tiles that hide it, to scale, and the seconds that all steps add up to."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from matplotlib.axes import Axes

from parlab.arguments import checked, one_of
from parlab.sequence import FLASH_ATTENTION_3, AttentionShape, method_times, pair_flops, step_time, unmasked_pairs
from parlab.views.engine import marks, theme
from parlab.views.engine.arguments import among
from parlab.views.engine.explore import Explorer, choice, steps
from parlab.views.engine.lanes import legend_of, name_rows
from parlab.views.engine.marks import Interval
from parlab.views.engine.picture import BOUND, Picture, panel, scale, sheet
from parlab.world import DGX_H100, Link
from parlab.world.cluster import picoseconds

S, H, D, LAYERS, ITEMSIZE = 2**20, 32, 128, 32, 2  # the model of lesson 02's first screen, in bf16
KV_HEADS = (32, 8, 4, 1)
FREE = Link(0.0, 1e30)
GPUS = (32, 64, 128, 256, 512, 1024)
METHODS = {"ring": "one ring", "double ring": "double ring"}
AFTER, BESIDE = MERGES = ("after", "beside")
WORK, CALLS, HOP, WAITS = (theme.KINDS[kind] for kind in ("compute", "backward", "receive", "transfer"))
LEGEND = {"a hop between nodes": HOP, "work: half a tile": WORK, "its call and merge": CALLS, "the GPU waits": WAITS}
LEFT, LANE, ROW, TOP, BETWEEN = 1.75, 0.38, 0.5, 0.95, 0.85  # inches
FULL, LOW = (-0.36, 0.36), (0.06, 0.36)  # of a lane: all of it, and where a merge runs beside a tile


class Step(NamedTuple):
    """The picoseconds of a step: half a tile, its call and merge, and a hop between nodes and one inside a node."""

    half: int
    merge: int
    between: int
    inside: int

    def tiles(self, count: int, merges: str) -> list[Interval]:
        """`count` half tiles beside one hop between nodes: each begins when the last one and its hop are done."""
        own = self.half + self.merge if merges == AFTER else max(self.half, self.merge)
        starts = accumulate([max(own, self.inside)] * (count - 1), initial=0)
        return [Interval(start, start + self.half) for start in starts]


@checked(
    {
        "gpus": partial(among, choices=GPUS),
        "kv_heads": partial(among, choices=KV_HEADS),
        "merges": lambda name, value: one_of(name, value, MERGES),
    }
)
def ring_bill(gpus: int = 32, kv_heads: int = 32, merges: str = AFTER) -> Picture:
    """Draw a hop between nodes beside the tiles that hide it, to scale, and what the seconds of all layers go to.

    The attention is causal and forward, of 2²⁰ tokens on H100s in nodes of eight, in one ring and in a double ring
    (`method_times`). In one ring one half tile lies beside a hop, in a double ring eight do; its hops inside a node are
    not drawn, but its tiles wait for them. The bills stack the work, then the calls and merges (`step_time`), then the
    wait that remains. A dashed line stands where the work ends.

    Args:
        gpus: a power of two from 32 to 1024.
        kv_heads: 32, 8, 4 or 1, for 32 query heads of size 128.
        merges: "after": the next tile waits until its call and the last merge are done; "beside": both run beside the
            next tile, and only what is longer than the tile costs time.

    Raises:
        ValueError: GPUs, heads or merges that are not among these.

    >>> ring_bill(256, 32)
    256 GPUs, 32 K/V heads: one ring 11.04 s, double ring 2.23 s
    a hop 1.35 ms, half a tile 0.21 ms, its call and merge 0.06 ms
    one ring      work 1.75 s, calls and merges 0.47 s, waits 8.81 s
    double ring   work 1.75 s, calls and merges 0.47 s, waits 0.00 s
    """
    shape = AttentionShape(S, H, kv_heads, D, ITEMSIZE)
    step = _step(shape, gpus)
    parts = _bills(shape, gpus, step, merges)
    takes = [sum(of_method) for of_method in zip(*parts.values(), strict=True)]
    said = ", ".join(f"{name} {time:.2f} s" for name, time in zip(METHODS.values(), takes, strict=True))
    headline = f"{gpus} GPUs, {kv_heads} K/V head{'s' * (kv_heads > 1)}: {said}"
    ms = [f"{part / 1e9:.2f} ms" for part in step]
    rows = [f"a hop {ms[2]}, half a tile {ms[0]}, its call and merge {ms[1]}"]
    rows += [
        f"{name:14}" + ", ".join(f"{part} {parts[part][row]:.2f} s" for part in parts)
        for row, name in enumerate(METHODS.values())
    ]
    lanes, bars = 2 * len(METHODS) * LANE, len(METHODS) * ROW
    figure = sheet([headline, *rows], TOP + lanes + BETWEEN + bars + 0.65, headline)
    width = theme.WIDTH - LEFT - 0.5
    _draw_steps(panel(figure, LEFT, TOP, width, lanes), step, merges)
    axes = panel(figure, LEFT, TOP + lanes + BETWEEN, width, bars)
    scale(axes.xaxis, f"seconds, {LAYERS} layers", ends=(0, 1.12 * max(takes)), says="{:g}".format)
    name_rows(axes, len(METHODS), list(METHODS.values()), line=False)
    work, calls, waits = parts.values()
    marks.stacked(axes, {"work": work, "calls": calls}, {"work": WORK.color, "calls": CALLS.color}, half=0.33)
    ends = [Interval(end - wait, end) for end, wait in zip(takes, waits, strict=True)]
    marks.hatched_boxes(axes, "waits", ends, range(len(METHODS)), (-0.33, 0.33), WAITS)
    axes.axvline(work[0], **BOUND)
    for row, time in enumerate(takes):
        marks.word(axes, time, row, f"  {time:.2f} s", ha="left", va="center")
    legend_of(figure, [(kind.color, name, kind.hatch) for name, kind in LEGEND.items()])
    return figure


def explore_ring_bill() -> Explorer:
    """Controls for `ring_bill`: the GPUs, the K/V heads, and when a merge runs."""
    controls = {
        "gpus": steps("GPUs", GPUS, 32),
        "kv_heads": steps("K/V heads, of 32", KV_HEADS, 32),
        "merges": choice("calls and merges", [("after each tile", AFTER), ("beside the next tile", BESIDE)], AFTER),
    }
    return Explorer("explore_ring_bill", controls, ring_bill)


def _step(shape: AttentionShape, gpus: int) -> Step:
    c = S // gpus
    kv = c * shape.token(backward=False).kv
    half = DGX_H100.reaching(FLASH_ATTENTION_3).device_of(0).seconds(pair_flops(c * c // 2, 1, H, D), 0)
    hops = [link.picoseconds(kv) for link in (DGX_H100.inter, DGX_H100.intra)]
    return Step(picoseconds(half), step_time(shape, gpus, DGX_H100), *hops)


def _bills(shape: AttentionShape, gpus: int, step: Step, merges: str) -> dict[str, list[float]]:
    """The seconds of each part, for each method: the wait is what remains when the work and all charges are paid."""
    flops = pair_flops(unmasked_pairs(S, gpus, "zigzag")[0], 1, H, D)
    work = picoseconds(DGX_H100.reaching(FLASH_ATTENTION_3).device_of(0).seconds(flops, 0))
    charge = 1.0 if merges == AFTER else max(0.0, 1 - step.half / step.merge)  # of a call and a merge
    free = replace(DGX_H100, intra=FREE, inter=FREE)
    unhindered, times = (method_times(shape, gpus, on, FLASH_ATTENTION_3, step=charge) for on in (free, DGX_H100))
    layers = LAYERS / 1e12
    return {
        "work": [layers * work for _ in METHODS],
        "calls and merges": [layers * max(0, unhindered[name].picoseconds - work) for name in METHODS],
        "waits": [
            layers * max(0, times[name].picoseconds - max(work, unhindered[name].picoseconds)) for name in METHODS
        ],
    }


def _draw_steps(axes: Axes, step: Step, merges: str) -> None:
    """For each method a lane of the network, with one hop, and one of the GPU, with the tiles beside it."""
    tiles = [step.tiles(count, merges) for count in (1, DGX_H100.ranks_per_node)]
    merged = [[Interval(tile.end, tile.end + step.merge) for tile in of_method] for of_method in tiles]
    after = merges == AFTER
    done = merged if after else tiles
    last = max(step.between, *(of_method[-1].end for of_method in merged))
    scale(axes.xaxis, "milliseconds, to scale", ends=(0, 1.02 * last), says=lambda time: f"{time / 1e9:g}")
    for row in range(len(METHODS)):
        network, gpu = 2 * row, [2 * row + 1] * len(tiles[row])
        begins = [*(tile.start for tile in tiles[row][1:]), max(step.between, done[row][-1].end)]
        waits = [Interval(one.end, later) for one, later in zip(done[row], begins, strict=True)]
        marks.hatched_boxes(axes, "step waits", waits, gpu, FULL, WAITS)
        marks.boxes(axes, "hop", [Interval(0, step.between)], [network], FULL, HOP.color)
        marks.boxes(axes, "tile", tiles[row], gpu, FULL, WORK.color)
        marks.boxes(axes, "merge", merged[row], gpu, FULL if after else LOW, CALLS.color)
    names = [name for method in METHODS.values() for name in (f"{method}: network", "GPU")]
    name_rows(axes, len(names), names, line=False)
