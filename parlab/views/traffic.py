"""What every rank sent, counted, beside the closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from parlab.views import marks, theme
from parlab.views.lanes import timeline_of
from parlab.views.picture import Picture, plot, title
from parlab.world import Run, Timeline
from parlab.world.collectives import Cost
from parlab.world.units import format_bytes

MOST_VALUES = 12  # bars with their value above them


def bytes_sent(run: Run | Timeline, formula: Cost | Sequence[int] | int | None = None) -> Picture:
    """Draw the bytes that each rank sent, as counted, with the closed form as a line across each bar.

    Args:
        run: what `run` or `simulate` returned, or a timeline.
        formula: what the closed form says: a `Cost` from `world.collectives`, a number a rank, or one number for all.

    Raises:
        ValueError: something else, or not one number a rank.
    """
    shown = timeline_of(run)
    counted = [shown.bytes_sent(rank) for rank in range(shown.size)]
    messages = [shown.messages(rank) for rank in range(shown.size)]
    expected = _expected(formula, shown.size)
    different = [] if expected is None else [rank for rank in range(shown.size) if counted[rank] != expected[rank]]
    headline = _headline(counted, expected, different)
    figure, axes = plot(_table(headline, counted, messages, expected), 4.0, left=1.1, top=0.9)
    colors = [theme.ALARM if rank in different else theme.rank_color(rank) for rank in range(shown.size)]
    ranks = range(shown.size)
    marks.bars(axes, [r - 0.38 for r in ranks], [r + 0.38 for r in ranks], [0] * shown.size, counted, colors)
    highest = max([*counted, *(expected or []), 1])
    axes.set_xlim(-0.6, shown.size - 0.4)
    axes.set_ylim(0, 1.12 * highest)
    if expected is not None:
        axes.hlines(expected, [r - 0.46 for r in ranks], [r + 0.46 for r in ranks], color=theme.INK, linewidth=2.5)
        figure.text(
            0.15 / theme.WIDTH, 1 - 0.5 / 4, "bar: counted    black line: closed form", size=theme.SMALL, va="top"
        )
    if shown.size <= MOST_VALUES:
        for rank in ranks:
            top = max(counted[rank], expected[rank] if expected else 0)
            axes.text(
                rank, top + 0.02 * highest, format_bytes(counted[rank]), size=theme.SMALL, ha="center", va="bottom"
            )
    _byte_axis(axes, highest)
    axes.xaxis.set_major_locator(MaxNLocator(min(16, shown.size), integer=True))
    axes.set_xlabel("rank", size=theme.TEXT, color=theme.INK)
    axes.set_ylabel("bytes sent", size=theme.TEXT, color=theme.INK)
    title(figure, headline)
    return figure


def _expected(formula: Any, size: int) -> list[int] | None:
    if formula is None:
        return None
    values = formula.nbytes if isinstance(formula, Cost) else formula
    if isinstance(values, int | float):
        return [values] * size  # type: ignore[list-item]
    if not isinstance(values, Sequence) or len(values) != size or not all(isinstance(v, int | float) for v in values):
        raise ValueError(f"formula={formula!r}: must be a Cost, a number of bytes, or one for each of the {size} ranks")
    return list(values)


def _headline(counted: list[int], expected: list[int] | None, different: list[int]) -> str:
    total = f"{format_bytes(sum(counted))} sent by {len(counted)} {'rank' if len(counted) == 1 else 'ranks'}"
    if expected is None:
        return total
    if not different:
        return f"{total}: counted = closed form on every rank"
    rank = different[0]
    more = f" ({len(different)} ranks differ)" if len(different) > 1 else ""
    return f"Rank {rank} sent {counted[rank]} bytes; the closed form says {expected[rank]:g}{more}"


def _table(headline: str, counted: list[int], messages: list[int], expected: list[int] | None) -> str:
    rows = [
        f"Bytes sent: {headline}",
        f"{'rank':>4} {'messages':>8} {'counted':>14}" + (f" {'closed form':>14}" if expected else ""),
    ]
    for rank, (count, number) in enumerate(zip(counted, messages, strict=True)):
        rows.append(f"{rank:>4} {number:>8} {count:>14}" + (f" {expected[rank]:>14g}" if expected else ""))
    return "\n".join(rows)


def _byte_axis(axes: Axes, highest: float) -> None:
    unit = next((u for u in (2**30, 2**20, 2**10) if highest >= 2 * u), 1)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 4, 5, 8, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value) if unit > 1 else f"{value:g} B"))
