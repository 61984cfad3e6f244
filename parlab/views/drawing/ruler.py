"""An axis drawn by a few artists: matplotlib's own makes ten for each tick, which took a third of a redraw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import IdentityTransform, ScaledTranslation

from parlab.views.drawing import theme

DASH, GAP, THIN = 3.5, 4, 0.8  # points: a tick's length, from the names to what is measured, and of a line
DOWN, TO_THE_LEFT = 3, 0  # matplotlib's markers for ticks


@dataclass(frozen=True)
class Look:
    """How an axis is drawn; see `scale`."""

    size: float
    pad: float
    grid: bool
    line: bool
    dashes: bool
    words: bool


class Ruler(Artist):
    """The line at the bottom or the left of axes, ticks with their names, and what is measured.

    Where its ticks stand and what they are called, matplotlib's axis is asked each time that it is drawn.
    """

    def __init__(self, axis: Axis, look: Look):
        super().__init__()
        self.axis, self.look = axis, look
        self.set_zorder(0.5 if look.grid else 2.5)
        self.drawn: list[Artist] = []

    def get_children(self) -> list[Artist]:
        """What was drawn last."""
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
        """Those between the ends."""
        low, high = sorted(self.axis.get_view_interval())
        every, slack = list(self.axis.get_majorticklocs()), 1e-9 * (high - low)
        names = dict(zip(every, self.axis.get_major_formatter().format_ticks(every), strict=True))
        places = [place for place in every if low - slack <= place <= high + slack]
        return places, [names[place] for place in places]

    def _turned(self, along: Any, across: Any) -> tuple[Any, Any]:
        return (along, across) if self.axis.axis_name == "x" else (across, along)

    def _lines(self, places: Sequence[float]) -> Iterator[Artist]:
        axes, look = self.axis.axes, self.look
        if look.grid:
            ends = [[self._turned(place, 0), self._turned(place, 1)] for place in places]
            yield self._own(LineCollection(ends, colors=theme.GRID, linewidths=THIN), self._across())
        if look.line:
            line = Line2D(*self._turned([0, 1], [0, 0]), color=theme.FAINT, linewidth=THIN, solid_capstyle="projecting")
            yield self._own(line, axes.transAxes)
        if look.dashes:
            mark = {"linestyle": "none", "marker": self._turned(DOWN, TO_THE_LEFT)[0], "markersize": DASH}
            dashes = Line2D(*self._turned(places, [0] * len(places)), color=theme.FAINT, markeredgewidth=THIN, **mark)
            yield self._own(dashes, self._across())

    def _across(self) -> Any:
        """Along the axis its own units, across it parts of the axes."""
        return getattr(self.axis.axes, f"get_{self.axis.axis_name}axis_transform")()

    def _own(self, part: Artist, transform: Any) -> Any:
        part.set_figure(self.axis.axes.figure)
        part.set_transform(transform)
        return part

    def _names(self, places: Sequence[float], names: Sequence[str]) -> Iterator[Text]:
        away = (DASH * self.look.dashes + self.look.pad) / 72  # inches
        inches = self.axis.axes.figure.dpi_scale_trans
        beside = self._across() + ScaledTranslation(*self._turned(0, -away), inches)
        below = self.axis.axis_name == "x"
        align = {"ha": "center", "va": "top"} if below else {"ha": "right", "va": "center_baseline"}
        for place, name in zip(places, names, strict=True):
            if name:
                text = Text(*self._turned(place, 0), name, size=self.look.size, color=theme.INK, **align)
                yield self._own(text, beside)

    def _what(self, names: Sequence[Any]) -> Text:
        """What is measured, beyond the names."""
        axes, gap = self.axis.axes, GAP * self.axis.axes.figure.dpi / 72
        edge = axes.get_window_extent()
        if self.axis.axis_name == "x":
            at = (edge.x0 + edge.x1) / 2, min([edge.y0, *(name.y0 for name in names)]) - gap
            align = {"ha": "center", "va": "top"}
        else:
            at = min([edge.x0, *(name.x0 for name in names)]) - gap, (edge.y0 + edge.y1) / 2
            align = {"ha": "center", "va": "bottom", "rotation": "vertical", "rotation_mode": "anchor"}
        text = Text(*at, self.axis.get_label_text(), size=self.look.size, color=theme.INK, **align)
        return self._own(text, IdentityTransform())
