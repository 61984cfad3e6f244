"""Clocks of real processes beside computed ones. Only the pictures show measured times: the texts are the same on every
machine and in every run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np
from matplotlib.ticker import LogLocator

from parlab.arguments import positive, whole
from parlab.views.drawing import theme
from parlab.views.drawing.picture import Picture, line_legend, plot, scale, short_bytes, short_time, write
from parlab.views.widgets.explorer import Explorer, steps
from parlab.world import Link, Timeline
from parlab.world.timeline import Span, Transfer, columns_of

CURVE = {"color": theme.INK, "linewidth": 1.5}
PART = {"color": theme.INK, "linewidth": 1.0, "linestyle": (0, (4, 3)), "alpha": 0.7}
POINTS = (
    {"marker": "o", "linestyle": "none", "markersize": 7, "markeredgecolor": theme.PAPER, "color": theme.ALARM},
    {"marker": "s", "linestyle": "none", "markersize": 6, "markeredgecolor": theme.RANKS[0], "color": "none"},
)
FORMULA = "2(P − 1)(α + n/P/bandwidth)"
WALL_CLOCK, BY_HAND = "the wall clock", "message"  # the name of a real clock, and of a message of no collective
Times = Mapping[str, Mapping[int, float]]  # by the name of a library: the seconds by the bytes of the array


def from_first_computation(shown: Timeline) -> Timeline:
    """`shown` from the moment on when a rank first computes. What ended before is left out."""
    first = min((span.start for span in shown.computes), default=0)
    computes = [(s.rank, s.start - first, s.end - first, s.name) for s in shown.computes if s.end > first]
    transfers = [
        (*t[:3], max(0, t.ready - first), max(0, t.start - first), t.end - first, t.name, t.label)
        for t in shown.transfers
        if t.end > first
    ]
    waits = [
        (w.rank, max(0, w.start - first), w.end - first, w.peer, w.name, max(0, w.came - first))
        for w in shown.waits
        if w.end > first
    ]
    return Timeline(
        shown.size,
        shown.makespan - first,
        computes=columns_of(computes, 4),
        transfers=columns_of(transfers, 8),
        waits=columns_of(waits, 6),
        unit=shown.unit,
        cluster=shown.cluster,
    )


def idle_parts(message: Transfer, busy: Iterable[Span]) -> list[tuple[int, int]]:
    """The parts of the message's time that none of the spans `busy` covers."""
    found, start = [], message.start
    for span in sorted(busy, key=lambda span: span.start):
        if start < span.start:
            found.append((start, min(span.start, message.end)))
        start = max(start, span.end)
        if start >= message.end:
            return found
    return [*found, (start, message.end)]


