"""The seconds of a million tokens' attention on H100s, by what they go to: in one ring, in a double ring, in USP."""

from __future__ import annotations

from functools import partial

from parlab.arguments import checked
from parlab.sequence import FLASH_ATTENTION_3, AttentionShape, method_times, pair_flops, unmasked_pairs
from parlab.views.arguments import among
from parlab.views.attention.ring_seconds import ITEMSIZE, KV_HEADS, LAYERS, SECONDS, D, H, S
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import legend_of, name_rows
from parlab.views.drawing.picture import BOUND, Picture, panel, scale, sheet
from parlab.views.widgets.explorer import Explorer, steps
from parlab.world import DGX_H100
from parlab.world.cluster import picoseconds

GPUS = (32, 64, 128, 256, 512, 1024)
METHODS = {"ring": "one ring", "double ring": "double ring", "USP": "USP"}
PARTS = {"work": theme.KINDS["compute"], "messages": theme.KINDS["receive"], "calls": theme.KINDS["backward"]}
NAMES = {"work": "work", "messages": "waits for messages", "calls": "calls and merges, at the least"}
ROW, TOP, LEFT, END = 0.62, 0.95, 1.4, 16  # inches; seconds


@checked({"gpus": partial(among, choices=GPUS), "kv_heads": partial(among, choices=KV_HEADS)})
def ring_bill(gpus: int = 256, kv_heads: int = 32) -> Picture:
    """Draw what the seconds of all 32 layers' causal attention over 2²⁰ tokens go to, a row for each method, forward.

    The GPUs are H100s in nodes of eight (`method_times`). What a method takes beyond the work is waiting for messages;
    what it takes beyond that, when each step is charged the least for its call and its merge, are calls and merges. A
    dashed line stands where the work alone ends.

    Args:
        gpus: a power of two from 32 to 1024.
        kv_heads: 32, 8, 4 or 1, for 32 query heads of size 128.

    Raises:
        ValueError: GPUs or heads that are not among these.

    >>> ring_bill(256, 32)
    256 GPUs, 32 K/V heads: one ring 11.04 s, double ring 2.23 s, USP 1.82 s
    one ring      work 1.75 s, messages 9.29 s, calls 0.00 s
    double ring   work 1.75 s, messages 0.00 s, calls 0.47 s
    USP           work 1.75 s, messages 0.01 s, calls 0.06 s
    """
    shape = AttentionShape(S, H, kv_heads, D, ITEMSIZE)
    bare, charged = (method_times(shape, gpus, DGX_H100, FLASH_ATTENTION_3, step=step) for step in (0, 1))
    flops = pair_flops(unmasked_pairs(S, gpus, "zigzag")[0], 1, H, D)
    work = picoseconds(DGX_H100.reaching(FLASH_ATTENTION_3).device_of(0).seconds(flops, 0))
    layers = LAYERS / 1e12
    parts = {
        "work": [layers * work for _ in METHODS],
        "messages": [layers * (bare[name].picoseconds - work) for name in METHODS],
        "calls": [layers * (charged[name].picoseconds - bare[name].picoseconds) for name in METHODS],
    }
    takes = [sum(of_method) for of_method in zip(*parts.values(), strict=True)]
    heads = f"{kv_heads} K/V head{'s' * (kv_heads > 1)}"
    said = ", ".join(f"{name} {time:.2f} s" for name, time in zip(METHODS.values(), takes, strict=True))
    headline = f"{gpus} GPUs, {heads}: {said}"
    rows = [
        f"{name:14}" + ", ".join(f"{part} {abs(parts[part][row]):.2f} s" for part in PARTS)
        for row, name in enumerate(METHODS.values())
    ]
    figure = sheet([headline, *rows], TOP + ROW * len(METHODS) + 0.65, headline)
    axes = panel(figure, LEFT, TOP, theme.WIDTH - LEFT - 0.5, ROW * len(METHODS))
    scale(axes.xaxis, SECONDS, ends=(0, END), ticks=range(0, END, 2), says="{:g}".format)
    name_rows(axes, len(METHODS), list(METHODS.values()), line=False)
    marks.stacked(axes, parts, {part: kind.color for part, kind in PARTS.items()}, half=0.33)
    axes.axvline(parts["work"][0], **BOUND)
    for row, time in enumerate(takes):
        marks.word(axes, time, row, f"  {time:.2f} s", ha="left", va="center")
    legend_of(figure, [(kind.color, NAMES[part], "") for part, kind in PARTS.items()])
    return figure


def explore_ring_bill() -> Explorer:
    """Sliders for `ring_bill`: the GPUs and the K/V heads."""
    controls = {"gpus": steps("GPUs", GPUS, 256), "kv_heads": steps("K/V heads, of 32", KV_HEADS, 32)}
    return Explorer("explore_ring_bill", controls, ring_bill)
