"""All-reduce algorithms against the size of the array: how much slower than the best each of them is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from parlab.arguments import checked, optional, whole
from parlab.views.all_reduce.clock import STEPS, all_reduce_time, crossing
from parlab.views.arguments import RULES
from parlab.views.drawing import marks, theme
from parlab.views.drawing.marks import text_width
from parlab.views.drawing.picture import Picture, curve, inches, line_legend, plot, scale, short_bytes
from parlab.views.widgets.explorer import BANDWIDTHS, LATENCIES, Explorer, choice, steps
from parlab.world import CLASSROOM, Cluster, Comm, Link, Run, run
from parlab.world.units import format_bytes, format_time

SMALLEST, LARGEST = 64, 2**26  # bytes
HEIGHT = 5.6  # inches
ROUNDING = 1e-9  # relative: times that differ by less are equal
POINTS = 81  # of a curve: four a doubling
ALL = "all"
DIAMOND: dict[str, Any] = {"marker": "D", "markersize": 11, "markerfacecolor": "none", "markeredgewidth": 1.5}
RAN = 2**16  # bytes of the array that is really reduced
Wins = list[tuple[float, str]]  # (bytes, algorithm): the fastest from these bytes on, ascending
MOST_RANKS = 4096  # the time of a curve grows with the ranks
MOST_RUN = 16  # ranks that really run: with more a slider would have to wait
SLOWER, THINNER = 5, 10  # times the latency, and parts of the bandwidth, between nodes, as in the classroom


def ranks(name: str, value: Any) -> None:
    """The rule of an all-reduce's ranks: one alone sends nothing."""
    if whole(name, value, 2) > MOST_RANKS:
        raise ValueError(f"{name}={value!r}: must be at most {MOST_RANKS}")


