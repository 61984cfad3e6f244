"""Bars, words and arrows by the thousand: one matplotlib collection for each, because an object a piece is slow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from parlab.views import theme
from parlab.views.picture import inches

Numbers = Sequence[float]


def bars(
    axes: Axes,
    left: Numbers,
    right: Numbers,
    low: Numbers,
    high: Numbers,
    colors: Sequence[str] | str,
) -> PolyCollection:
    """Rectangles between `left` and `right`, `low` and `high`, all in the units of the axes."""
    return axes.add_collection(
        PolyCollection(_corners(left, right, low, high), facecolors=colors, edgecolors=theme.PAPER, linewidths=0.6),
        autolim=False,
    )


def hatched(
    axes: Axes, left: Numbers, right: Numbers, low: Numbers, high: Numbers, color: str, hatch: str
) -> PathPatch:
    """Rectangles with a pattern: one path with all of them, because a pattern is laid over each path anew."""
    path = Path.make_compound_path_from_polys(_corners(left, right, low, high))
    patch = PathPatch(path, facecolor=color, edgecolor="#B8B8B8", linewidth=0.6, hatch=hatch, hatch_linewidth=0.6)
    return axes.add_artist(patch)  # `add_patch` would measure every corner


def _corners(left: Numbers, right: Numbers, low: Numbers, high: Numbers) -> np.ndarray:
    columns = [(left, low), (right, low), (right, high), (left, high)]
    return np.array(columns, dtype=float).transpose(2, 0, 1)  # [bars, corners, x and y]


def words(
    axes: Axes, x: Numbers, y: Numbers, texts: Sequence[str], colors: Sequence[str] | str, size: float = theme.SMALL
) -> PathCollection:
    """`texts` centred on the points (x, y)."""
    return axes.add_collection(
        PathCollection(
            [_outline(text) for text in texts],
            facecolors=colors,
            edgecolors="none",
            offsets=np.column_stack([x, y]),
            offset_transform=axes.transData,
            transform=Affine2D().scale(size / OUTLINE / 72) + axes.figure.dpi_scale_trans,  # type: ignore[union-attr]
        ),
        autolim=False,
    )


def arrows(
    axes: Axes, tails: Sequence[tuple[float, float]], heads: Sequence[tuple[float, float]], color: str
) -> LineCollection:
    """Thin arrows from `tails` to `heads`."""
    ends = np.stack([np.array(tails, dtype=float), np.array(heads, dtype=float)], axis=1)  # [arrows, ends, x and y]
    lines = axes.add_collection(LineCollection(ends, colors=color, linewidths=1.1, capstyle="butt"), autolim=False)
    scale = np.array(inches(axes)) / [np.ptp(axes.get_xlim()), np.ptp(axes.get_ylim())]
    if axes.yaxis_inverted():
        scale[1] = -scale[1]
    run, rise = ((ends[:, 1] - ends[:, 0]) * scale).T
    points = [Path(HEAD.vertices @ [[c, s], [-s, c]]) for c, s in zip(*_unit(run, rise), strict=True)]
    axes.add_collection(
        PathCollection(
            points,
            facecolors=color,
            edgecolors="none",
            offsets=ends[:, 1],
            offset_transform=axes.transData,
            transform=Affine2D().scale(1 / 72) + axes.figure.dpi_scale_trans,  # type: ignore[union-attr]
        ),
        autolim=False,
    )
    return lines


def _unit(run: np.ndarray, rise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    length = np.hypot(run, rise)
    length[length == 0] = 1
    return run / length, rise / length


HEAD = Path([(0, 0), (-7, 2.6), (-7, -2.6), (0, 0)])  # points; its tip is at the origin
OUTLINE = 10.0  # points of the outlines that are kept


@lru_cache(maxsize=4096)
def _outline(text: str) -> Path:
    """`text` as an outline around the origin; vertically by the digits' height, so that all stand on one line."""
    path = TextPath((0, 0), text, size=OUTLINE)
    return Path(path.vertices - [text_width(text, OUTLINE) / 2, DIGIT_HEIGHT * OUTLINE / 2], path.codes)


@lru_cache(maxsize=4096)
def text_width(text: str, size: float = theme.SMALL) -> float:
    """How wide `text` is, in points."""
    if not text.strip():
        return 0.0
    return float(TextPath((0, 0), text, size=OUTLINE).get_extents().x1) * size / OUTLINE


DIGIT_HEIGHT = 0.73  # of the font's size
