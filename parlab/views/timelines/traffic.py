"""What every rank sent, counted, beside the closed form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MultipleLocator

from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import legend_of, timeline_of
from parlab.views.drawing.picture import Picture, framed, line_legend, plot, title
from parlab.world import Run, Timeline
from parlab.world.collectives import Cost
from parlab.world.units import format_bytes

HEIGHT = 4.0  # inches
MOST_VALUES = 12  # bars with their value above them
MOST_PANELS = 3


def bytes_sent(run: Run | Timeline, formula: Cost | Sequence[int] | int | None = None) -> Picture:
    """Draw the bytes that each rank sent, as counted, with the closed form as a line across each bar.

    Args:
        run: what `run` or `simulate` returned, or a timeline.
        formula: what the closed form says: a `Cost` from `world.collectives` (its messages are compared too), bytes a
            rank, or one number of bytes for all ranks. None: only what was counted.

    Raises:
        ValueError: something else, or not one number a rank.

    >>> from parlab import run
    >>> bytes_sent(run(lambda comm: comm.barrier(), 2), formula=0)
    0 B sent by 2 ranks: counted = closed form on every rank
    rank messages          bytes    closed form
       0        1              0              0
       1        1              0              0
    """
    shown = timeline_of(run)
    ranks = range(shown.size)
    counted = [shown.bytes_sent(rank) for rank in ranks]
    messages = [shown.messages(rank) for rank in ranks]
    expected = _expected(formula, shown.size)
    verdict = _verdict(counted, messages, expected, formula.messages if isinstance(formula, Cost) else None)
    headline = f"{format_bytes(sum(counted))} sent by {shown.size} rank{'s' if shown.size > 1 else ''}{verdict}"
    figure, axes = plot(_table(headline, counted, messages, expected), HEIGHT, left=1.1, top=1.0)
    highest = max([*counted, *(expected or []), 1])
    axes.set_xlim(-0.6, shown.size - 0.4)
    axes.set_ylim(0, 1.12 * highest)
    left, right = [rank - 0.38 for rank in ranks], [rank + 0.38 for rank in ranks]
    marks.rectangles(axes, "bars", left, right, [0] * shown.size, counted, [theme.rank_color(rank) for rank in ranks])
    if expected is not None:
        _draw_formula(figure, axes, counted, expected)
    if shown.size <= MOST_VALUES:
        for rank in ranks:
            top = max(counted[rank], expected[rank] if expected else 0) + 0.02 * highest
            axes.text(
                rank, top, format_bytes(counted[rank]), size=theme.SMALL, color=theme.INK, ha="center", va="bottom"
            )
    _name_axes(axes, shown.size, highest)
    title(figure, headline)
    return figure


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
        axes.set_ylabel("")
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


def _expected(formula: Any, size: int) -> list[int] | None:
    if formula is None:
        return None
    values = formula.nbytes if isinstance(formula, Cost) else formula
    numbers = list(values) if isinstance(values, Sequence) else [values] * size
    if len(numbers) != size or not all(isinstance(n, int | float) and 0 <= n < math.inf for n in numbers):
        raise ValueError(f"formula={formula!r}: must be a Cost, a number of bytes, or one for each of the {size} ranks")
    return numbers


def _verdict(counted: list[int], messages: list[int], expected: list[int] | None, number: list[int] | None) -> str:
    """Whether what was counted is what the closed form says, and if not, where it first differs."""
    if expected is None:
        return ""
    for what, have, want in (("bytes", counted, expected), ("messages", messages, number or messages)):
        for rank, (value, wanted) in enumerate(zip(have, want, strict=True)):
            if value != wanted:
                return f": NOT the closed form; rank {rank} sent {value} {what}, not {wanted:g}"
    return ": counted = closed form on every rank"


def _table(headline: str, counted: list[int], messages: list[int], expected: list[int] | None) -> str:
    rows = [headline, f"{'rank':>4} {'messages':>8} {'bytes':>14}" + (f" {'closed form':>14}" if expected else "")]
    for rank, (nbytes, number) in enumerate(zip(counted, messages, strict=True)):
        rows.append(f"{rank:>4} {number:>8} {nbytes:>14}" + (f" {expected[rank]:>14g}" if expected else ""))
    return "\n".join(rows)


def _draw_formula(figure: Picture, axes: Axes, counted: list[int], expected: list[int]) -> None:
    """A line at the closed form across each bar: black where it is what was counted, red where not."""
    ranks = range(len(counted))
    colors = [theme.INK if counted[rank] == expected[rank] else theme.ALARM for rank in ranks]
    axes.hlines(
        expected, [r - 0.46 for r in ranks], [r + 0.46 for r in ranks], color=colors, linewidth=2.5, gid="closed form"
    )
    bar = {"color": "#AAAAAA", "linewidth": 9, "solid_capstyle": "butt"}
    line_legend(figure, [("counted", bar), ("closed form", {"color": theme.INK, "linewidth": 2.5})])


def _name_axes(axes: Axes, size: int, highest: float) -> None:
    step = 2 ** max(0, round(highest / 5).bit_length() - 1)  # so that ticks are whole in powers of 1024
    while highest / step > 7:
        step *= 2
    axes.yaxis.set_major_locator(MultipleLocator(step))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))
    axes.xaxis.set_major_locator(FixedLocator(range(0, size, -(-size // 16))))
    axes.set_xlabel("rank", size=theme.TEXT, color=theme.INK)
    axes.set_ylabel("bytes sent", size=theme.TEXT, color=theme.INK)
