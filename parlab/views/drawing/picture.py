"""The figure that all figure functions return: drawn without pyplot, shown as a picture, read as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from parlab.views.drawing import theme


class Picture(Figure):
    """A matplotlib figure whose text is what it shows, so that a notebook's stored output holds the numbers.

    As the last line of a cell it is shown as a picture; its text is the picture's alternative text too.
    """

    def __init__(self, text: str, width: float, height: float):
        super().__init__(figsize=(width, height), dpi=theme.DPI, facecolor=theme.PAPER)
        FigureCanvasAgg(self)
        self.text_shown = text

    def __repr__(self) -> str:
        return self.text_shown

    __str__ = __repr__

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        shape = {"width": round(self.get_figwidth() * theme.DPI), "height": round(self.get_figheight() * theme.DPI)}
        return png(self, sharpness=1.5, compress_level=6), {**shape, "alt": self.text_shown}


def png(figure: Figure, sharpness: float = 1, compress_level: int = 1) -> bytes:
    """`figure` as a PNG file: the same bytes for the same figure.

    Args:
        figure: what to draw.
        sharpness: pixels of the file for each pixel on the page.
        compress_level: of zlib. Level 1 takes half the time of `savefig`, for a file a fifth larger.
    """
    return png_of(pixels(figure, sharpness), compress_level)


def pixels(figure: Figure, sharpness: float = 1) -> Image.Image:
    """`figure`, drawn; see `png`."""
    figure.set_dpi(sharpness * theme.DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB")
    figure.set_dpi(theme.DPI)
    return drawn


def png_of(drawn: Any, compress_level: int = 1) -> bytes:
    """A PNG file of an image, or of pixels `[height, width, 3]`."""
    file = BytesIO()
    (drawn if isinstance(drawn, Image.Image) else Image.fromarray(drawn)).save(
        file, "png", compress_level=compress_level
    )
    return file.getvalue()


def plot(
    text: str,
    height: float,
    *,
    width: float = theme.WIDTH,
    left: float = 0.9,
    right: float = 0.35,
    top: float = 0.75,
    bottom: float = 0.6,
) -> tuple[Picture, Axes]:
    """A picture with one pair of axes, placed by its margins: all in inches. No layout engine: they cost 50 ms."""
    figure = Picture(text, width, height)
    box = (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
    return figure, framed(figure, box)


def framed(figure: Picture, box: tuple[float, float, float, float]) -> Axes:
    """Axes with a line at the bottom and the left; `box` is left, bottom, width and height, in parts of the figure."""
    axes = figure.add_axes(box)
    axes.set_facecolor(theme.PAPER)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("bottom", "left"):
        axes.spines[side].set_color(theme.FAINT)
    axes.tick_params(labelsize=theme.TEXT, labelcolor=theme.INK, color=theme.FAINT)
    return axes


def title(figure: Picture, text: str) -> None:
    """What the figure shows, above it; a long one in smaller letters."""
    width, height = figure.get_size_inches()
    written = figure.text(
        0.15 / width, 1 - 0.12 / height, text, size=theme.TITLE, color=theme.INK, va="top", weight="bold"
    )
    written.set_gid("title")
    room = figure.bbox.width - 0.3 * theme.DPI
    needed = written.get_window_extent().width
    if needed > room:
        written.set_size(max(theme.TINY, math.floor(10 * theme.TITLE * room / needed) / 10))


def line_legend(figure: Picture, entries: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Name lines and marks under the title: (name, how it is drawn) each. A matplotlib legend takes far longer."""
    width, height = figure.get_size_inches()
    x, y = 0.15, height - 0.53
    for name, style in entries:
        points = [x + 0.08] if "marker" in style else [x, x + 0.45]
        line = Line2D([at / width for at in points], [y / height] * len(points), **style)
        figure.add_artist(line)
        text = figure.text(
            (points[-1] + 0.1) / width, y / height, name, size=theme.SMALL, color=theme.INK, va="center_baseline"
        )
        x = points[-1] + 0.1 + text.get_window_extent().width / theme.DPI + 0.3


def note(figure: Picture, text: str) -> None:
    """A remark at the right end of the legend's line."""
    width, height = figure.get_size_inches()
    place = {"ha": "right", "va": "top"}
    figure.text(1 - 0.15 / width, 1 - 0.44 / height, text, size=theme.SMALL, color=theme.FAINT, **place)


def inches(axes: Axes) -> tuple[float, float]:
    """Width and height of the axes."""
    (width, height), box = axes.figure.get_size_inches(), axes.get_position()
    return width * box.width, height * box.height


def short(text: str) -> str:
    """A number with its unit, without decimals that are zero: `1.00 KiB` is `1 KiB`."""
    number, _, unit = text.partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"
