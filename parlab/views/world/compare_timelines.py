"""Several runs in panels on one clock: all ranks, or one of them with computing above communicating."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes

from parlab.arguments import checked_rank
from parlab.views.engine import marks, theme
from parlab.views.engine.lanes import lanes_at, legend, name_rows, ring_around, time_axis, timelines_of
from parlab.views.engine.picture import Picture, panel, percent, sheet, write
from parlab.views.world.timeline import ENDS, SHORT, WHOLE, draw_computes, draw_waits, fused, time_spent
from parlab.world import Run, Span, Timeline, Transfer

TOP, BOTTOM = 0.6, 0.6  # inches above and below the panels
LINE = 0.5  # inches above each panel, for its text
LEFT, RIGHT, LANE = 1.2, 0.35, 0.4  # inches beside one rank's three lanes, and of each


def compare_timelines(
    runs: Mapping[str, Run | Timeline],
    *,
    headline: str | None = None,
    queues: bool = False,
    around: int | None = None,
) -> Picture:
    """Draw runs below each other on one clock, without their messages: a hatched bar says for whom a rank waits, or
    which transfer.

    Args:
        runs: what `run` or `simulate` returned, each under the name that stands above it.
        headline: what stands above all; None: how many.
        queues: draw and count apart the waits for a transfer that has not started, because a port is busy.
        around: the rank of a ring whose lane stands in the middle, between those of its neighbours; its longest work
            bears the time that it takes. None: the lanes go from rank 0 on.

    Raises:
        ValueError: nothing to compare, something else than runs, clocks of different units, or a rank that is not
            there.
    """
    shown = timelines_of(runs, one_clock=True)
    for one in shown.values() if around is not None else ():
        checked_rank(around, "around", one.size)
    figure, kinds = below_each_other(shown, headline, queues=queues, around=around)
    legend(figure, kinds)
    return figure


def below_each_other(
    shown: Mapping[str, Timeline],
    headline: str | None,
    color: Callable[[Span], str] | None = None,
    *,
    queues: bool = False,
    around: int | None = None,
) -> tuple[Picture, list[str]]:
    """The picture of `compare_timelines` without a legend, and the kinds in it; `color` finds a work's colour."""
    texts = {name: f"{name}: {time_spent(one, queues=queues)}" for name, one in shown.items()}
    words = [f"{texts[name]}\n{one!r}" for name, one in shown.items()]
    height = TOP + sum(LINE + _height(one) for one in shown.values()) + BOTTOM
    figure = sheet(words, height, headline or f"{len(shown)} runs on one clock")
    end = max(one.makespan for one in shown.values())
    top, kinds = TOP, []
    for name, one in shown.items():
        top += LINE
        write(figure, 0.15, top - 0.1, texts[name], theme.TEXT, va="baseline")
        ranks = list(range(one.size)) if around is None else ring_around(one, around)
        own = [span for span in one.computes if span.rank == around]
        longest = max(own, key=lambda span: span.end - span.start, default=None)
        axes = lanes_at(figure, one, end, top, _height(one), ranks=ranks, clock=name == list(shown)[-1])
        lane_of = {rank: lane for lane, rank in enumerate(ranks)}
        kinds += draw_computes(axes, one, lane_of, WHOLE, color, longest)
        kinds += draw_waits(axes, one, lane_of, WHOLE, queues=queues)
        for artist in (*axes.artists, *axes.patches, *axes.collections):
            artist.set_clip_on(False)  # a box that ends with the axis has its right edge
        top += _height(one)
    return figure, kinds


def _height(shown: Timeline) -> float:
    return shown.size * min(0.45, max(2.2 / shown.size, min(0.17, 4 / shown.size)))


