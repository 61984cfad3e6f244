"""A canvas and an axis that are faster than matplotlib's own.

The canvas draws each text once and keeps its pixels, because letters took most of the time of a redraw. An axis
consists of a few artists. Matplotlib makes ten artists for each tick, which took a third of the remaining time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg, get_hinting_flag
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import IdentityTransform, ScaledTranslation

from parlab.views.engine import theme

PARTS = 64  # of a pixel: FreeType's unit
DASH, GAP, THIN = 3.5, 4, 0.8  # points: the length of a tick, from the names to the label, the width of a line
DOWN, TO_THE_LEFT = 3, 0  # matplotlib's markers for ticks


class Canvas(FigureCanvasAgg):
    """A canvas that shares its renderer with others of its size."""

    def get_renderer(self) -> RendererAgg:
        """The renderer of this size."""
        self.renderer = _renderer(*self.get_width_height(physical=True), self.figure.dpi)
        return self.renderer


class _Renderer(RendererAgg):
    """A renderer that measures and draws a text once, and then copies its pixels to whole places."""

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> tuple[float, float, float]:
        return _measured(s, prop.copy(), ismath, self.dpi)

    def draw_text(self, gc: Any, x: float, y: float, s: str, prop: Any, angle: float, *more: Any, **known: Any) -> None:
        if angle not in (0, 90) or any(more) or known.get("ismath"):  # seldom
            return super().draw_text(gc, x, y, s, prop, angle, *more, **known)
        right, below, image = _stamp(s, prop.copy(), gc.get_rgb(), gc.get_alpha(), self.dpi, angle)
        return self.draw_image(gc, round(x) + right, self.height - round(y) - below, image)


@lru_cache(maxsize=4)
def _renderer(width: int, height: int, dpi: float) -> _Renderer:
    return _Renderer(width, height, dpi)


@lru_cache(maxsize=4096)
def _measured(text: str, prop: Any, ismath: Any, dpi: float) -> tuple[float, float, float]:
    return RendererAgg(1, 1, dpi).get_text_width_height_descent(text, prop, ismath)


@lru_cache(maxsize=1024)
def _stamp(text: str, prop: Any, color: Any, alpha: float, dpi: float, angle: float) -> tuple[int, int, np.ndarray]:
    """The picture of `text`, [height, width, RGBA], and the place of its lower left corner.

    The place is in pixels to the right of the text's origin and below it. FreeType draws the whole text at once, five
    times as fast as matplotlib's renderer, which draws letter by letter. A space comes first, because FreeType counts
    from the edge of the first letter, which may lie inside a pixel, and rounds the places of the others.
    """
    font = RendererAgg(1, 1, dpi)._prepare_font(prop)  # with the fonts for letters that it lacks
    font.set_text(f" {text}", 0, flags=get_hinting_flag())
    font.draw_glyphs_to_bitmap(antialiased=True)
    ink = np.array(font.get_image())
    highest = (font.get_width_height()[1] - font.get_descent()) // PARTS + 1  # row, above the origin
    right, below = -round(_measured(" ", prop, False, dpi)[0]), len(ink) - highest
    if angle:
        right, below, ink = below - len(ink), -right, np.rot90(ink)
    image = np.empty((*ink.shape, 4), dtype=np.uint8)
    image[..., :3] = np.round(np.multiply(color[:3], 255))
    image[..., 3] = np.round(ink * alpha)
    return right, below, image[::-1].copy()


@dataclass(frozen=True)
class Look:
    """The look of an axis: the size and the distance of its letters in points, and which of its parts are drawn."""

    size: float = theme.TEXT
    pad: float = 3.5
    grid: bool = False  # lines across the axes, behind all else
    line: bool = True
    dashes: bool = True  # a little line at each tick
    words: bool = True  # the names of the ticks, and the label


class Ruler(Artist):
    """The line at the bottom or the left of axes, the ticks with their names, and the label.

    Each time it is drawn, it asks matplotlib's axis for the places and the names of the ticks.
    """

    def __init__(self, axis: Axis, look: Look):
        super().__init__()
        self.axis, self.look, self.flat = axis, look, axis.axis_name == "x"
        self.set_zorder(0.5 if look.grid else 2.5)
        self.drawn: list[Artist] = []

    def get_children(self) -> list[Artist]:
        """The artists of the last drawing."""
        return self.drawn

    def draw(self, renderer: Any) -> None:
        """Draw the axis as it is now."""
        places, names = self._ticks()
        self.drawn = [*self._lines(places)]
        if self.look.words:
            texts = [*self._names(places, names)]
            self.drawn += [*texts, self._what([text.get_window_extent(renderer) for text in texts])]
        for part in self.drawn:
            part.draw(renderer)

    def _ticks(self) -> tuple[list[float], list[str]]:
        """The places and the names of the ticks between the ends."""
        every, to_scale = list(self.axis.get_majorticklocs()), self.axis.get_transform().transform
        names = self.axis.get_major_formatter().format_ticks(every)
        low, high = sorted(to_scale(self.axis.get_view_interval()))
        seen = (np.array(to_scale(every)) - low) / (high - low)  # 0 to 1 between the ends, but for rounding
        shown = [(place, name) for place, name, at in zip(every, names, seen, strict=True) if -1e-9 <= at <= 1 + 1e-9]
        return [place for place, _ in shown], [name for _, name in shown]

    def _turned(self, along: Any, across: Any) -> tuple[Any, Any]:
        return (along, across) if self.flat else (across, along)

    def _own(self, part: Artist, transform: Any) -> Any:
        part.set_figure(self.axis.axes.figure)
        part.set_transform(transform)
        return part

    def _across(self) -> Any:
        """The transform from the axis's units along it, and from parts of the axes across it."""
        return self.axis.axes.get_xaxis_transform() if self.flat else self.axis.axes.get_yaxis_transform()

    def _lines(self, places: Sequence[float]) -> Iterator[Artist]:
        look, thin = self.look, {"color": theme.FAINT, "linewidth": THIN}
        if look.grid:
            ends = [[self._turned(place, 0), self._turned(place, 1)] for place in places]
            yield self._own(LineCollection(ends, colors=theme.GRID, linewidths=THIN), self._across())
        if look.line:
            line = Line2D(*self._turned([0, 1], [0, 0]), solid_capstyle="projecting", **thin)
            yield self._own(line, self.axis.axes.transAxes)
        if look.dashes:
            mark = {"marker": DOWN if self.flat else TO_THE_LEFT, "markersize": DASH, "markeredgewidth": THIN}
            dashes = Line2D(*self._turned(places, [0] * len(places)), color=theme.FAINT, linestyle="none", **mark)
            yield self._own(dashes, self._across())

    def _names(self, places: Sequence[float], names: Sequence[str]) -> Iterator[Text]:
        away = (DASH * self.look.dashes + self.look.pad) / 72  # inches
        beside = self._across() + ScaledTranslation(*self._turned(0, -away), self.axis.axes.figure.dpi_scale_trans)
        align = {"ha": "center", "va": "top"} if self.flat else {"ha": "right", "va": "center_baseline"}
        for place, name in zip(places, names, strict=True):
            if name:
                text = Text(*self._turned(place, 0), name, size=self.look.size, color=theme.INK, **align)
                yield self._own(text, beside)

    def _what(self, names: Sequence[Any]) -> Text:
        """The label, beyond the names of the ticks."""
        edge, gap = self.axis.axes.get_window_extent(), GAP * self.axis.axes.figure.dpi / 72
        if self.flat:
            at = (edge.x0 + edge.x1) / 2, min([edge.y0, *(name.y0 for name in names)]) - gap
            turn = {"va": "top"}
        else:
            at = min([edge.x0, *(name.x0 for name in names)]) - gap, (edge.y0 + edge.y1) / 2
            turn = {"va": "bottom", "rotation": "vertical", "rotation_mode": "anchor"}
        text = Text(*at, self.axis.get_label_text(), size=self.look.size, color=theme.INK, ha="center", **turn)
        return self._own(text, IdentityTransform())
