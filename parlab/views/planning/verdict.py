"""How sure a plan is: the best layout of Llama 3's step at each usable memory, and under other assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from parlab.arguments import Rule, checked, flag, one_of, positive
from parlab.plan import H100, LLAMA_3, LLAMA_405B, Estimate, Layout, Plans, estimate, search, validation
from parlab.plan.arguments import fraction
from parlab.views.drawing import marks, theme
from parlab.views.drawing.picture import BAR, BOUND, Picture, line_legend, percent, plot, scale, write
from parlab.views.planning.bills import short_name
from parlab.views.widgets.explorer import Explorer, choice, steps
from parlab.world import DGX_H100

STEP: dict[str, Any] = {"batch": 2048, "sequence": 8192}
RANKS = 16384
META = Layout(dp=128, pp=16, tp=8, chunks=8, zero=2, schedule="looped_bfs", sequence_parallel=True)
FITS = {"color": theme.RANKS[0], "marker": "o", "markersize": 4, "linestyle": "none", "markeredgewidth": 0}
OUT = {"color": "#808080", "marker": "o", "markersize": 4, "linestyle": "none", "markeredgewidth": 0}
WINNER = {"color": theme.RANKS[5], "marker": "*", "markersize": 23, "linestyle": "none", "markeredgecolor": theme.INK}
MARK = {"color": theme.INK, "marker": "D", "markersize": 7, "linestyle": "none", "markeredgecolor": theme.PAPER}
GIB = 2**30
NEAR = (44.0, 92.0)  # GiB that are drawn
FASTEST, SLOWEST = 0.89, 1.4  # of Llama 3's time that are drawn
BAND = H100.usable or (72.0, 79.6)
USABLE = 74.5  # GiB: 80 GB, our assumption; an H100 reports 79.6
LIMITS = (72.0, 73.0, 74.0, 74.5, 75.0, 76.0, 77.0, 78.0, 79.0, 79.6)
MESHES = {  # the best ones, with the number of their colours, from 8 on darker; others have the seventh
    "dp 128 pp 16 tp 8": 0,
    "dp 256 pp 8 tp 8": 1,
    "dp 256 pp 4 tp 16": 2,
    "dp 64 pp 32 tp 8": 4,
    "dp 64 pp 16 cp 4 tp 4": 5,
    "dp 128 pp 8 cp 2 tp 8": 3,
    "dp 128 pp 8 cp 4 tp 4": 7,
    "dp 512 pp 4 tp 8": 10,
    "dp 256 pp 4 cp 4 tp 4": 13,
}
MEASURED_MEMORY = ("torchtitan, memory", "torchtitan, table 6 (pp 8)")  # published rows, the second by a pipeline
ROWS = 201  # of the map
SMALL = 0.08  # of the map: smaller areas have no words
WAITS = {  # names of what nothing hides, and its kinds of traffic
    "nothing": frozenset[str](),
    "tp": frozenset({"tp"}),
    "cp": frozenset({"cp"}),
    "pp": frozenset({"pp"}),
    "dp": frozenset({"dp"}),
    "all but tp": frozenset({"cp", "pp", "dp"}),  # Megatron, unless asked
}
ASSUMED: dict[str, Rule] = {
    "products": fraction,
    "links": fraction,
    "waits": lambda name, value: one_of(name, value, tuple(WAITS)),
    "cut_sequences": flag,
    "gathers_once": flag,
}
MEASURED = {"color": theme.RANKS[5], "marker": "<", "markersize": 8, "linestyle": "none", "markeredgewidth": 0}


@checked(ASSUMED | {"usable": positive, "planned": positive})
def verdict(
    usable: float = USABLE,
    products: float = 0.54,
    planned: float = 1.0,
    cut_sequences: bool = False,
    *,
    links: float = 0.6,
    waits: str = "nothing",
    gathers_once: bool = False,
) -> Picture:
    """Draw the layouts of Llama 3 405B near the limit, and the best of those that fit. `explore_verdict` shows this.

    The band of usable memory has a colour for each layout that is the best somewhere in it.

    Args:
        usable: GiB of a device that tensors may fill.
        products: the part of the peak that products reach.
        planned: all layouts hold so many times the bytes of their plans.
        cut_sequences: layouts with context parallelism, too.
        links: the part of the data sheet that links between nodes reach.
        waits: the traffic that nothing hides: nothing, tp, cp, pp, dp, or all but tp.
        gathers_once: breadth-first, ZeRO-3 gathers a chunk's weights once; else for each microbatch.

    Raises:
        ValueError: a number that is not greater than 0, a part of more than 1, or unknown traffic.
    """
    plans = _plans(products, cut_sequences, links, waits, gathers_once)
    first = plans.flips(usable / planned * GIB, usable / planned * GIB)
    if not first:
        least = planned * plans.bytes.min() / GIB
        raise ValueError(f"usable={usable!r}: nothing fits; the leanest needs {least:.1f} GiB")
    best, meta = first[0], estimate(**plans.asked, layout=META)
    spans = _spans(plans, planned)
    headline = f"{usable:g} GiB usable: {mesh_name(best.layout)}, {best.total_seconds:.2f} s"
    ahead = 1 - best.total_seconds / meta.total_seconds
    if mesh_name(best.layout) == mesh_name(META):
        headline += ": Llama 3's mesh"
    else:
        headline += f", {percent(abs(ahead))} {'faster' if ahead > 0 else 'slower'} than Llama 3's layout"
    told = [f"  {s.start:.1f} to {s.stop:.1f} GiB {s.best.total_seconds:.2f} s  {s.best.layout}" for s in spans]
    asked = f"products at {products:g}, {planned:g} × the planned memory, links at {links:g}, waited for: {waits}"
    asked += ", ZeRO-3 gathers once a chunk" * gathers_once
    text = [headline, asked, str(best.layout), f"Llama 3's layout: {meta.total_seconds:.2f} s", "in the band:", *told]
    figure, axes = plot(text, 4.8, headline, top=1.05)
    x, y = planned * plans.bytes / GIB, plans.seconds
    least = min(FASTEST * meta.total_seconds, 0.97 * best.total_seconds)  # the same wherever usable memory ends
    most = max(SLOWEST * meta.total_seconds, 1.1 * best.total_seconds)
    bands = f"bands: {BAND[0]:g} to {BAND[1]:g}, what may be usable"
    scale(axes.xaxis, f"GiB of the fullest rank; {bands}", ends=NEAR, ticks=range(45, 95, 5))
    scale(axes.yaxis, "seconds a step", ends=(least, most))
    near = (x >= NEAR[0]) & (x <= NEAR[1]) & (y <= most)
    for name, part, look in (("fits", x <= usable, FITS), ("too large", x > usable, OUT)):
        axes.plot(x[near & part], y[near & part], gid=name, **look)
    for number, span in enumerate(spans):
        axes.axvspan(
            span.start, span.stop, color=pale(mesh_name(span.best.layout)), linewidth=0, zorder=0, gid=f"span {number}"
        )
    axes.axvline(usable, gid="device", **BOUND)
    mark = MARK | {"markersize": 5 if best.layout == META else 7}  # on the star it leaves the star to be seen
    axes.plot([planned * meta.total_bytes / GIB], [meta.total_seconds], gid="Llama 3", zorder=7, **mark)
    at = planned * best.total_bytes / GIB
    axes.plot([max(at, NEAR[0])], [best.total_seconds], gid="winner", zorder=6, **WINNER)
    entries = [
        ("fits", FITS),
        ("does not", OUT),
        ("the best", WINNER | {"markersize": 11}),
        ("Llama 3's", MARK),
        ("usable", BOUND),
    ]
    line_legend(figure, entries)
    here = dict.fromkeys(mesh_name(span.best.layout) for span in spans)
    line_legend(figure, [(f"best: {mesh}", {"color": pale(mesh), **BAR}) for mesh in here], 0.77)
    return figure


class _Part(NamedTuple):
    """GiB of usable memory from `start` to `stop`, in which one layout is the best."""

    start: float
    stop: float
    best: Estimate


def _spans(plans: Plans, planned: float = 1.0) -> list[_Part]:
    """The band of usable memory in parts, one for each best layout, if all hold `planned` times their plans."""
    low, high = BAND
    found = plans.flips(low / planned * GIB, high / planned * GIB)
    starts = [low, *(planned * e.total_bytes / GIB for e in found[1:])]
    return [_Part(start, stop, best) for start, stop, best in zip(starts, [*starts[1:], high], found, strict=True)]


def mesh_name(layout: Layout) -> str:
    """The sizes of a layout's mesh in short."""
    return short_name(layout.but(chunks=1, zero=1, schedule="1f1b")).removesuffix(" ZeRO-1")


