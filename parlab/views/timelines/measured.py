"""The measured times of all-reduces, beside the computed ones. Only the picture shows the times: the text is the same
on every machine and in every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from matplotlib.ticker import LogLocator

from parlab.arguments import positive, whole
from parlab.views.drawing import theme
from parlab.views.drawing.picture import Picture, line_legend, plot, scale, short_bytes, short_time, write
from parlab.views.widgets.explorer import Explorer, steps
from parlab.world import Link

POINT = {"marker": "o", "linestyle": "none", "markersize": 7, "markeredgecolor": theme.PAPER, "color": theme.ALARM}
CURVE = {"color": theme.INK, "linewidth": 1.5}
Measured = Mapping[int, Mapping[int, float]]


def measured_times(measured: Measured, link: Link, *, ranks: int, nbytes: int) -> Picture:
    """Draw what all-reduces took on `ranks` ranks, beside 2(N − 1)(α + n/N/bandwidth), and look closer at one size.

    Below stands the same as a table: for each size what was computed, what was measured, and their ratio.

    Args:
        measured: by the number of ranks, the seconds by the bytes of the array.
        link: α and the bandwidth.
        ranks, nbytes: which of `measured`.

    Raises:
        ValueError: nothing was measured there, or a time that is not positive.
    """
    whole("ranks", ranks, 2)
    if not isinstance(measured, Mapping) or nbytes not in measured.get(ranks, {}):
        raise ValueError(f"ranks={ranks!r}, nbytes={nbytes!r}: nothing was measured there")
    times = measured[ranks]
    for n, seconds in times.items():
        whole("nbytes", n, 1)
        positive("seconds", seconds, finite=True)
    if not isinstance(link, Link):
        raise ValueError(f"link={link!r:.60}: must be a Link, such as cluster.intra")

    def model(n: float) -> float:
        return 2 * (ranks - 1) * (link.latency + n / ranks / link.bandwidth)

    sizes = sorted(times)
    every = [*times.values(), *map(model, sizes)]
    text = f"all-reduce on {ranks} ranks: {len(sizes)} sizes, {short_bytes(sizes[0])} to {short_bytes(sizes[-1])}"
    text += f", measured\nand 2(N − 1)(α + n/N/bandwidth); marked: {short_bytes(nbytes)}"
    off = f"measured {times[nbytes] / model(nbytes):.1f} times the computed time"
    figure, axes = plot(text, 4.2, f"{ranks} ranks, {short_bytes(nbytes)}: {off}", top=0.85, bottom=0.95)
    rows = [[short_bytes(n), _said(model(n)), _said(times[n]), f"{times[n] / model(n):.1f} ×"] for n in sizes]
    scale(axes.xaxis, log=2, ticks=sizes, says=list(map("\n".join, rows)), size=theme.SMALL)
    write(figure, 0.15, 3.33, "array\ncomputed\nmeasured\nratio")
    ends, ticks = (min(every) / 2, max(every) * 2), LogLocator(subs=(1, 2, 5), numticks=12)
    scale(axes.yaxis, ends=ends, log=10, ticks=ticks, says=_said)
    axes.plot(sizes, [model(n) for n in sizes], **CURVE, gid="computed")
    axes.plot(sizes, [times[n] for n in sizes], **POINT, gid="measured")
    axes.plot([nbytes] * 2, [model(nbytes), times[nbytes]], color=theme.ALARM, linewidth=4, alpha=0.4, zorder=0)
    line_legend(figure, [("measured", POINT), ("2(N − 1)(α + n/N/bandwidth)", CURVE)])
    return figure


def _said(seconds: float) -> str:
    return short_time(round(seconds * 10**12))


def explore_measured_times(measured: Measured, link: Link) -> Explorer:
    """Sliders for `measured_times`: the number of ranks, and the size of the array.

    Raises:
        ValueError: as `measured_times`.
    """
    everywhere = sorted(set.intersection(*(set(times) for times in measured.values()))) if measured else []
    if not everywhere:
        raise ValueError(f"measured={measured!r:.60}: must have a size that was measured on every number of ranks")
    controls = {
        "ranks": steps("ranks", sorted(measured), max(measured)),
        "nbytes": steps("bytes of the array", everywhere, everywhere[0], short_bytes),
    }
    return Explorer("explore_measured_times", controls, partial(measured_times, measured, link))
