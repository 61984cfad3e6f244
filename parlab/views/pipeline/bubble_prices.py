"""Two ways to a smaller bubble, and their prices: idle time, memory and messages, below the schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parlab.arguments import amount, whole
from parlab.pipeline import (
    Costs,
    Schedule,
    ScheduleTimeline,
    interleaved_one_f_one_b,
    one_f_one_b,
    simulate,
    zb_h1,
)
from parlab.views.engine import marks, theme
from parlab.views.engine.explore import Explorer, steps
from parlab.views.engine.lanes import LEFT, lanes_at, legend_of, name_rows
from parlab.views.engine.picture import Picture, panel, sheet, write
from parlab.views.pipeline.panels import LINE, TOP, bars_of_all, draw_bars, lanes_height, legend_entries

Maker = Callable[[int, int], Schedule]
PART, RIGHT = 0.62, 0.35  # of a schedule's usual height; inches at the right of the lanes
GAP, CLOCK, ROW, WIDE = 0.16, 0.62, 0.3, 1.75  # inches: between the lanes, below them, a row of bars, the longest bar
COLUMNS = ("units idle on each rank", "kept on the fullest rank", "messages")
COLORS = ["#0072B2", "#D55E00", "#009E73"]  # of 1F1B, its interleaving and ZB-H1
FRACTIONS = {0.25: "1/4 F", 0.5: "1/2 F", 0.75: "3/4 F", 1: "F", 0: "0", 0.125: "1/8 F", 0.03125: "1/32 F"}


def bubble_prices(
    weight: float = 0.75,
    transfer: float = 1 / 32,
    chunks: int = 2,
    first: Maker = one_f_one_b,
    p: int = 4,
    m: int = 8,
) -> Picture:
    """Draw interleaved 1F1B and ZB-H1 on one clock and, below, what each costs, beside 1F1B.

    F and I of all layers of a rank take 1 each; a chunk takes 1/chunks of that.

    Args:
        weight: W of all layers of a rank; published costs are near 0.72.
        transfer: time of a message; published costs are near 0.03.
        chunks: a rank, for interleaved 1F1B.
        first: 1F1B, a function of (p, m).
        p: ranks.
        m: microbatches, in whole groups of at least p.

    Raises:
        ValueError: a negative time, fewer than 2 ranks or chunks, `first` that is no function, or sizes that do not
            fit.
    """
    amount("weight", weight)
    amount("transfer", transfer)
    whole("p", p, 2)
    if not callable(first):
        raise ValueError(f"first={first!r:.60}: must be a function of (p, m)")
    made = {"1F1B": first(p, m), f"{whole('chunks', chunks, 2)} chunks": interleaved_one_f_one_b(p, m, chunks)}
    made["ZB-H1"] = zb_h1(p, m)
    parts = [1, chunks, 1]
    shown = [
        simulate(one, Costs(1 / v, 1 / v, weight / v, transfer)) for one, v in zip(made.values(), parts, strict=True)
    ]
    idle = [one.makespan - one.busy(0) for one in shown]
    most = [max(one.peak_activations) / v for one, v in zip(shown, parts, strict=True)]  # of all layers of a rank
    sent: list[float] = [len(one.transfers) for one in shown]
    words = ([f"{number:.3g}" for number in idle], [f"{number:g}" for number in most], list(map(str, sent)))
    order = sorted(range(3), key=idle.__getitem__)
    names = list(made)
    others = ", ".join(f"{names[at]} {words[0][at]}" for at in order[1:])
    headline = f"Idle on each rank: {names[order[0]]} {words[0][order[0]]} units, {others}"
    rows = [f"{'':<10}{'makespan':>9}{'idle':>7}{'fullest rank keeps':>20}{'messages':>10}"]
    for name, one, *cells in zip(names, shown, *words, strict=True):
        rows.append(f"{name:<10}{one.makespan:>9.4g}{cells[0]:>7}{cells[1]:>20}{cells[2]:>10}")
    high = lanes_height(p, PART)
    bars_at = TOP + 2 * (LINE + high) + GAP + CLOCK + LINE
    figure = sheet([headline, *rows], bars_at + 3 * ROW + 0.15, headline)
    legend_of(figure, legend_entries(list(made.values())[1:], banded=True))
    _draw_lanes(figure, names, shown, high)
    drawn: tuple[Sequence[float], ...] = (idle, most, sent)
    for column, (title, numbers, said) in enumerate(zip(COLUMNS, drawn, words, strict=True)):
        left = LEFT + 0.2 + column * (WIDE + 0.95)
        write(figure, left, bars_at - 0.22, title, theme.SMALL)
        axes = panel(figure, left, bars_at, WIDE, 3 * ROW)
        axes.set_xlim(0, max(numbers))
        name_rows(axes, 3, [] if column else names, line=False)
        marks.bars(axes, title, 0, numbers, COLORS)
        for row, (number, text) in enumerate(zip(numbers, said, strict=True)):
            marks.word(axes, number + 0.04 * max(numbers), row, text, va="center", weight="bold")
    return figure


def _draw_lanes(figure: Picture, names: list[str], shown: list[ScheduleTimeline], high: float) -> None:
    """Both ways on one clock, with a line where 1F1B would end."""
    end, top = max(one.makespan for one in shown), TOP
    for name, one in zip(names[1:], shown[1:], strict=True):
        way = f"interleaved, {name}" if name != "ZB-H1" else name
        write(figure, 0.15, top - 0.02, f"{way}: {one.makespan:.4g} units", theme.TEXT, weight="bold")
        axes = lanes_at(figure, one, end, top + LINE, high, right=RIGHT, clock=one is shown[-1])
        draw_bars(axes, bars_of_all(one), one.schedule, banded=True)
        axes.axvline(shown[0].makespan, color=theme.INK, linestyle=(0, (4, 2)), linewidth=1.4, clip_on=False)
        top += LINE + high + GAP
    right = theme.WIDTH - RIGHT - (theme.WIDTH - RIGHT - LEFT) * (1 - shown[0].makespan / end)
    write(figure, right + 0.02, TOP - 0.02, f"1F1B: {shown[0].makespan:.4g}", theme.TEXT, ha="right")


def explore_bubble_prices(first: Maker = one_f_one_b) -> Explorer:
    """Sliders for `bubble_prices`: the chunks of a rank, and the times of a transfer and of W, in forwards.

    Raises:
        ValueError: see `bubble_prices`.
    """
    controls = {
        "chunks": steps("chunks a rank", (2, 4), 2),
        "transfer": steps("transfer", (0, 1 / 32, 1 / 8, 1 / 2), 1 / 32, FRACTIONS.__getitem__),
        "weight": steps("for the weights W", (0.25, 0.5, 0.75, 1), 0.75, FRACTIONS.__getitem__),
    }
    return Explorer("explore_bubble_prices", controls, lambda **v: bubble_prices(first=first, **v))
