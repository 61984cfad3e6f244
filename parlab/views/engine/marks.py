"""Boxes, words and arrows. One matplotlib collection holds all marks of a kind; an object for each mark would be slow.

A box stands on a time axis. It has a `start`, an `end`, a lane y, and two heights: from and to, around the lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.font_manager import FontProperties
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.textpath import TextPath, text_to_path
from matplotlib.transforms import Affine2D

from parlab.views.engine import theme
from parlab.views.engine.picture import inches

Numbers = Sequence[float] | np.ndarray
Each = float | Numbers  # one number for all, or one for each
Points = Sequence[tuple[float, float]]
Height = tuple[float, float]  # from and to, around the middle of a lane
Colors = str | Sequence[str]  # one colour for all, or one for each
Spans = Sequence[Any]  # of objects with a start and an end
Texts = Sequence[Sequence[str]]  # for each box, from the longest to the shortest

BELOW, BEHIND, ABOVE = 0.7, 0.8, 2.2  # drawing order: arrows, hatched boxes, boxes, words
MANY = 500  # hatched boxes: more are drawn without outlines, which would hide the pattern
NARROW = 2  # points of a box that keeps a white edge
OUTLINE = 10.0  # points of the letters whose outlines are kept
DIGIT_HEIGHT = 0.73  # of the font's size
NARROWEST = 0.25  # of the font's size; no letter is narrower on average
HEAD = Path([(0, 0), (-7, 2.6), (-7, -2.6), (0, 0)])  # an arrow's, in points; its tip is at the origin


class Interval(NamedTuple):
    """The start and the end of a box."""

    start: float
    end: float


def rectangles(axes: Axes, name: str, left: Each, right: Each, low: Each, high: Each, colors: Colors) -> None:
    """Filled rectangles, in the units of the axes. One number is for all of them. `name` is the collection's gid."""
    left, right, low, high = np.broadcast_arrays(*map(np.atleast_1d, (left, right, low, high)))
    points = 72 * inches(axes)[0] / np.ptp(axes.get_xlim()) * np.median(np.subtract(right, left))
    gap = 0.6 if points >= NARROW else 0  # a white edge between neighbours; narrow ones would disappear under it
    fills = PolyCollection(_corners(left, right, low, high), facecolors=colors, edgecolors=theme.PAPER, linewidths=gap)
    fills.set_gid(name)
    axes.add_collection(fills, autolim=False)


def bars(axes: Axes, name: str, start: Each, end: Each, colors: Colors, half: float = 0.36) -> None:
    """A horizontal bar in each row y = 0, 1, ..., `half` a row up and down. `start` or `end` is a list."""
    rows = np.arange(np.broadcast(start, end).size)
    rectangles(axes, name, start, end, rows - half, rows + half, colors)


def stacked(axes: Axes, parts: Mapping[str, Numbers], colors: Mapping[str, str], half: float = 0.36) -> None:
    """Stacked `bars`: in each row, the bar of a part begins where that of the part before ends."""
    start: Each = 0
    for name, lengths in parts.items():
        bars(axes, name, start, end := np.add(start, lengths), colors[name], half)
        start = end


def boxes(
    axes: Axes, name: str, spans: Spans, lanes: Numbers, where: Height, colors: Colors, texts: Texts = ()
) -> None:
    """Filled boxes; `name` is the collection's gid. Each box shows the first of its texts that fits."""
    if spans:
        rectangles(axes, name, *_extents(spans, lanes, where), colors)
    if spans and texts:
        fills = [colors] * len(spans) if isinstance(colors, str) else colors
        labels(axes, spans, lanes, where, texts, [theme.text_color(fill) for fill in fills])


def _extents(spans: Spans, lanes: Numbers, where: Height) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    low, high = ([lane + edge for lane in lanes] for edge in where)
    return [span.start for span in spans], [span.end for span in spans], low, high


def _corners(left: Numbers, right: Numbers, low: Numbers, high: Numbers) -> Any:  # [rectangles, 4, x and y]
    return np.array([(left, low), (right, low), (right, high), (left, high)], dtype=float).transpose(2, 0, 1)


def hatched_boxes(axes: Axes, name: str, spans: Spans, lanes: Numbers, where: Height, kind: theme.Kind) -> None:
    """Boxes with a pattern, all in one path, because matplotlib draws a pattern once for each path."""
    if spans:
        path = Path.make_compound_path_from_polys(_corners(*_extents(spans, lanes, where)))
        pattern = {"hatch": kind.hatch, "hatch_linewidth": 0.6, "linewidth": 0.6 if len(spans) < MANY else 0}
        look = {"facecolor": kind.color, "edgecolor": theme.PATTERN, "gid": name, "zorder": BEHIND}
        axes.add_artist(PathPatch(path, **pattern, **look))  # `add_patch` would measure every corner


def frames(
    axes: Axes, name: str, spans: Spans, lanes: Numbers, where: Height, color: str = theme.INK, **style: Any
) -> None:
    """Frames around boxes."""
    if spans:
        look = {"facecolors": "none", "edgecolors": color, "linewidths": 2, "gid": name, **style}
        axes.add_collection(PolyCollection(_corners(*_extents(spans, lanes, where)), **look), autolim=False)


