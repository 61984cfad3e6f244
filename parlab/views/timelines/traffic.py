"""What every rank sent and received, counted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.ticker import MultipleLocator

from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import legend_of, timelines_of
from parlab.views.drawing.picture import Picture, panel, scale, sheet
from parlab.world import Run, Timeline
from parlab.world.units import format_bytes

HEIGHT = 4.0  # inches
MOST_PANELS = 3


def bytes_in_and_out(runs: Mapping[str, Run | Timeline]) -> Picture:
    """Draw the bytes that each rank sent, and beside them those that it received; a panel a run, on one scale.

    Args:
        runs: what `run` returned, or timelines, each under the name that stands above it; 1 to 3 of them.

    Raises:
        ValueError: fewer, more, or something else.
    """
    shown = timelines_of(runs, MOST_PANELS)
    counted = {
        name: (_received(one), [one.bytes_sent(rank) for rank in range(one.size)]) for name, one in shown.items()
    }
    highest = max(1, *(max(map(max, both)) for both in counted.values()))
    most = {name: format_bytes(max(map(max, both))) for name, both in counted.items()}
    total = {name: format_bytes(sum(sent)) for name, (_, sent) in counted.items()}
    findings = [f"{name}: {total[name]} in all, at most {most[name]} through one port" for name in shown]
    first, *others = shown
    headline = f"{first}: at most {most[first]} through one port"
    if others:
        totals = list(total.values())
        sent = ", ".join(totals if len(set(totals)) > 1 else totals[:1])
        ports = ", ".join(f"{nbytes} ({name})" for name, nbytes in most.items())
        headline = f"{sent} in all; through the busiest port {ports}"
    width = max(map(len, shown))
    lines = [f"{'':<{width}} rank {'in':>12} {'out':>12}"]
    for name, both in counted.items():
        lines += [f"{name:<{width}} {rank:>4} {a:>12} {b:>12}" for rank, (a, b) in enumerate(zip(*both, strict=True))]
    figure = sheet([*findings, *lines], HEIGHT, headline)
    wide = (theme.WIDTH - 1.1 - 0.35) / len(shown)
    for number, (name, both) in enumerate(counted.items()):
        axes = panel(figure, 1.1 + number * wide, 1.15, wide - 0.25, HEIGHT - 1.75)
        ranks = np.arange(shown[name].size)
        scale(axes.xaxis, "rank", ends=(-0.6, len(ranks) - 0.4), ticks=ranks[:: -(-len(ranks) // 16)])
        scale(axes.yaxis, ends=(0, 1.05 * highest), ticks=_ticks(highest), says=format_bytes, words=number == 0)
        for kind, left, values in (("receive", ranks - 0.4, both[0]), ("send", ranks, both[1])):
            marks.rectangles(axes, f"{kind} {name}", left, left + 0.4, 0, values, theme.KINDS[kind].color)
        axes.set_title(f"{name}: at most {most[name]}", size=theme.TEXT, color=theme.INK, loc="left", pad=8)
    said = {"receive": "in: received", "send": "out: sent"}
    legend_of(figure, [theme.KINDS[kind]._replace(name=name) for kind, name in said.items()])
    return figure


def _received(shown: Timeline) -> list[int]:
    received = [0] * shown.size
    for transfer in shown.transfers:
        if transfer.src != transfer.dst:
            received[transfer.dst] += transfer.nbytes
    return received


def _ticks(highest: int) -> MultipleLocator:
    """At most 7, whole in powers of 1024."""
    apart: int = 2 ** max(0, round(highest / 5).bit_length() - 1)
    while highest / apart > 7:
        apart *= 2
    return MultipleLocator(apart)
