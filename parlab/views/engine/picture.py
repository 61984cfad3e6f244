"""`Picture`: the figure that all figure functions return. It does not need pyplot. It has a text with its numbers."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, Locator
from PIL import Image

from parlab.views.engine import theme
from parlab.views.engine.canvas import Canvas, Look, Ruler
from parlab.views.engine.defaults import by_defaults
from parlab.world.units import format_bytes, format_time

BAR = {"linewidth": 9, "solid_capstyle": "butt"}  # a colour in a legend
BOUND = {"color": theme.INK, "linestyle": (0, (4, 2)), "linewidth": 1.6}  # the line of a limit


def curve(color: str, dashes: str) -> dict[str, Any]:
    """The look of a curve, for `axes.plot`. `dashes`: one of `theme.DASHES`, such as "solid".

    Each curve has its own dashes, since some readers do not see its colour.
    """
    return {"color": color, "linestyle": dashes, "linewidth": 2.2}


class Picture(Figure):
    """A matplotlib figure with a text that says what it shows, so that a notebook's stored output holds the numbers.

    The last line of a cell shows it as a picture. The alternative text of that picture is the same text.
    """

    def __init__(self, text: str, width: float, height: float):
        super().__init__(figsize=(width, height), dpi=theme.DPI, facecolor=theme.PAPER)
        Canvas(self)
        self.text_shown = text

    def __repr__(self) -> str:
        return self.text_shown

    __str__ = __repr__

    @by_defaults
    def draw(self, renderer: Any) -> None:
        """As `Figure.draw`."""
        super().draw(renderer)

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        shape = {"width": round(self.get_figwidth() * theme.DPI), "height": round(self.get_figheight() * theme.DPI)}
        return png(self, sharpness=1.5, compress_level=6), {**shape, "alt": self.text_shown}


def png(figure: Figure, sharpness: float = 1, compress_level: int = 1) -> bytes:
    """`figure` as a PNG file; the same figure gives the same bytes. `sharpness`: its pixels for a pixel of the page."""
    return png_of(pixels(figure, sharpness), compress_level)


def pixels(figure: Figure, sharpness: float = 1) -> np.ndarray:  # [height, width, RGBA]
    """The pixels of `figure`; see `png`."""
    figure.set_dpi(sharpness * theme.DPI)
    canvas = Canvas(figure)
    canvas.draw()
    drawn = np.array(canvas.buffer_rgba())
    figure.set_dpi(theme.DPI)
    return drawn


def png_of(drawn: np.ndarray, compress_level: int = 1) -> bytes:
    """A PNG file of opaque pixels `[height, width, RGBA]`.

    Level 1 is for widgets, because their user waits. It uses no filter. Pillow tries five filters on each row, which
    doubles the time. Higher levels are for what a notebook stores: a palette of 128 colours makes a figure 3 times
    smaller, and changes a channel of a pixel by at most 8 of 255.
    """
    if compress_level > 1:
        stored = BytesIO()
        few = Image.fromarray(drawn[:, :, :3]).quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(stored, "png", optimize=True)
        return stored.getvalue()
    height, width, _ = drawn.shape
    rows = np.insert(drawn.reshape(height, -1), 0, 0, axis=1)  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)  # 8 bits of each of red, green, blue, and opacity
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    file = b"\x89PNG\r\n\x1a\n"
    for kind, data in chunks:
        file += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return file


def sheet(text: str | Iterable[str], height: float, headline: str | None = None) -> Picture:
    """An empty picture, as wide as all others, with a headline. A long headline gets smaller letters.

    `text` is a text, or its lines. A headline that is no text is a ValueError.
    """
    if not isinstance(headline, str | None):
        raise ValueError(f"headline={headline!r}: must be a text, or None")
    figure = Picture(text if isinstance(text, str) else "\n".join(text), theme.WIDTH, height)
    if headline:
        written = write(figure, 0.15, 0.12, headline, theme.TITLE, weight="bold", gid="title")
        room, needed = figure.bbox.width - 0.3 * theme.DPI, written.get_window_extent().width
        if needed > room:
            written.set_size(max(theme.TINY, math.floor(10 * theme.TITLE * room / needed) / 10))
            while written.get_window_extent().x1 > figure.bbox.width and written.get_size() > theme.TINY:
                written.set_size(max(theme.TINY, written.get_size() - 0.5))  # letters are of whole pixels
    return figure


def plot(
    text: str | Iterable[str],
    height: float,
    headline: str | None = None,
    *,
    left: float = 0.9,
    right: float = 0.35,
    top: float = 0.75,
    bottom: float = 0.6,
) -> tuple[Picture, Axes]:
    """A picture with a headline, and its one pair of axes, on which `axes.plot`, `axes.bar`, `axes.legend` draw.

    The axes have neither ticks nor labels until `scale` draws them; what `axes.set_xlabel` says is not seen.

    Args:
        text: the picture in words, with all numbers that it shows: a text, or its lines. `repr` is this text.
        height: of the picture, in inches; it is 10 wide.
        headline: what stands above. It gets smaller letters, if it is long; of more than about 150, the rest is cut.
        left, right, top, bottom: margins in inches. (A layout engine would take 50 ms.)

    Raises:
        ValueError: a headline that is no text.
    """
    figure = sheet(text, height, headline)
    return figure, panel(figure, left, top, theme.WIDTH - left - right, height - top - bottom)


def panel(figure: Picture, left: float, top: float, width: float, height: float) -> Axes:
    """Axes, placed in inches from the figure's left and top. `scale` draws their ticks and labels."""
    across, down = figure.get_size_inches()
    axes = figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))
    axes.set_axis_off()
    axes.ticklabel_format(style="plain", useOffset=False)  # no offset: it would be one more text
    return axes


