"""What pictures are drawn on: matplotlib's canvas, where every text is kept: letters took most of a redraw."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg, get_hinting_flag

PARTS = 64  # of a pixel: FreeType's unit


class Canvas(FigureCanvasAgg):
    """A canvas that shares its renderer with others of its size."""

    def get_renderer(self) -> RendererAgg:
        """The renderer of this size."""
        self.renderer = _renderer(*self.get_width_height(physical=True), self.figure.dpi)
        return self.renderer


class _Renderer(RendererAgg):
    """Measures and draws a text once, and from then on lays its picture down, at whole pixels."""

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
    width, height, descent = RendererAgg(1, 1, dpi).get_text_width_height_descent(text, prop, ismath)
    return width, height, descent


@lru_cache(maxsize=1024)
def _stamp(text: str, prop: Any, color: Any, alpha: float, dpi: float, angle: float) -> tuple[int, int, np.ndarray]:
    """`text`: pixels right of its origin to its left edge, and below it to its lower one; and [height, width, RGBA].

    FreeType sets it as a whole, five times as fast as matplotlib's renderer does letter by letter; behind a space,
    because it counts from the first letter's edge, which may lie inside a pixel, and rounds the others' places.
    """
    font = RendererAgg(1, 1, dpi)._prepare_font(prop)  # and those that have the letters which it has not
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