def labels(axes: Axes, spans: Spans, lanes: Numbers, where: Height, texts: Texts, colors: Colors = theme.INK) -> None:
    """Write into each box the first of its texts that fits, or nothing. All letters are small if many texts need it."""
    colors = [colors] * len(spans) if isinstance(colors, str) else colors
    width, height = inches(axes)
    across = 72 * width / np.ptp(axes.get_xlim())  # points
    room_up = 72 * height / np.ptp(axes.get_ylim()) * (where[1] - where[0])
    middle = (where[0] + where[1]) / 2
    fitting = {}
    for size in (theme.SMALL, theme.TINY):
        rooms = [(span.end - span.start) * across - 1.5 if size <= room_up else 0 for span in spans]
        fitting[size] = [_first_fitting(choices, size, room) for choices, room in zip(texts, rooms, strict=True)]
    few = sum(map(bool, fitting[theme.SMALL])) < 0.9 * sum(map(bool, fitting[theme.TINY]))
    size = theme.TINY if few else theme.SMALL
    chosen = [
        ((span.start + span.end) / 2, lane + middle, text, color)
        for span, lane, text, color in zip(spans, lanes, fitting[size], colors, strict=True)
        if text
    ]
    if chosen:
        x, y, words, inks = zip(*chosen, strict=True)
        _write(axes, x, y, words, inks, size)


def _first_fitting(choices: Sequence[str], size: float, room: float) -> str:
    likely = (text for text in choices if NARROWEST * size * len(text) <= room)  # before measuring thousands
    return next((text for text in likely if text_width(text, size) <= room), "")


def beside(axes: Axes, lanes: Numbers, texts: Sequence[str], size: float) -> None:
    """Words at the right ends of lanes, outside the axes."""
    points = 72 * inches(axes)[0]  # across
    x = [1 + (6 + text_width(text, size) / 2) / points for text in texts]
    _write(axes, x, lanes, texts, theme.INK, size, outside=True)


def _write(
    axes: Axes, x: Numbers, y: Numbers, texts: Sequence[str], colors: Colors, size: float, outside: bool = False
) -> None:
    """Words around points; `outside`: x is a part of the axes' width."""
    across = axes.get_yaxis_transform() if outside else axes.transData
    paths, places = [_outline(text) for text in texts], np.column_stack([x, y])
    look = {"facecolors": colors, "zorder": ABOVE, "gid": "words beside" if outside else "words"}
    _stamps(axes, paths, places, across, size / OUTLINE, clip_on=not outside, **look)


def _stamps(axes: Axes, paths: list[Path], places: np.ndarray, transform: Any, points: float, **look: Any) -> None:
    """Filled shapes. A unit of a path is a fixed number of points, so a shape has the same size on every figure."""
    scale = Affine2D().scale(points / 72) + axes.figure.dpi_scale_trans
    where = {"offsets": places, "offset_transform": transform, "transform": scale}
    axes.add_collection(PathCollection(paths, edgecolors="none", **where, **look), autolim=False)


def word(axes: Axes, x: float, y: float, text: str, size: float = theme.SMALL, **style: Any) -> None:
    """One text at a point, in the units of the axes, vertically around it."""
    axes.text(x, y, text, size=size, **{"color": theme.INK, "va": "center", **style})


def arrows(axes: Axes, tails: Points, heads: Points, color: str, zorder: float = BELOW) -> None:
    """Thin arrows from `tails` to `heads`, below all boxes and words if `zorder` is not given."""
    if not tails:
        return
    ends = np.stack([np.array(tails, dtype=float), np.array(heads, dtype=float)], axis=1)  # [arrows, ends, x and y]
    axes.add_collection(LineCollection(ends, colors=color, linewidths=1.1, zorder=zorder, gid="arrows"), autolim=False)
    width, height = inches(axes)
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    run, rise = (ends[:, 1] - ends[:, 0]).T * [[width / (right - left)], [height / (high - low)]]  # in inches
    length = np.maximum(np.hypot(run, rise), 1e-9)
    turns = np.array([[run, rise], [-rise, run]]).transpose(2, 0, 1) / length[:, None, None]  # [arrows, 2, 2]
    tips = [Path(HEAD.vertices @ turn) for turn in turns]
    _stamps(axes, tips, ends[:, 1], axes.transData, 1, facecolors=color, zorder=zorder)


@lru_cache(maxsize=4096)
def _outline(text: str) -> Path:
    """The outline of `text`. The origin is in the middle of a digit's height, so all texts share a baseline."""
    path = TextPath((0, 0), text, size=OUTLINE)
    return Path(path.vertices - [text_width(text, OUTLINE) / 2, DIGIT_HEIGHT * OUTLINE / 2], path.codes)


@lru_cache(maxsize=4096)
def text_width(text: str, size: float = theme.SMALL) -> float:
    """The width of `text` in points."""
    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=OUTLINE), ismath=False)
    return float(width) * size / OUTLINE
