"""The time of an all-reduce against its size, in plain seconds: a flat part of latency, a slope of bandwidth."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from parlab.arguments import checked
from parlab.views.engine import marks, theme
from parlab.views.engine.arguments import RULES, among
from parlab.views.engine.explore import Explorer, steps
from parlab.views.engine.picture import Picture, curve, line_legend, plot, scale, short_time
from parlab.world import DGX_A100
from parlab.world.units import format_time

RANKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
BANDWIDTH = DGX_A100.inter.bandwidth
LATENCIES = (2.7e-6, 4.0e-6, 9.6e-6, 14e-6)  # NCCL's rings between nodes: LL, LL128, Simple to 2.17 and from 2.18 on
LATENCY = LATENCIES[0]  # small arrays go by LL
SMALLEST, LARGEST = 1e4, 1e8  # bytes
FASTEST, SLOWEST = 5e6, 1e11  # picoseconds


class Way(NamedTuple):
    """An algorithm: its look, its steps, and the bytes that a rank sends, over those of the array."""

    look: theme.Line
    steps: int
    sends: float


def ways(ranks: int) -> dict[str, Way]:
    """The algorithms among `ranks`, a power of two, by their closed forms; the fewest steps first.

    NCCL's double tree goes up and down in parts that follow each other. Each of two trees has half of the array, and a
    rank with children in the one has none in the other: so it sends 2n in about 2 log₂P latencies. Two ranks have no
    children but each other, and send n.

    Source: Thakur et al. 2005 (see `parlab.world.collectives.doubling`); for the tree Sanders, Speck, Träff,
    "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009).
    """
    exchanges, least = ranks.bit_length() - 1, 2 * (ranks - 1) / ranks
    tree = theme.Line("#5C4033", "dotted", "NCCL's double tree, about")
    return {
        "recursive_doubling": Way(theme.ALGORITHMS["recursive_doubling"], exchanges, exchanges),
        "rabenseifner": Way(theme.ALGORITHMS["rabenseifner"], 2 * exchanges, least),
        "tree": Way(tree, 2 * exchanges, 2 if ranks > 2 else 1),
        "ring": Way(theme.ALGORITHMS["ring"], 2 * (ranks - 1), least),
    }


@checked(RULES | {"ranks": partial(among, choices=RANKS)})
def all_reduce_seconds(ranks: int = 64, latency: float = LATENCY) -> Picture:
    """Draw the time of each all-reduce against the bytes of the array, both logarithmic, on equal links of 25 GB/s.

    On the left a curve is flat, at its steps times the latency. On the right it climbs with the bytes that a rank
    sends. A diamond stands where halving and doubling overtakes recursive doubling.

    Args:
        ranks: a power of two from 2 to 1024.
        latency: seconds of a message (α).

    Raises:
        ValueError: other ranks, or a negative latency.

    >>> all_reduce_seconds()
    64 ranks: few steps win up to 100 kB, then few bytes
                                steps    sends      10 kB     100 MB
    recursive doubling              6      6 n    18.6 µs    24.0 ms
    halving and doubling           12   1.97 n    33.2 µs    7.91 ms
    NCCL's double tree, about      12      2 n    33.2 µs    8.03 ms
    ring                          126   1.97 n     341 µs    8.22 ms
    """
    shown, crossing = ways(ranks), crosses_at(ranks, latency)
    headline = f"{ranks} ranks: few steps win up to {_bytes(crossing)}, then few bytes"
    if not SMALLEST < crossing < LARGEST:
        headline = f"{ranks} ranks: {'few steps win at every size' if crossing > SMALLEST else 'few bytes win'}"
    figure, axes = plot([headline, *_table(shown, latency)], 5.2, headline, left=1.0, right=0.4, top=1.05)
    bytes_: Any = {"ends": (SMALLEST, LARGEST), "ticks": [10.0**power for power in range(4, 9)], "says": _bytes}
    scale(axes.xaxis, "bytes of the array, on every rank", log=10, grid=True, **bytes_)
    times = [10.0**power for power in range(7, 12)]
    scale(axes.yaxis, "time", ends=(FASTEST, SLOWEST), log=10, ticks=times, says=short_time, grid=True)
    nbytes = np.geomspace(SMALLEST, LARGEST, 121)
    looks = {name: curve(way.look.color, way.look.dashes) for name, way in shown.items()}
    looks["rabenseifner"] |= {
        "linestyle": "solid",
        "linewidth": 6,
        "zorder": 1.5,
    }  # where the ring is as fast, both are seen
    for name, way in shown.items():
        axes.plot(nbytes, _picoseconds(way, nbytes, latency), gid=name, **looks[name])
    if SMALLEST < crossing < LARGEST:
        meets = _picoseconds(shown["rabenseifner"], crossing, latency)
        diamond: Any = {"markersize": 11, "markerfacecolor": "none", "markeredgewidth": 1.8, "zorder": 5}
        axes.plot([crossing], [meets], "D", color=theme.INK, gid="crossing", **diamond)
    above = max(_picoseconds(way, SMALLEST, latency) for way in shown.values())
    below = min(_picoseconds(way, LARGEST / 5, latency) for way in shown.values())
    marks.word(axes, 1.2 * SMALLEST, max(1.25 * above, FASTEST), "flat: steps · α", ha="left", va="bottom")
    marks.word(axes, LARGEST / 5, below / 1.3, "slope: bytes sent · β", ha="left", va="top")
    line_legend(figure, [(way.look.name, looks[name]) for name, way in shown.items()])
    return figure


def explore_all_reduce_seconds() -> Explorer:
    """Sliders for `all_reduce_seconds`: the ranks, from 4 on, and the latency."""
    controls = {"ranks": steps("ranks", RANKS[1:], 64)}
    labels = [(short_time(round(value * 1e12)), value) for value in LATENCIES]
    controls["latency"] = steps("latency α", labels, LATENCY)
    return Explorer("explore_all_reduce_seconds", controls, all_reduce_seconds)


def crosses_at(ranks: int, latency: float) -> float:
    """The bytes from which on halving and doubling is faster than recursive doubling; infinite for 2 ranks."""
    few_steps, few_bytes = ways(ranks)["recursive_doubling"], ways(ranks)["rabenseifner"]
    saved = few_steps.sends - few_bytes.sends
    return (few_bytes.steps - few_steps.steps) * latency * BANDWIDTH / saved if saved else math.inf


def _picoseconds(way: Way, nbytes: Any, latency: float) -> Any:
    return 1e12 * (way.steps * latency + way.sends * nbytes / BANDWIDTH)


def _bytes(nbytes: float) -> str:
    """Bytes in units of 1000."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.3g} B"


def _table(shown: dict[str, Way], latency: float) -> list[str]:
    rows = [f"{'':25}{'steps':>8}{'sends':>9}" + "".join(f"{name:>11}" for name in ("10 kB", "100 MB"))]
    for way in shown.values():
        times = [format_time(round(_picoseconds(way, nbytes, latency))) for nbytes in (SMALLEST, LARGEST)]
        rows.append(f"{way.look.name:25}{way.steps:8}{f'{way.sends:.3g} n':>9}" + "".join(f"{t:>11}" for t in times))
    return rows