def pale(mesh: str) -> str:
    """The colour of a mesh in the band. Llama 3's is blue."""
    number = MESHES.get(mesh, 6)
    return theme.paler(theme.rank_color(number), 0.65 if number < 8 else 0.45)


@lru_cache(maxsize=64)
def _plans(
    products: float, cut_sequences: bool, links: float = 0.6, waits: str = "nothing", gathers_once: bool = False
) -> Plans:
    """A search, kept for the next slider: another limit of memory needs no new one."""
    fixed: dict[str, Any] = {"microbatch": 1, "sequence_parallel": True, "recompute": "none"}
    fixed |= {} if cut_sequences else {"cp": 1}
    fixed["hardware"] = H100.but(products=products, inter=links)
    hides = frozenset(LLAMA_3.hides) - WAITS[waits]
    fixed["software"] = LLAMA_3.but(hides=hides, gathers_once=gathers_once, sends_by_group=False)
    return search(LLAMA_405B, DGX_H100, RANKS, **STEP, **fixed)


def explore_verdict(*names: str) -> Explorer:
    """Sliders for `verdict`: usable memory, the planner's error of memory, and the other assumptions.

    Args:
        names: the arguments of `verdict` that get a slider. None: all.

    Raises:
        ValueError: an argument that `verdict` does not have.
    """
    controls = {
        "usable": steps("usable GiB", [64, 68, 70, *LIMITS, 82, 86, 90], USABLE),
        "planned": steps("held / planned", [0.9, 0.92, 0.94, 0.96, 0.98, 1.0, 1.02, 1.04, 1.06, 1.08, 1.1], 1.0),
        "products": steps("products reach", [0.5, 0.54, 0.58, 0.6, 0.65, 0.7, 0.75, 0.79], 0.54),
        "links": steps("links reach", [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], 0.6),
        "waits": choice("waited for", list(WAITS), "nothing"),
        "cut_sequences": choice("allow cp", [("no", False), ("yes", True)], False),
        "gathers_once": choice("ZeRO-3 gathers", [("each microbatch", False), ("once a chunk", True)], False),
    }
    for name in names:
        one_of("names", name, tuple(controls))
    return Explorer("explore_verdict", {name: controls[name] for name in names or controls}, verdict)