@checked({"size": optional(ranks), "cluster": optional(RULES["cluster"])})
def all_reduce_times(
    runs: Mapping[str, Mapping[int, Run]] | None = None,
    *,
    size: int | None = None,
    cluster: Cluster | None = None,
    algorithms: Sequence[str] | None = None,
) -> Picture:
    """Draw the time of each all-reduce algorithm over the best one's, for arrays of any size: the best is at 1.

    Curves are formulas, dots are runs.

    Args:
        runs: `{algorithm: {bytes of the array: run}}`; they are drawn as dots.
        size: number of ranks. None: that of the runs, or 8.
        cluster: the hardware. None: that of the runs, or `CLASSROOM`. The runs are timed on it, not run again.
        algorithms: the ones to draw. None: those of the runs, or all that fit; hierarchical needs two or more whole
            nodes.

    Raises:
        ValueError: an unknown algorithm, fewer than 2 ranks, nodes that do not divide, runs of another size, or links
            on which nothing takes time.

    >>> all_reduce_times(size=16)
    All-reduce among 16 ranks on classroom, 2 nodes
    for small arrays, recursive doubling is fastest
    from 15.6 KiB on, hierarchical is fastest
    """
    runs = {} if runs is None else runs
    size, cluster = _checked_world(runs, size, cluster)
    ran = checked_algorithms(list(runs) or None, size, cluster)
    chosen = ran if algorithms is None else checked_algorithms(algorithms, size, cluster)
    chosen += [name for name in runs if name not in chosen]
    dots = {
        name: [(n, run.on(cluster).makespan) for n, run in sorted(ran.items())] for name, ran in runs.items() if ran
    }
    sizes = [n for points in dots.values() for n, _ in points]
    nbytes = np.geomspace(min([SMALLEST, *sizes]), max([LARGEST, *sizes]), POINTS)
    times = {name: all_reduce_time(name, size, nbytes, cluster) for name in chosen}
    best = np.min(list(times.values()), axis=0)  # [sizes]
    if not best.min():
        no_time = "messages take no time on it; give it a latency or a finite bandwidth"
        raise ValueError(f"cluster={cluster.name}: {no_time}")
    wins = fastest_by_size(times, nbytes, size, cluster)
    nodes = -(-size // cluster.ranks_per_node)
    in_nodes = f", {nodes} nodes" if nodes > 1 and cluster.intra != cluster.inter else ""
    where = f"{size} ranks on {cluster.name}{in_nodes}"
    headline = _headline(f"{size} ranks{in_nodes}", wins, _equals(times, wins))
    figure, axes = plot(_table(where, wins, dots), HEIGHT, headline, left=1.0, right=0.6, top=1.25)
    of_bytes: Any = {"ends": (nbytes[0], nbytes[-1]), "ticks": [4 * 16**k for k in range(12)], "says": short_bytes}
    highest = max(float(np.max(time / best)) for time in times.values())
    doublings = [2**k for k in range(math.ceil(math.log2(highest)) + 1)]
    scale(axes.xaxis, "bytes of the array, on every rank", log=2, grid=True, **of_bytes)
    over: Any = {"ends": (0.93, max(highest, 2) * 1.1), "ticks": doublings, "says": lambda ratio: f"{ratio:g}×"}
    scale(axes.yaxis, "time, over the best", log=2, grid=True, **over)
    looks = {name: curve(color, dashes) for name, (color, dashes, _) in theme.ALGORITHMS.items()}
    looks["circulant"] |= {"linewidth": 5, "zorder": 1.5}  # where halving is as fast, it lies on top and both are seen
    for name, time in times.items():
        axes.plot(nbytes, time / best, gid=f"formula {name}", **looks[name])
    for name, points in dots.items():
        below = name == "circulant"  # larger, below the others', as its curve
        dot = {"color": looks[name]["color"], "markeredgecolor": theme.PAPER, "markersize": 13 if below else 8}
        dot["zorder"] = 2.5 if below else 3
        at = np.array([n for n, _ in points])
        fastest = np.min([all_reduce_time(one, size, at, cluster) for one in chosen], axis=0)
        axes.plot(at, np.array([time for _, time in points]) / fastest, "o", gid=f"run {name}", **dot)
    _mark_crossings(axes, [*wins, (float(nbytes[-1]), "")])
    entries: list[tuple[str, dict[str, Any]]] = [(theme.ALGORITHMS[name].name, looks[name]) for name in chosen]
    entries += [("a run", {"color": theme.INK, "marker": "o"})] * bool(sizes)
    line_legend(
        figure, entries + [("equally fast", {"color": theme.INK, **DIAMOND, "markersize": 7})] * (len(wins) > 1)
    )
    return figure


def fastest_by_size(times: Mapping[str, np.ndarray], nbytes: np.ndarray, size: int, cluster: Cluster) -> Wins:
    """The fastest algorithm at each message size. Of two equally fast ones the first in `times` counts."""
    names, table = list(times), np.array(list(times.values()))  # [algorithms, sizes]
    best = [names[first] for first in np.argmax(table <= table.min(axis=0) * (1 + ROUNDING), axis=0)]
    wins = [(float(nbytes[0]), best[0])]
    for (low, before), (high, after) in pairwise(zip(nbytes, best, strict=True)):
        if before != after:
            wins.append((crossing(before, after, size, float(low), float(high), cluster), after))
    return wins


def _checked_world(runs: Any, size: Any, cluster: Any) -> tuple[int, Cluster]:
    if not isinstance(runs, Mapping) or not all(isinstance(by_size, Mapping) for by_size in runs.values()):
        raise ValueError(f"runs={runs!r}: must be {{algorithm: {{bytes: run}}}}")
    for nbytes, done in (item for by_size in runs.values() for item in by_size.items()):
        if not isinstance(nbytes, int) or nbytes < 1:
            raise ValueError(f"runs: {nbytes!r} must be the bytes of the array, at least 1")
        if not isinstance(done, Run):
            raise ValueError(f"runs: {done!r} must be what run() returned")
    ran = [done for by_size in runs.values() for done in by_size.values()]
    if size is None:
        size = ran[0].timeline.size if ran else 8
    ranks("size", size)
    for done in ran:
        if done.timeline.size != size:
            raise ValueError(f"runs: one has {done.timeline.size} ranks, but size={size}")
    if cluster is None:
        cluster = ran[0].cluster if ran else CLASSROOM
    return size, cluster


def checked_algorithms(algorithms: Sequence[str] | None, size: int, cluster: Cluster) -> list[str]:
    """The algorithms to draw. None: all that fit `size` ranks on `cluster`. A ValueError for one that does not fit."""
    inside = cluster.ranks_per_node
    if algorithms is None:
        nodes = size % inside == 0 and 1 < inside < size
        return [name for name in STEPS if name != "hierarchical" or nodes]
    if not isinstance(algorithms, list | tuple) or not algorithms:
        raise ValueError(f"algorithms={algorithms!r}: must be a list of some of {', '.join(STEPS)}")
    for name in algorithms:
        if not isinstance(name, str) or name not in STEPS:
            raise ValueError(f"algorithms: {name!r} is none of {', '.join(STEPS)}")
        if name == "hierarchical" and size % inside:
            has = f"size={size} is no multiple of the cluster's {inside} ranks a node"
            raise ValueError(f"algorithms: hierarchical needs whole nodes, but {has}")
    return list(dict.fromkeys(algorithms))


def _equals(times: Mapping[str, np.ndarray], wins: Wins) -> dict[str, str]:
    """The name of each winner, with those that are as fast as it at every size."""
    return {
        winner: " = ".join(
            [theme.ALGORITHMS[winner].name]
            + [
                theme.ALGORITHMS[name].name
                for name, time in times.items()
                if name != winner and np.allclose(time, times[winner], rtol=ROUNDING, atol=0)
            ]
        )
        for _, winner in wins
    }


def _headline(where: str, wins: Wins, names: Mapping[str, str]) -> str:
    (_, first), *later = wins
    if not later:
        return f"{where}: {names[first]} is fastest"
    if len(later) > 1:
        return f"{where}: the fastest depends on the size"
    ((start, then),) = later
    return f"{where}: {names[first]} wins up to {format_bytes(round(start))}, then {names[then]}"


def _mark_crossings(axes: Axes, wins: Wins) -> None:
    """A diamond where the fastest algorithm changes, and a strip above with its name. `wins` ends at the last size."""
    above, doublings = axes.get_xaxis_transform(), math.log2(wins[-1][0] / wins[0][0])
    for number, ((start, name), (end, _)) in enumerate(pairwise(wins)):
        color, _, label = theme.ALGORITHMS[name]
        if number:
            axes.plot([start], [1], color=theme.INK, gid="crossing", zorder=3.5, clip_on=False, **DIAMOND)
            above_last = 8 + 16 * (number % 2 == 0)  # two crossings may be near to each other
            text = {"xytext": (8, above_last), "textcoords": "offset points", "size": theme.TEXT, "weight": "bold"}
            axes.annotate(format_bytes(round(start)), (start, 1), color=theme.INK, **text)
        strip = {"color": color, "linewidth": 0, "transform": above, "clip_on": False, "gid": f"fastest: {name}"}
        axes.fill_between([start, end], 1.0, 1.02, **strip)
        room = 72 * inches(axes)[0] * math.log2(end / start) / doublings  # points
        words = next((text for text in (f"{label} is fastest", label) if text_width(text) < room), "")
        if words:
            marks.word(axes, math.sqrt(start * end), 1.03, words, transform=above, ha="center", va="baseline")


def _table(where: str, wins: Wins, dots: Mapping[str, list[tuple[int, int]]]) -> str:
    lines = [f"All-reduce among {where}"]
    for number, (start, name) in enumerate(wins):
        since = f"from {format_bytes(round(start))} on" if number else "for small arrays"
        lines.append(f"{since}, {theme.ALGORITHMS[name].name} is fastest")
    for name, points in dots.items():
        computed = ", ".join(f"{format_bytes(nbytes)} in {format_time(time)}" for nbytes, time in points)
        lines.append(f"computed, {theme.ALGORITHMS[name].name}: {computed}")
    return "\n".join(lines)


@checked(RULES)
def collectives(
    nodes: int = 1, ranks_per_node: int = 8, latency: float = 1e-6, bandwidth: float = 10e9, algorithm: str = ALL
) -> Picture:
    """Draw the all-reduce algorithms on a cluster. `explore_collectives` shows this.

    Up to 16 ranks really all-reduce 64 KiB, once for each algorithm. Their times on the cluster are the dots.

    Args:
        nodes: their number; the links between them have 5 times the latency and a tenth of the bandwidth.
        ranks_per_node: ranks in each.
        latency: seconds of a message inside a node (α).
        bandwidth: bytes a second inside a node (1/β).
        algorithm: the one to draw beside the ring; "all": all that fit.

    Raises:
        ValueError: no node, one rank or too many, and see `all_reduce_times`.
    """
    inside, between = Link(latency, bandwidth), Link(SLOWER * latency, bandwidth / THINNER)
    cluster = replace(CLASSROOM, name="this cluster", ranks_per_node=ranks_per_node, intra=inside, inter=between)
    size = nodes * ranks_per_node
    if not 2 <= size <= MOST_RANKS:
        right = f"at least 2 ranks are needed, and at most {MOST_RANKS}"
        raise ValueError(f"nodes={nodes}, ranks_per_node={ranks_per_node}: they have {size}; {right}")
    names = checked_algorithms(None if algorithm == ALL else ["ring", algorithm], size, cluster)
    runs = {name: {RAN: _ran(name, size, ranks_per_node)} for name in names} if size <= MOST_RUN else {}
    return all_reduce_times(runs, size=size, cluster=cluster, algorithms=names)


@lru_cache(maxsize=256)
def _ran(algorithm: str, size: int, ranks_per_node: int) -> Run:
    """A run of an all-reduce of 64 KiB, which can be timed on any cluster."""

    def program(comm: Comm) -> None:
        x = np.zeros(RAN, dtype=np.uint8)
        comm.all_reduce(x, "max", algorithm, ranks_per_node=ranks_per_node if algorithm == "hierarchical" else None)

    return run(program, size)


def explore_collectives() -> Explorer:
    """Sliders for `collectives`: nodes, ranks a node, latency α, bandwidth 1/β, and the algorithm.

    A new latency or bandwidth changes the clock alone, and no rank runs again.
    """
    beside = [(f"{line.name} beside ring", name) for name, line in list(theme.ALGORITHMS.items())[1:]]
    controls = {
        "nodes": steps("nodes", (1, 2, 3, 4, 8), 1),
        "ranks_per_node": steps("ranks a node", range(2, 17), 8),
        "latency": steps("latency α", LATENCIES, 1e-6),
        "bandwidth": steps("bandwidth 1/β", BANDWIDTHS, 10e9),
        "algorithm": choice("algorithm", [ALL, *beside], ALL),
    }
    return Explorer("explore_collectives", controls, collectives)
