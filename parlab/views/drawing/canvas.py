"""What pictures are drawn on: matplotlib's canvas, where every text is kept: letters took up to half of a redraw."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg

EDGE = 4  # pixels around a text, for letters that reach over it
PARTS = 64  # of a pixel: how finely FreeType places a text


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
        low, image = _stamp(s, prop.copy(), gc.get_rgb(), gc.get_alpha(), self.dpi, right / PARTS, down / PARTS)
        return self.draw_image(gc, left - EDGE, self.height - top - low, image)


@lru_cache(maxsize=4)
def _renderer(width: int, height: int, dpi: float) -> _Renderer:
    return _Renderer(width, height, dpi)


@lru_cache(maxsize=1024)
def _stamp(
    text: str, prop: Any, color: Any, alpha: float, dpi: float, right: float, down: float
) -> tuple[int, np.ndarray]:
    """`text`, its origin parts of a pixel right of and below a corner: pixels below that, and [height, width, RGBA]."""
    width, height, descent = RendererAgg(1, 1, dpi).get_text_width_height_descent(text, prop, False)
    above, low = math.ceil(height - descent) + EDGE, math.ceil(descent) + EDGE
    paper = RendererAgg(math.ceil(width) + 2 * EDGE, above + low, dpi)
    pen = paper.new_gc()
    pen.set_foreground(color)
    pen.set_alpha(alpha)
    paper.draw_text(pen, EDGE + right, above + down, text, prop, 0)
    return low, np.array(paper.buffer_rgba())[::-1].copy()