def lanes_of(
    runs: Run | Timeline | Mapping[str, Run | Timeline],
    rank: int = 0,
    *,
    headline: str | None = None,
    exchanges: Mapping[str, str] | None = None,
) -> Picture:
    """Draw one rank in three lanes: what it computes and waits for, what it sends, what it receives. The messages of a
    collective that follow each other at once are one box.

    Args:
        runs: what `run` returned, or a timeline; or several, by the name that stands above each, on one clock.
        rank: whose lanes.
        headline: what stands above; None: how much of the communication is hidden behind computing.
        exchanges: by the label of messages the short name of their exchange. Then a fourth lane shows these, each from
            its first message to its last.

    Raises:
        ValueError: something else, clocks of different units, or a rank that is not there.
    """
    shown = timelines_of(runs if isinstance(runs, Mapping) and runs else {"": runs}, one_clock=True)
    lanes = (4 if exchanges else 3) * LANE
    rank = min(checked_rank(rank, "rank", one.size) for one in shown.values())
    hidden = {name: _hidden(one, rank) for name, one in shown.items()}
    share = {name: percent(both / whole) if whole else "nothing" for name, (both, whole) in hidden.items()}
    said = ", ".join(f"{part} ({name})" if name else part for name, part in share.items())
    headline = headline or f"Rank {rank}: computing hides {said} of its communication"
    lines = [headline]
    for name, one in shown.items():
        takes, both, whole = (one.format(time) for time in (one.makespan, *hidden[name]))
        lines.append(f"{name}{': ' if name else ''}{takes}, communicates for {whole}, {both} of them behind computing")
    figure = sheet(lines, TOP + (LINE + lanes) * len(shown) + BOTTOM, headline)
    end = max(one.makespan for one in shown.values())
    top, kinds = TOP, []
    for name, one in shown.items():
        axes = panel(figure, LEFT, top + LINE, theme.WIDTH - LEFT - RIGHT, lanes)
        if name:
            axes.set_title(f"{name}: {one.format(one.makespan)}", size=theme.TEXT, color=theme.INK, loc="left", pad=5)
        time_axis(axes, one, end, words=name == list(shown)[-1])
        kinds += _draw(axes, one, rank, exchanges or {})
        top += LINE + lanes
    legend(figure, kinds)
    return figure


def _draw(axes: Axes, shown: Timeline, rank: int, exchanges: Mapping[str, str]) -> list[str]:
    """The lanes, and the kinds that are drawn in them."""
    rows = ["computes", *(["travels"] if exchanges else []), "sends", "receives"]
    name_rows(axes, len(rows), rows)
    if exchanges:
        named = _exchanges(shown, rank, exchanges)
        spans = [marks.Interval(span.start, span.end) for span in named]
        pale = theme.paler(theme.KINDS["receive"].color, 0.7)
        marks.boxes(axes, "exchanges", spans, [1] * len(spans), WHOLE, pale, [[exchanges[t.label]] for t in named])
    kinds = draw_computes(axes, shown, {rank: 0}, WHOLE) + draw_waits(axes, shown, {rank: 0}, WHOLE)
    for lane, (kind, _, rank_of, _) in enumerate(ENDS, start=len(rows) - 2):
        busy = joined(t for t in shown.transfers if rank_of(t) == rank)
        texts = [SHORT.get(one.name, [one.name.replace("_", "-")]) for one in busy]
        marks.boxes(axes, f"{kind}s", busy, [lane] * len(busy), WHOLE, theme.KINDS[kind].color, texts)
        kinds += [kind] * bool(busy)
    return kinds


def _exchanges(shown: Timeline, rank: int, labels: Iterable[str]) -> list[Transfer]:
    """A rank's messages with these labels; those of one label that follow each other are one."""
    own = sorted((t for t in shown.transfers if rank in (t.src, t.dst)), key=lambda t: (t.start, t.end))
    found: list[Transfer] = []
    for t in (t for t in own if t.label in set(labels)):
        if found and found[-1].label == t.label:
            found[-1] = found[-1]._replace(end=max(t.end, found[-1].end))
        else:
            found.append(t)
    return found


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
