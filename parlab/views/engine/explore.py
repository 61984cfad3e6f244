"""A figure function with sliders, for every `explore_*`."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from html import escape
from typing import Any

import ipywidgets as widgets

from parlab.views.engine import theme
from parlab.views.engine.picture import Picture, png
from parlab.views.engine.rules import by_own_rules


class Pictured(widgets.VBox):
    """Controls above the picture of `figure`."""

    figure: Picture

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Beside the controls their picture, which is shown where no kernel moves them: in the book."""
        drawn, shape = self.figure._repr_png_()
        bundle = super()._repr_mimebundle_(**kwargs) | {"image/png": b64encode(drawn).decode()}
        return bundle, {"image/png": shape}


class Explorer(Pictured):
    """Sliders above the picture that `draw` makes of their values; it redraws when one moves.

    While a picture is drawn, the browser waits. Then it sends only the newest value of a slider. So the picture follows
    the hand, and the last picture always has the last value.
    """

    def __init__(self, name: str, controls: Mapping[str, Any], draw: Callable[..., Picture]):
        self.name, self.controls, self.draw = name, dict(controls), by_own_rules(draw)
        self.picture = widgets.Image(format="png", layout=widgets.Layout(max_width=theme.ON_PAGE))
        self.numbers = widgets.HTML()  # the text of the picture, for readers who cannot see it
        self._redraw()
        for control in self.controls.values():
            control.observe(self._redraw, "value")
        grid = widgets.Layout(display="flex", flex_flow="row wrap")
        below = widgets.Accordion([self.numbers], titles=("In words and numbers",), selected_index=None)
        super().__init__([widgets.Box(list(self.controls.values()), layout=grid), self.picture, below])

    def _redraw(self, _: Any = None) -> None:
        self.figure = self.draw(**{name: control.value for name, control in self.controls.items()})
        self.picture.value = png(self.figure)
        self.numbers.value = f"<pre>{escape(repr(self.figure))}</pre>"

    def __repr__(self) -> str:
        return f"{self.name}: {self.figure.text_shown}"


def _control(
    kind: type, description: str, options: Iterable[Any], value: Any, says: Callable[[Any], str] = str
) -> widgets.Widget:
    """A control with `options`: (name, value) pairs, or values, whose names `says` gives."""
    pairs = [one if isinstance(one, tuple) else (says(one), one) for one in options]
    look = {"style": {"description_width": "9.5em"}, "layout": widgets.Layout(width="29em", max_width="100%")}
    return kind(description=description, options=pairs, value=value, **look)


# a slider, a menu, and a button for each of a few options
steps, choice = partial(_control, widgets.SelectionSlider), partial(_control, widgets.Dropdown)
buttons = partial(_control, widgets.ToggleButtons)