def scale(
    axis: Axis,
    label: str = "",
    *,
    ends: Sequence[float] | None = None,
    log: float | None = None,
    ticks: Locator | Sequence[float] | None = None,
    says: Callable[[float], str] | Sequence[str] | None = None,
    **look: Any,
) -> None:
    """Draw an axis, `axes.xaxis` or `axes.yaxis`. It is drawn together with the figure, with its values of that time.

    For None, matplotlib chooses.

    Args:
        axis: `axes.xaxis` or `axes.yaxis`.
        label: what it measures.
        ends: its first and its last value.
        log: the base of its logarithm.
        ticks: places on the axis.
        says: their names: a list, or a function from a place to its name.
        look: the fields of `Look`: `grid=True` for lines across the axes; `size` and `pad` of the letters, in points;
            `line`, `dashes` and `words`, which are drawn unless False.

    Raises:
        ValueError: no axis, ends that have no logarithm, or another number of names than of ticks.
    """
    if not isinstance(axis, Axis):
        raise ValueError(f"axis={axis!r:.60}: must be axes.xaxis or axes.yaxis")
    if log and ends is not None and min(ends) <= 0:
        raise ValueError(f"ends={ends!r:.60}: a logarithmic axis has ends above 0")
    if ticks is not None and not isinstance(ticks, Locator) and isinstance(says, Sequence) and len(says) != len(ticks):
        raise ValueError(f"says={says!r:.60}: {len(ticks)} ticks need as many names")
    axes, name = axis.axes, axis.axis_name
    if log:
        getattr(axes, f"set_{name}scale")("log", base=log)
    if ends:
        getattr(axes, f"set_{name}lim")(ends)
    if ticks is not None:
        axis.set_major_locator(ticks if isinstance(ticks, Locator) else FixedLocator(ticks))
    if callable(says):
        axis.set_major_formatter(FuncFormatter(lambda value, _: says(value)))
    elif says is not None:
        axis.set_major_formatter(FixedFormatter(says))
    axis.set_label_text(label)
    axes.add_artist(Ruler(axis, Look(**look)))


def write(figure: Picture, left: float, top: float, text: str, size: float = theme.SMALL, **style: Any) -> Text:
    """Words on a figure. `left` and `top` are inches from the figure's corner to the corner of the words."""
    across, down = figure.get_size_inches()
    return figure.text(left / across, 1 - top / down, text, size=size, **{"color": theme.INK, "va": "top", **style})


def line_legend(figure: Picture, entries: Sequence[tuple[str, dict[str, Any]]], y: float = 0.53) -> None:
    """A legend of lines and marks under the title, each (name, look); one without room begins a second row.

    A matplotlib legend takes far longer.
    """
    (width, height), x = figure.get_size_inches(), 0.15
    for name, style in entries:
        sample = 0.08 if "marker" in style else 0.45
        text = write(figure, x + sample + 0.1, y, name, va="center_baseline")
        if text.get_window_extent().x1 > width * theme.DPI:
            text.remove()
            x, y = 0.15, y + 0.22
            text = write(figure, x + sample + 0.1, y, name, va="center_baseline")
        points = [x + sample] if "marker" in style else [x, x + sample]
        figure.add_artist(Line2D([at / width for at in points], [1 - y / height] * len(points), **style))
        x += sample + 0.1 + text.get_window_extent().width / theme.DPI + 0.3


def key(figure: Picture, left: float, middle: float, color: str, text: str) -> None:
    """A colour and its name. `left` and `middle` are inches from the figure's left and top."""
    write(figure, left, middle, "■", theme.TEXT, color=color, va="center")
    write(figure, left + 0.17, middle, text, va="center")


def note(figure: Picture, text: str) -> None:
    """A remark at the right end of the legend's line."""
    write(figure, figure.get_figwidth() - 0.15, 0.44, text, color=theme.FAINT, ha="right")


def inches(axes: Axes) -> tuple[float, float]:
    """Width and height of the axes."""
    (width, height), box = axes.figure.get_size_inches(), axes.get_position()
    return width * box.width, height * box.height


def short(text: str) -> str:
    """A number with its unit, without decimals of zero: `1.00 KiB` is `1 KiB`."""
    number, _, unit = text.partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def round_bytes(nbytes: int) -> str:
    """`200 kB` for 200 000, where the number is whole in units of 1000; else as `format_bytes`."""
    for unit, size in (("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size and nbytes % size == 0:
            return f"{nbytes // size} {unit}"
    return format_bytes(nbytes)


def short_bytes(nbytes: float) -> str:
    """Bytes for an axis, without decimals of zero."""
    return short(format_bytes(nbytes))


def short_time(picoseconds: float) -> str:
    """A time for an axis, without decimals of zero."""
    return short(format_time(picoseconds))


def percents(parts: Mapping[str, float]) -> dict[str, str]:
    """The parts of a whole in whole percent, which add up to 100: the largest rests are rounded up."""
    whole = sum(parts.values())
    exact = {name: 100 * part / whole for name, part in parts.items()}
    down = {name: math.floor(part) for name, part in exact.items()}
    for name in sorted(exact, key=lambda name: down[name] - exact[name])[: 100 - sum(down.values())]:
        down[name] += 1
    return {name: f"{part} %" for name, part in down.items()}


def percent(part: float) -> str:
    """`25 %` for 0.25."""
    return f"{part:.0%}".replace("%", " %")
