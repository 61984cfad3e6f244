"""All-reduce algorithms against message size: which one is fastest where, and where their curves cross."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from parlab.views import theme
from parlab.views.all_reduce_clock import STEPS, all_reduce_time, crossing
from parlab.views.marks import text_width
from parlab.views.picture import Picture, inches, line_legend, plot, short, title
from parlab.world import CLASSROOM, Cluster, Run
from parlab.world.units import format_bytes, format_time

SMALLEST, LARGEST = 64, 2**26  # bytes
HEIGHT = 5.6  # inches
ROUNDING = 1e-9  # relative: times that differ by less are equal
POINTS = 81  # of a curve: four a doubling


def all_reduce_times(
    runs: Mapping[str, Mapping[int, Run]] | None = None,
    *,
    size: int | None = None,
    cluster: Cluster | None = None,
    algorithms: Sequence[str] | None = None,
) -> Picture:
    """Draw how long each all-reduce algorithm takes for messages of any size: formulas as curves, runs as dots.

    Args:
        runs: measured runs, `{algorithm: {bytes of the array: run}}`; they are drawn as dots.
        size: number of ranks; None: that of the runs, or 8.
        cluster: the hardware; None: that of the runs, or `CLASSROOM`. The runs are timed on it, not run again.
        algorithms: which to draw; None: those of the runs, or all that fit (hierarchical needs whole nodes, and two).

    Raises:
        ValueError: an unknown algorithm, fewer than 2 ranks, nodes that do not divide, or runs of another size.
    """
    runs = {} if runs is None else runs
    size, cluster = _checked_world(runs, size, cluster)
    chosen = _checked_algorithms(runs, algorithms, size, cluster)
    nbytes = np.geomspace(SMALLEST, LARGEST, POINTS)
    times = {name: all_reduce_time(name, size, nbytes, cluster) for name in chosen}
    wins = winners(times, nbytes, size, cluster)
    dots = {
        name: [(n, run.on(cluster).makespan) for n, run in sorted(measured.items())] for name, measured in runs.items()
    }
    nodes = -(-size // cluster.ranks_per_node)
    where = f"{size} ranks on {cluster.name}" + (
        f", {nodes} nodes" if cluster.intra != cluster.inter and nodes > 1 else ""
    )
    figure, axes = plot(_table(where, wins, dots), HEIGHT, left=1.0, right=0.6, top=1.25)
    for name, time in times.items():
        color, dashes, label = theme.ALGORITHMS[name]
        axes.plot(nbytes, time, color=color, linestyle=dashes, linewidth=2.2, gid=f"formula {name}")
        if dots.get(name):
            axes.plot(
                *zip(*dots[name], strict=True),
                "o",
                color=color,
                markersize=8,
                markeredgecolor=theme.PAPER,
                gid=f"measured {name}",
            )
    _log_axes(axes, times)
    _mark_crossings(axes, wins, size, cluster)
    _legend(figure, chosen, bool(dots))
    title(figure, f"All-reduce among {where}: the fastest depends on the size")
    return figure


def winners(
    times: Mapping[str, np.ndarray], nbytes: np.ndarray, size: int, cluster: Cluster
) -> list[tuple[float, str]]:
    """From which message size on which algorithm is the fastest: (bytes, algorithm), ascending.

    Where two are equally fast, the one that is named first in `times` counts.
    """
    names = list(times)
    table = np.array([times[name] for name in names])  # [algorithms, sizes]
    best = [names[first] for first in np.argmax(table <= table.min(axis=0) * (1 + ROUNDING), axis=0)]
    wins = [(float(nbytes[0]), best[0])]
    for (low, before), (high, after) in pairwise(zip(nbytes, best, strict=True)):
        if before != after:
            wins.append((crossing(before, after, size, float(low), float(high), cluster), after))
    return wins


def _checked_world(runs: Any, size: Any, cluster: Any) -> tuple[int, Cluster]:
    if not isinstance(runs, Mapping) or not all(isinstance(measured, Mapping) for measured in runs.values()):
        raise ValueError(f"runs={runs!r}: must be {{algorithm: {{bytes: run}}}}")
    for nbytes, done in (item for measured in runs.values() for item in measured.items()):
        if not isinstance(nbytes, int) or nbytes < 1:
            raise ValueError(f"runs: {nbytes!r} must be the bytes of the array, at least 1")
        if not isinstance(done, Run):
            raise ValueError(f"runs: {done!r} must be what run() returned")
    measured = [done for by_size in runs.values() for done in by_size.values()]
    if size is None:
        size = measured[0].timeline.size if measured else 8
    if not isinstance(size, int) or size < 2:
        raise ValueError(f"size={size!r}: an all-reduce needs at least 2 ranks to send anything")
    for run in measured:
        if run.timeline.size != size:
            raise ValueError(f"runs: one has {run.timeline.size} ranks, but size={size}")
    if cluster is None:
        cluster = measured[0].cluster if measured else CLASSROOM
    if not isinstance(cluster, Cluster):
        raise ValueError(f"cluster={cluster!r}: must be a Cluster")
    return size, cluster


def _checked_algorithms(runs: Mapping[str, Any], algorithms: Any, size: int, cluster: Cluster) -> list[str]:
    whole_nodes = size % cluster.ranks_per_node == 0 and 1 < cluster.ranks_per_node < size
    if algorithms is None:
        algorithms = list(runs) or [name for name in STEPS if name != "hierarchical" or whole_nodes]
    if not isinstance(algorithms, list | tuple) or not algorithms:
        raise ValueError(f"algorithms={algorithms!r}: must be a list of some of {', '.join(STEPS)}")
    for name in [*algorithms, *runs]:
        if name not in STEPS:
            raise ValueError(f"algorithms: {name!r} is none of {', '.join(STEPS)}")
        if name == "hierarchical" and size % cluster.ranks_per_node:
            raise ValueError(
                f"algorithms: hierarchical needs whole nodes, but size={size} is no multiple of the cluster's "
                f"{cluster.ranks_per_node} ranks a node"
            )
    return list(dict.fromkeys([*algorithms, *runs]))


def _log_axes(axes: Axes, times: Mapping[str, np.ndarray]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(SMALLEST, LARGEST)
    low = min(float(time.min()) for time in times.values())
    high = max(float(time.max()) for time in times.values())
    axes.set_ylim(low / 1.6, high * 1.6)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    axes.xaxis.set_major_locator(FixedLocator([16**k * 64 for k in range(6)]))
    axes.yaxis.set_major_locator(FixedLocator([10**k for k in decades]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: short(format_bytes(nbytes))))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda time, _: short(format_time(time))))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.grid(color=theme.GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("bytes of the array, on every rank", size=theme.TEXT, color=theme.INK)
    axes.set_ylabel("time", size=theme.TEXT, color=theme.INK)


def _mark_crossings(axes: Axes, wins: list[tuple[float, str]], size: int, cluster: Cluster) -> None:
    edges = [*(start for start, _ in wins), LARGEST]
    for number, (start, name) in enumerate(wins):
        color, _, label = theme.ALGORITHMS[name]
        if number:
            time = float(all_reduce_time(name, size, np.array([start]), cluster)[0])
            axes.plot([start], [time], "D", color=theme.INK, markersize=7, gid="crossing")
            axes.annotate(
                format_bytes(start),
                (start, time),
                xytext=(8, -14),
                textcoords="offset points",
                size=theme.TEXT,
                color=theme.INK,
                weight="bold",
            )
        end = edges[number + 1]
        above = axes.get_xaxis_transform()
        axes.fill_between(
            [start, end], 1.0, 1.02, color=color, linewidth=0, transform=above, clip_on=False, gid=f"fastest: {name}"
        )
        text = f"{label} is fastest"
        if text_width(text) / 72 < inches(axes)[0] * math.log(end / start) / math.log(LARGEST / SMALLEST):
            middle = math.sqrt(start * end)
            axes.text(middle, 1.03, text, transform=above, size=theme.SMALL, color=theme.INK, ha="center")


def _legend(figure: Picture, names: list[str], dots: bool) -> None:
    curves = [theme.ALGORITHMS[name] for name in names]
    entries = [(name, {"color": color, "linestyle": dashes, "linewidth": 2.2}) for color, dashes, name in curves]
    if dots:
        entries.append(("measured run", {"color": theme.INK, "marker": "o"}))
    entries.append(("equally fast", {"color": theme.INK, "marker": "D"}))
    line_legend(figure, entries)


def _table(
    where: str,
    wins: list[tuple[float, str]],
    dots: Mapping[str, list[tuple[int, int]]],
) -> str:
    lines = [f"All-reduce among {where}"]
    for number, (start, name) in enumerate(wins):
        since = f"from {format_bytes(start)} on" if number else "for small arrays"
        lines.append(f"{since}, {theme.ALGORITHMS[name].name} is fastest")
    for name, points in dots.items():
        measured = ", ".join(f"{format_bytes(nbytes)} in {format_time(time)}" for nbytes, time in points)
        lines.append(f"measured, {theme.ALGORITHMS[name].name}: {measured}")
    return "\n".join(lines)