def measured_times(measured: Mapping[int, Times], links: Mapping[int, Link], *, ranks: int, nbytes: int) -> Picture:
    """Draw how long all-reduces took on `ranks` ranks, beside 2(P − 1)(α + n/P/bandwidth), and look closer at one size.

    The two parts of the computed time, latency and bytes, are dashed; the headline has latency's share at that size.
    Below stands the same as a table: for each size the computed and the measured times, and the first one's ratio.

    Args:
        measured: by the number of ranks, one or two libraries by name, the first with the sizes that are shown.
        links: by the number of ranks, α and the bandwidth.
        ranks, nbytes: which of `measured`.

    Raises:
        ValueError: nothing was measured there, or a time that is not positive.
    """
    whole("ranks", ranks, 2)
    times = measured.get(ranks, {}) if isinstance(measured, Mapping) else {}
    if not 1 <= len(times) <= len(POINTS) or not all(nbytes in of for of in times.values()):
        raise ValueError(f"ranks={ranks!r}, nbytes={nbytes!r}: nothing was measured there")
    for n, seconds in (item for of_library in times.values() for item in of_library.items()):
        whole("nbytes", n, 1)
        positive("seconds", seconds, finite=True)
    link = links.get(ranks) if isinstance(links, Mapping) else None
    if not isinstance(link, Link):
        raise ValueError(f"links={links!r:.60}: must have a Link for {ranks} ranks, such as {{{ranks}: cluster.intra}}")

    latency, per_byte = 2 * (ranks - 1) * link.latency, 2 * (ranks - 1) / ranks / link.bandwidth

    def model(n: float) -> float:
        return latency + n * per_byte

    first, *_ = times
    sizes = sorted(times[first])
    every = [*map(model, sizes), *(seconds for of_library in times.values() for seconds in of_library.values())]
    text = f"all-reduce on {ranks} ranks: {len(sizes)} sizes, {short_bytes(sizes[0])} to {short_bytes(sizes[-1])}"
    text += f", {' and '.join(times)}, measured\nand {FORMULA}; marked: {short_bytes(nbytes)}"
    off = f"{first}: {times[first][nbytes] / model(nbytes):.1f} times the computed time"
    headline = f"{ranks} ranks, {short_bytes(nbytes)}. {off}, {100 * latency / model(nbytes):.0f} % of which is latency"
    below = 0.5 + 0.18 * len(times)
    figure, axes = plot(text, 4.4, headline, top=0.85, bottom=0.25 + below)
    rows = [
        [short_bytes(n), _said(model(n)), *(_said(of_library[n]) for of_library in times.values() if n in of_library)]
        for n in sizes
    ]
    scale(axes.xaxis, log=2, ticks=sizes, says=list(map("\n".join, rows)), size=theme.SMALL)
    write(figure, 0.15, 4.23 - below, "\n".join(["array", "computed", *times]))
    ends, ticks = (min(every) / 2, max(every) * 2), LogLocator(subs=(1, 2, 5), numticks=12)
    scale(axes.yaxis, ends=ends, log=10, ticks=ticks, says=_said)
    # The model is a curve on these axes: straight pieces between the sizes would miss it by a fifth.
    curve = np.geomspace(sizes[0], sizes[-1], 101)
    axes.plot(curve, [model(n) for n in curve], **CURVE, gid="computed")
    axes.plot(curve, np.full_like(curve, latency), **PART, gid="latency")
    axes.plot(curve, curve * per_byte, **PART, gid="bytes")
    for y, name in ((latency, "latency"), (sizes[-1] * per_byte, "bytes")):
        if ends[0] < y < ends[1]:
            label = {"xytext": (8, 0), "textcoords": "offset points", "va": "center", "size": theme.SMALL}
            axes.annotate(name, (sizes[-1], y), **label, annotation_clip=False)
    looks = dict(zip(times, POINTS, strict=False))
    for library, of_library in times.items():
        axes.plot(*zip(*sorted(of_library.items()), strict=True), **looks[library], gid=f"measured {library}")
    marked = [model(nbytes), times[first][nbytes]]
    axes.plot([nbytes] * 2, marked, color=theme.ALARM, linewidth=4, alpha=0.4, zorder=0)
    numbers = f"α = {_said(link.latency)}, {short_bytes(round(link.bandwidth))} a second"
    shown = [(f"{library}, measured", look) for library, look in looks.items()]
    line_legend(figure, [*shown, (f"{FORMULA}: {numbers}", CURVE)])
    return figure


def _said(seconds: float) -> str:
    return short_time(round(seconds * 10**12))


def explore_measured_times(measured: Mapping[int, Times], links: Mapping[int, Link]) -> Explorer:
    """Sliders for `measured_times`: the number of ranks, and the size of the array.

    Raises:
        ValueError: as `measured_times`.
    """
    sizes = [set(of_library) for times in measured.values() for of_library in times.values()] if measured else []
    everywhere = sorted(set.intersection(*sizes)) if sizes else []
    if not everywhere:
        raise ValueError(f"measured={measured!r:.60}: must have a size that was measured on every number of ranks")
    controls = {
        "ranks": steps("ranks", sorted(measured), max(measured)),
        "nbytes": steps("bytes of the array", everywhere, everywhere[0], short_bytes),
    }
    return Explorer("explore_measured_times", controls, partial(measured_times, measured, links))
