"""A figure function with sliders: `explore` for one of your own, and `Explorer` for every `explore_*`."""

from __future__ import annotations

import inspect
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from html import escape
from numbers import Real
from typing import Any

import ipywidgets as widgets
import numpy as np

from parlab.views.engine import theme
from parlab.views.engine.defaults import by_defaults
from parlab.views.engine.picture import Picture, png


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
        self.name, self.controls, self.draw = name, dict(controls), by_defaults(draw)
        self.picture = widgets.Image(format="png", layout=widgets.Layout(max_width=theme.ON_PAGE))
        self.numbers = widgets.HTML()  # the text of the picture, for readers who cannot see it
        self._redraw()
        for control in self.controls.values():
            control.observe(self._redraw, "value")
        grid = widgets.Layout(display="flex", flex_flow="row wrap")
        below = widgets.Accordion([self.numbers], titles=("In words and numbers",), selected_index=None)
        super().__init__([widgets.Box(list(self.controls.values()), layout=grid), self.picture, below])

    def _redraw(self, _: Any = None) -> None:
        drawn = self.draw(**{name: control.value for name, control in self.controls.items()})
        if not isinstance(drawn, Picture):
            raise ValueError(f"{self.name}: its function returned {drawn!r:.60}; return the Picture that `plot` made")
        self.figure = drawn
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


def explore(figure: Callable[..., Picture], /, **choices: Sequence[Any] | Mapping[str, Any]) -> Explorer:
    """Controls above the picture of `figure`, which is drawn anew when one of them moves.

    Args:
        figure: a function that returns a figure; it must have a default for each argument without choices.
        choices: for an argument of the function the values that can be chosen: a list, or {words: value}. Numbers make
            a slider, other values a menu. It starts at the argument's default, if that is a choice, or at the first.

    Raises:
        ValueError: no function, no choices, an argument that it has not, no list, fewer than two values, or a function
            that returns something else than a `Picture`.

    >>> from parlab import views
    >>> widget = views.explore(views.copies, k=[1, 2, 4, 8], num_experts=[64, 256])
    >>> widget.figure.text_shown[:35]
    '256 experts on 8 nodes, k = 8: 7.00'
    """
    if not callable(figure):
        raise ValueError(f"figure={figure!r:.60}: must be a function that returns a figure")
    if not choices:
        raise ValueError("choices: give the values of one argument or more, such as ranks=[2, 4, 8]")
    arguments, controls = inspect.signature(figure).parameters, {}
    called = getattr(figure, "__name__", "figure")  # a partial function has no name
    for name, values in choices.items():
        if name not in arguments:
            raise ValueError(f"{name}: {called} takes {', '.join(arguments) or 'no arguments'}")
        if not isinstance(values, Sequence | Mapping | np.ndarray) or isinstance(values, str) or len(values) < 2:
            raise ValueError(f"{name}={values!r:.60}: give two values or more, in a list or by their words")
        options = list(values.items()) if isinstance(values, Mapping) else [(str(value), value) for value in values]
        found = [value for _, value in options]
        numbers = all(isinstance(value, Real) and not isinstance(value, bool) for value in found)
        start = arguments[name].default if arguments[name].default in found else found[0]
        controls[name] = (steps if numbers else choice)(name, options, start)
    return Explorer(f"explore_{called}", controls, figure)