def best_as_planned(
    products: float = 0.54,
    cut_sequences: bool = False,
    links: float = 0.6,
    waits: str = "nothing",
    gathers_once: bool = False,
) -> Estimate:
    """The best layout of 74.5 usable GiB under assumptions, which are `verdict`'s arguments."""
    return _plans(products, cut_sequences, links, waits, gathers_once).flips(USABLE * GIB, USABLE * GIB)[0]


@checked(ASSUMED | {"least": positive, "most": positive})
def verdict_shares(
    products: float = 0.54,
    least: float = 0.9,
    most: float = 1.1,
    cut_sequences: bool = False,
    *,
    links: float = 0.6,
    waits: str = "nothing",
    gathers_once: bool = False,
) -> dict[str, float]:
    """The part of `verdict_map` in which each mesh is the best, the largest first.

    It has the arguments of the map, and `links`, `waits` and `gathers_once` of `verdict`.

    >>> {mesh: f"{share:.0%}" for mesh, share in verdict_shares().items()}
    {'dp 256 pp 8 tp 8': '43%', 'dp 128 pp 16 tp 8': '40%', 'dp 256 pp 4 tp 16': '17%'}
    """
    _, rows = _rows(_plans(products, cut_sequences, links, waits, gathers_once), least, most)
    return _shares(rows)


