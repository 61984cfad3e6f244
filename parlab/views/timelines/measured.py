"""What was measured, beside what was computed. The times are in the picture alone: its text says what every machine
and every run has in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.ticker import FuncFormatter, LogLocator

from parlab.arguments import positive, whole
from parlab.views.drawing import theme
from parlab.views.drawing.lanes import timeline_of
from parlab.views.drawing.picture import Picture, line_legend, plot, short, title
from parlab.views.timelines.communication import lanes_of
from parlab.views.timelines.panels import compare_timelines
from parlab.views.widgets.explorer import Explorer, steps
from parlab.world import Link, Run, Timeline
from parlab.world.units import format_bytes, format_time

POINT = {"marker": "o", "linestyle": "none", "markersize": 7, "markeredgecolor": theme.PAPER, "color": theme.ALARM}
CURVE = {"color": theme.INK, "linewidth": 1.5}
Measured = Mapping[int, Mapping[int, float]]


def wall_clock(runs: Mapping[str, Run | Timeline], *, headline: str, rank: int | None = None) -> Picture:
    """As `compare_timelines`, or with a `rank` as `lanes_of`, where some of the clocks are real.

    Args:
        runs: by the name that stands above each; `run.wallclock` is what was measured.
        headline: what stands above.
        rank: whose lanes; None: all ranks, without their messages.

    Raises:
        ValueError: something else.
    """
    figure = compare_timelines(runs, headline=headline) if rank is None else lanes_of(runs, rank, headline=headline)
    lines = []
    for name, one in runs.items():
        shown = timeline_of(one)
        sent = sum(shown.bytes_sent(each) for each in range(shown.size))
        lines.append(f"{name}: {shown.size} ranks, {len(shown.transfers)} messages, {format_bytes(sent)}")
    figure.text_shown = "\n".join([headline, *lines])
    return figure


def measured_times(measured: Measured, link: Link, *, ranks: int, nbytes: int) -> Picture:
    """Draw what all-reduces took on `ranks` ranks, beside 2(N − 1)(α + n/N/bandwidth), and look closer at one size.

    Args:
        measured: by the number of ranks, the seconds by the bytes of the array.
        link: α and the bandwidth.
        ranks, nbytes: which of `measured`.

    Raises:
        ValueError: nothing was measured there, or a time that is not positive.
    """
    times = _times(measured, ranks, nbytes)
    if not isinstance(link, Link):
        raise ValueError(f"link={link!r:.60}: must be a Link, such as cluster.intra")

    def model(n: float) -> float:
        return 2 * (ranks - 1) * (link.latency + n / ranks / link.bandwidth)

    sizes = sorted(times)
    text = f"all-reduce on {ranks} ranks: {len(sizes)} sizes, {_bytes(sizes[0])} to {_bytes(sizes[-1])}, measured"
    figure, axes = plot(f"{text}\nand 2(N − 1)(α + n/N/bandwidth); marked: {_bytes(nbytes)}", 3.9, top=0.85)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.plot(sizes, [model(n) for n in sizes], **CURVE, gid="computed")
    axes.plot(sizes, [times[n] for n in sizes], **POINT, gid="measured")
    axes.plot([nbytes] * 2, [model(nbytes), times[nbytes]], color=theme.ALARM, linewidth=4, alpha=0.4, zorder=0)
    every = [*times.values(), *map(model, sizes)]
    axes.set_ylim(min(every) / 2, max(every) * 2)
    axes.set_xticks(sizes, [_bytes(n) for n in sizes], size=theme.SMALL)
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda time, _: short(format_time(round(time * 10**12)))))
    axes.set_xlabel("bytes of the array", size=theme.TEXT, color=theme.INK)
    line_legend(figure, [("measured", POINT), ("2(N − 1)(α + n/N/bandwidth)", CURVE)])
    off = times[nbytes] / model(nbytes)
    title(figure, f"{ranks} ranks, {_bytes(nbytes)}: measured {off:.1f} times the computed time")
    return figure


def explore_measured_times(measured: Measured, link: Link) -> Explorer:
    """Sliders for `measured_times`: the number of ranks, and the size of the array.

    Raises:
        ValueError: as `measured_times`.
    """
    everywhere = sorted(set.intersection(*(set(times) for times in measured.values()))) if measured else []
    if not everywhere:
        raise ValueError(f"measured={measured!r:.60}: must have a size that was measured on every number of ranks")
    controls = {
        "ranks": steps("ranks", [(str(ranks), ranks) for ranks in sorted(measured)], max(measured)),
        "nbytes": steps("bytes of the array", [(_bytes(n), n) for n in everywhere], everywhere[0]),
    }

    def draw(**values: int) -> Picture:
        return measured_times(measured, link, **values)

    return Explorer("explore_measured_times", controls, draw)


def _bytes(n: int) -> str:
    return short(format_bytes(n))


def _times(measured: Any, ranks: int, nbytes: int) -> Mapping[int, float]:
    whole("ranks", ranks, 2)
    if not isinstance(measured, Mapping) or nbytes not in measured.get(ranks, {}):
        raise ValueError(f"ranks={ranks!r}, nbytes={nbytes!r}: nothing was measured there")
    times: Mapping[int, float] = measured[ranks]
    for n, seconds in times.items():
        whole("nbytes", n, 1)
        positive("seconds", seconds, finite=True)
    return times
