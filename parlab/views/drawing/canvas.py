"""What pictures are drawn on: matplotlib's canvas, which remembers every text, because half of a redraw was letters."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg

EDGE = 4  # pixels around a text, for letters that reach over it
PARTS = 16  # of a pixel: how finely a text is placed
Stamp = tuple[int, int, np.ndarray]  # pixels from its origin to its left and lower edge, and [height, width, RGBA]


class Canvas(FigureCanvasAgg):
    """A canvas that shares its renderer with others of its size, and so the widths of texts that it has measured."""

    def get_renderer(self) -> RendererAgg:
        """The renderer of this size."""
        self.renderer = _renderer(*self.get_width_height(physical=True), self.figure.dpi)
        return self.renderer


class _Renderer(RendererAgg):
    """Draws a text once, and from then on lays its picture down."""

    def draw_text(self, gc: Any, x: float, y: float, s: str, prop: Any, angle: float, *more: Any, **known: Any) -> None:
        (left, right), (top, down) = (divmod(round(place * PARTS), PARTS) for place in (x, y))
        if angle or any(more) or known.get("ismath"):  # seldom
            return super().draw_text(gc, x, y, s, prop, angle, *more, **known)
        width, low, image = _stamp(s, prop.copy(), gc.get_rgb(), gc.get_alpha(), self.dpi, right / PARTS, down / PARTS)
        return self.draw_image(gc, left - width, self.height - top - low, image)


@lru_cache(maxsize=4)
def _renderer(width: int, height: int, dpi: float) -> _Renderer:
    return _Renderer(width, height, dpi)


@lru_cache(maxsize=4096)
def _stamp(text: str, prop: Any, color: Any, alpha: float, dpi: float, right: float, down: float) -> Stamp:
    """`text`, its origin so many parts of a pixel right of and below a corner."""
    width, height, descent = RendererAgg(1, 1, dpi).get_text_width_height_descent(text, prop, False)
    above, low = math.ceil(height - descent) + EDGE, math.ceil(descent) + EDGE
    paper = RendererAgg(math.ceil(width) + 2 * EDGE, above + low, dpi)
    pen = paper.new_gc()
    pen.set_foreground(color)
    pen.set_alpha(alpha)
    paper.draw_text(pen, EDGE + right, above + down, text, prop, 0)
    return EDGE, low, np.array(paper.buffer_rgba())[::-1].copy()
