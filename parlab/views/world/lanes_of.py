"""One rank in three lanes, of one run or several: computing above communicating, and how much of it is hidden."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes

from parlab.arguments import checked_rank
from parlab.views.engine import marks, theme
from parlab.views.engine.lanes import legend, name_rows, time_axis, timelines_of
from parlab.views.engine.picture import Picture, panel, percent, sheet
from parlab.views.world.compare_timelines import BOTTOM, LINE, TOP
from parlab.views.world.timeline import ENDS, WHOLE, draw_computes, draw_waits, fused, short_of
from parlab.world import Run, Timeline, Transfer

LEFT, RIGHT, LANES = 1.2, 0.35, 3 * 0.4  # inches beside the three lanes, and of them


def lanes_of(
    runs: Run | Timeline | Mapping[str, Run | Timeline],
    rank: int = 0,
    *,
    headline: str | None = None,
) -> Picture:
    """Draw one rank in three lanes: what it computes and waits for, what it sends, what it receives. The messages of a
    collective that follow each other at once are one box.

    Args:
        runs: what `run` returned, or a timeline; or several, by the name that stands above each, on one clock.
        rank: whose lanes.
        headline: what stands above; None: how much of the communication is hidden behind computing.

    Raises:
        ValueError: something else, clocks of different units, or a rank that is not there.
    """
    shown = timelines_of(runs if isinstance(runs, Mapping) and runs else {"": runs}, one_clock=True)
    rank = min(checked_rank(rank, "rank", one.size) for one in shown.values())
    hidden = {name: _hidden(one, rank) for name, one in shown.items()}
    share = {name: percent(both / whole) if whole else "nothing" for name, (both, whole) in hidden.items()}
    said = ", ".join(f"{part} ({name})" if name else part for name, part in share.items())
    headline = headline or f"Rank {rank}: computing hides {said} of its communication"
    lines = [headline]
    for name, one in shown.items():
        takes, both, whole = (one.format(time) for time in (one.makespan, *hidden[name]))
        lines.append(f"{name}{': ' if name else ''}{takes}, communicates for {whole}, {both} of them behind computing")
    figure = sheet(lines, TOP + (LINE + LANES) * len(shown) + BOTTOM, headline)
    end = max(one.makespan for one in shown.values())
    top, kinds = TOP, []
    for name, one in shown.items():
        axes = panel(figure, LEFT, top + LINE, theme.WIDTH - LEFT - RIGHT, LANES)
        if name:
            axes.set_title(f"{name}: {one.format(one.makespan)}", size=theme.TEXT, color=theme.INK, loc="left", pad=5)
        time_axis(axes, one, end, words=name == list(shown)[-1])
        kinds += _draw(axes, one, rank)
        top += LINE + LANES
    legend(figure, kinds)
    return figure


def _draw(axes: Axes, shown: Timeline, rank: int) -> list[str]:
    """The lanes, and the kinds that are drawn in them."""
    name_rows(axes, 3, ["computes", "sends", "receives"])
    kinds = draw_computes(axes, shown, {rank: 0}, WHOLE) + draw_waits(axes, shown, {rank: 0}, WHOLE)
    for lane, (kind, _, rank_of, _) in enumerate(ENDS, start=1):
        busy = joined(t for t in shown.transfers if rank_of(t) == rank)
        texts = [short_of(one.name) for one in busy]
        marks.boxes(axes, f"{kind}s", busy, [lane] * len(busy), WHOLE, theme.KINDS[kind].color, texts)
        kinds += [kind] * bool(busy)
    return kinds


def joined(transfers: Iterable[Transfer]) -> list[Transfer]:
    """Messages by the time when they pass, empty ones left out, those of one collective that follow each other at once
    made one.

    Between two ranks, the second message with a label is of the second collective. Empty ones count, too.
    """
    found: list[Transfer] = []
    seen: Counter[tuple[Any, ...]] = Counter()
    last = 0  # the collective of the box found last
    for t in sorted(transfers, key=lambda t: (t.start, t.end)):
        key = (t.name, str(t.label), t.src, t.dst)
        number = seen[key] if t.label is not None else 0
        seen[key] += 1
        if t.end == t.start:
            continue
        if found and found[-1].name == t.name and t.start <= found[-1].end and number == last:
            found[-1] = found[-1]._replace(end=max(t.end, found[-1].end))
        else:
            found.append(t)
        last = number
    return found


def _hidden(shown: Timeline, rank: int) -> tuple[int, int]:
    """For how long `rank` computes while messages pass, and for how long messages pass."""
    passing = _busy(t for t in shown.transfers if rank in (t.src, t.dst))
    computing = _busy(span for span in shown.computes if span.rank == rank)
    both = sum(max(0, min(a.end, b.end) - max(a.start, b.start)) for a in passing for b in computing)
    return both, sum(span.end - span.start for span in passing)


def _busy(spans: Iterable[Any]) -> list[Any]:
    """When there is one of the spans or more."""
    return fused((marks.Interval(span.start, span.end) for span in spans), lambda last, span: span.start <= last.end)
