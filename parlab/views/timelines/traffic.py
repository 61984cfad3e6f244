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
    most = {name: max(map(max, both)) for name, both in counted.items()}
    total = {name: sum(sent) for name, (_, sent) in counted.items()}
    findings = [
        f"{name}: {format_bytes(total[name])} in all, at most {format_bytes(most[name])} through one port"
        for name in shown
    ]
    width = max(map(len, shown))
    lines = [f"{'':<{width}} rank {'in':>12} {'out':>12}"]
    for name, both in counted.items():
        lines += [f"{name:<{width}} {rank:>4} {a:>12} {b:>12}" for rank, (a, b) in enumerate(zip(*both, strict=True))]
    figure = sheet([*findings, *lines], HEIGHT, _ports(most, total))
    wide, highest = (theme.WIDTH - 1.1 - 0.35) / len(shown), max(*most.values(), 1)
    for number, (name, both) in enumerate(counted.items()):
        axes = panel(figure, 1.1 + number * wide, 1.15, wide - 0.25, HEIGHT - 1.75)
        ranks = np.arange(shown[name].size)
        scale(axes.xaxis, "rank", ends=(-0.6, len(ranks) - 0.4), ticks=ranks[:: -(-len(ranks) // 16)])
        ticks = MultipleLocator(_step(highest))
        scale(axes.yaxis, ends=(0, 1.05 * highest), ticks=ticks, says=format_bytes, words=number == 0)
        for kind, left, values in (("receive", ranks - 0.4, both[0]), ("send", ranks, both[1])):
            marks.rectangles(axes, f"{kind} {name}", left, left + 0.4, 0, values, theme.KINDS[kind].color)
        words = f"{name}: at most {format_bytes(most[name])}"
        axes.set_title(words, size=theme.TEXT, color=theme.INK, loc="left", pad=8)
    said = {"receive": "in: received", "send": "out: sent"}
    legend_of(figure, [theme.KINDS[kind]._replace(name=name) for kind, name in said.items()])
    return figure


def _received(shown: Timeline) -> list[int]:
    received = [0] * shown.size
    for transfer in shown.transfers:
        if transfer.src != transfer.dst:
            received[transfer.dst] += transfer.nbytes
    return received


def _ports(most: Mapping[str, int], total: Mapping[str, int]) -> str:
    """How many bytes travel in all, and through the busiest port."""
    names = list(most)
    if len(names) == 1:
        return f"{names[0]}: at most {format_bytes(most[names[0]])} through one port"
    sent = ", ".join(map(format_bytes, total.values() if len(set(total.values())) > 1 else [total[names[0]]]))
    ports = ", ".join(f"{format_bytes(most[name])} ({name})" for name in names)
    return f"{sent} in all; through the busiest port {ports}"


def _step(highest: float) -> int:
    """Between ticks: whole in powers of 1024, and at most 7 of them."""
    step: int = 2 ** max(0, round(highest / 5).bit_length() - 1)
    while highest / step > 7:
        step *= 2
    return step