@checked({"products": fraction, "least": positive, "most": positive, "cut_sequences": flag})
def verdict_map(products: float = 0.54, least: float = 0.9, most: float = 1.1, cut_sequences: bool = False) -> Picture:
    """Draw which mesh is the best at each usable memory, if layouts hold `least` to `most` times their plans.

    A diamond stands where 74.5 GiB are usable and layouts hold what was planned. At the right stand published
    measurements of memory over their plans, which no constant was chosen on; those by a pipeline lie above the map.

    Args:
        products: the part of the peak that products reach.
        least, most: bytes held over bytes planned, the ends of the axis.
        cut_sequences: layouts with context parallelism, too.

    Raises:
        ValueError: a bad number, or ends in the wrong order.
    """
    plans = _plans(products, cut_sequences)
    errors, rows = _rows(plans, least, most)
    shares = _shares(rows)
    as_planned = _spans(plans)
    first = mesh_name(next(span for span in as_planned if span.stop > USABLE).best.layout)
    end = max(span.stop for span in as_planned if mesh_name(span.best.layout) == first)
    name = "Llama 3's mesh" if first == mesh_name(META) else first
    said = f"If layouts hold what was planned, {name} is the best up to {end:.1f} GiB"
    at = [f"held {error:g} × planned: " + _told(_spans(plans, error)) for error in (least, (least + most) / 2, most)]
    without, through = (
        sorted(row.published / row.predicted for row in validation() if row.family == family)
        for family in MEASURED_MEMORY
    )
    dots = "measured over planned: " + ", ".join(f"{x:.2f}" for x in without)
    above = f"{through[0]:.2f} to {through[-1]:.2f}"
    figure, axes = plot([said, *at, f"{dots}; with a pipeline {above}"], 4.6, said, left=1.0, right=1.9, top=0.85)
    label = f"usable GiB, {BAND[0]:g} to {BAND[1]:g}"
    scale(axes.xaxis, label, ends=BAND, ticks=range(73, 80), says="{:g}".format, dashes=False)
    ticks = np.linspace(least, most, 5)
    scale(axes.yaxis, "bytes held / bytes planned", ends=(least, most), ticks=ticks, says="{:g}".format, dashes=False)
    for name, share in shares.items():
        _draw_mesh(axes, name, pale(name), errors, rows, share)
    if least <= 1 <= most:
        axes.plot([USABLE], [1], gid="asked", zorder=7, **MARK)
        marks.word(axes, USABLE + 0.12, 1, f"as planned, {USABLE:g} GiB", ha="left", zorder=7)
    shown = [x for x in without if least <= x <= most]
    axes.plot([BAND[1] + 0.2] * len(shown), shown, gid="measured", clip_on=False, **MEASURED)
    entries = [(f"best: {name}", {"color": pale(name), **BAR}) for name in shares]
    line_legend(figure, entries)
    written = f"▴ above the map,\n{above}: measured,\n405B by a pipeline\n\n"
    written += "◂ measured, without\na pipeline: 8B four\ntimes, 70B once"
    write(figure, theme.WIDTH - 1.62, 0.9, written, theme.SMALL, color=theme.RANKS[5], linespacing=1.3)
    return figure


def _rows(plans: Plans, least: float, most: float) -> tuple[np.ndarray, list[list[_Part]]]:
    """Errors of the planner's memory from `least` to `most`, and for each the band of usable memory."""
    if least >= most:
        raise ValueError(f"least={least!r}: must be less than most={most!r}")
    errors = np.linspace(least, most, ROWS)
    return errors, [_spans(plans, error) for error in errors]


def _told(spans: Sequence[_Part]) -> str:
    return ", ".join(f"{mesh_name(s.best.layout)} from {s.start:.1f} GiB ({s.best.total_seconds:.2f} s)" for s in spans)


def _shares(rows: Sequence[Sequence[_Part]]) -> dict[str, float]:
    """The part of the map in which each mesh is the best, the largest first."""
    widths: dict[str, float] = {}
    for row in rows:
        for span in row:
            name = mesh_name(span.best.layout)
            widths[name] = widths.get(name, 0.0) + (span.stop - span.start) / (BAND[1] - BAND[0]) / len(rows)
    return dict(sorted(widths.items(), key=lambda item: -item[1]))


def _draw_mesh(
    axes: Axes, name: str, color: str, errors: np.ndarray, rows: Sequence[Sequence[_Part]], share: float
) -> None:
    """The area in which a mesh is the best, and its step's seconds in the middle."""
    ends = [[(s.start, s.stop) for s in row if mesh_name(s.best.layout) == name] for row in rows]
    left, right = np.array([(row[0][0], row[-1][1]) if row else (np.nan, np.nan) for row in ends]).T
    axes.fill_betweenx(errors, left, right, color=color, linewidth=0, gid=name)
    if share < SMALL:
        return
    width = np.nan_to_num(right - left)
    row = int(np.abs(errors - np.average(errors, weights=width)).argmin())  # of the centre of the area
    best = max((s for s in rows[row] if mesh_name(s.best.layout) == name), key=lambda s: s.stop - s.start).best
    words = f"{name}\n{best.total_seconds:.2f} s"
    marks.word(axes, float(left[row] + right[row]) / 2, errors[row], words, ha="center", linespacing=1.3)
