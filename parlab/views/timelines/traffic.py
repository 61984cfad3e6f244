"""What every rank sent and received, counted."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MultipleLocator

from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import legend_of, timeline_of
from parlab.views.drawing.picture import Picture, framed, title
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
    if not isinstance(runs, Mapping) or not 1 <= len(runs) <= MOST_PANELS:
        raise ValueError(f"runs={runs!r:.60}: must be {{name: run}}, with 1 to {MOST_PANELS} of them")
    shown = {str(name): timeline_of(one, f"runs[{name!r}]") for name, one in runs.items()}
    counted = {
        name: (_received(one), [one.bytes_sent(rank) for rank in range(one.size)]) for name, one in shown.items()
    }
    most = {name: max(map(max, both)) for name, both in counted.items()}
    highest = max(*most.values(), 1)
    rows = [f"{'':<{max(map(len, shown))}} rank {'in':>12} {'out':>12}"]
    for name, both in counted.items():
        rows += [
            f"{name:<{max(map(len, shown))}} {rank:>4} {a:>12} {b:>12}"
            for rank, (a, b) in enumerate(zip(*both, strict=True))
        ]
    findings = [
        f"{name}: {format_bytes(sum(both[1]))} in all, at most {format_bytes(most[name])} through one port"
        for name, both in counted.items()
    ]
    figure = Picture("\n".join([*findings, *rows]), theme.WIDTH, HEIGHT)
    wide = (theme.WIDTH - 1.1 - 0.35) / len(shown)
    for number, (name, both) in enumerate(counted.items()):
        left = 1.1 + number * wide
        axes = framed(figure, (left / theme.WIDTH, 0.6 / HEIGHT, (wide - 0.25) / theme.WIDTH, (HEIGHT - 1.75) / HEIGHT))
        ranks = range(shown[name].size)
        axes.set_xlim(-0.6, len(ranks) - 0.4)
        axes.set_ylim(0, 1.05 * highest)
        for kind, offset, values in (("receive", -0.4, both[0]), ("send", 0.0, both[1])):
            left_edges = [rank + offset for rank in ranks]
            color = [theme.KINDS[kind].color] * len(ranks)
            marks.rectangles(
                axes, f"{kind} {name}", left_edges, [x + 0.4 for x in left_edges], [0] * len(ranks), values, color
            )
        _name_axes(axes, len(ranks), highest)
        axes.tick_params(axis="y", labelleft=number == 0)
        words = f"{name}: at most {format_bytes(most[name])}"
        axes.set_title(words, size=theme.TEXT, color=theme.INK, loc="left", pad=8)
    title(figure, _ports(most, {name: sum(both[1]) for name, both in counted.items()}))
    kinds = [
        theme.KINDS[kind]._replace(name=said) for kind, said in (("receive", "in: received"), ("send", "out: sent"))
    ]
    legend_of(figure, kinds)
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
    same = (
        f"{format_bytes(total[names[0]])} in all"
        if len(set(total.values())) == 1
        else ", ".join(map(format_bytes, total.values())) + " in all"
    )
    return f"{same}; through the busiest port {', '.join(f'{format_bytes(most[name])} ({name})' for name in names)}"


def _name_axes(axes: Axes, size: int, highest: float) -> None:
    step = 2 ** max(0, round(highest / 5).bit_length() - 1)  # so that ticks are whole in powers of 1024
    while highest / step > 7:
        step *= 2
    axes.yaxis.set_major_locator(MultipleLocator(step))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))
    axes.xaxis.set_major_locator(FixedLocator(range(0, size, -(-size // 16))))
    axes.set_xlabel("rank", size=theme.TEXT, color=theme.INK)
