"""A film of a run: play, pause, or step. Each step has a picture and a line of words."""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from html import escape
from typing import Any

import ipywidgets as widgets

from parlab.sequence import RingSchedule
from parlab.views.attention.masks import ring_film
from parlab.views.drawing import theme
from parlab.views.drawing.lanes import timeline_of
from parlab.views.drawing.png_film import Film
from parlab.views.timelines.timeline import timeline_film
from parlab.world import Run, Timeline

INTERVAL = 100  # milliseconds a frame


class Player(widgets.VBox):
    """A play button, a slider over the frames, the picture, and the line of the step below it.

    A frame is drawn when it is first shown, and is then kept.
    """

    def __init__(self, film: Film):
        self.film = film
        self._png = cache(film.png)
        last = len(film.frames) - 1
        self.play = widgets.Play(min=0, max=last, interval=INTERVAL, show_repeat=False)
        self.slider = widgets.IntSlider(min=0, max=last, readout=False, layout=widgets.Layout(width="24em"))
        self.back, self.forward = (
            widgets.Button(description=name, layout=widgets.Layout(width="6em")) for name in ("◀ step", "step ▶")
        )
        self.picture = widgets.Image(format="png", layout=widgets.Layout(max_width=theme.ON_PAGE))
        self.line = widgets.HTML()
        widgets.jslink((self.play, "value"), (self.slider, "value"))
        self.slider.observe(self._show, "value")
        self.back.on_click(lambda _: self.go(self.step - 1))
        self.forward.on_click(lambda _: self.go(self.step + 1))
        self._show()
        super().__init__([widgets.HBox([self.play, self.slider, self.back, self.forward]), self.picture, self.line])

    @property
    def step(self) -> int:
        """The number of the step that is shown, from 0."""
        return self.film.frames[self.slider.value][0]

    def go(self, step: int) -> None:
        """Pause, and show the end of `step`. A number below the first step shows the first, above the last the last."""
        self.play.playing = False
        self.slider.value = bisect_right(self.film.frames, step, key=lambda frame: frame[0]) - 1

    def _show(self, _: Any = None) -> None:
        step, place = self.film.frames[self.slider.value]
        self.picture.value = self._png(place)
        self.line.value = f"<div style='min-height: 3.6em; line-height: 1.35'>{escape(self.film.lines[step])}</div>"

    def __repr__(self) -> str:
        return "\n".join([f"step_through: {self.film.headline}", *self.film.lines])


def step_through(
    source: Run | Timeline | RingSchedule,
    *,
    layout: str = "contiguous",
    S: int = 32,
    causal: bool = True,
) -> Player:
    """Play a film of `source`: 10 pictures a second, a slider, buttons for single steps, and a line of words a step.

    The film shows

    - for the run of a ZeRO training step: the bytes that each rank holds, its work, and its messages;
    - for any other run: its timeline;
    - for a `RingSchedule`: the K/V that each rank holds in ring attention, and the attended part of each block.

    Args:
        source: one of these.
        layout, S, causal: for ring attention: the layout of S tokens, and whether a token sees only earlier tokens.

    Raises:
        ValueError: another source, or an argument that the figure functions refuse.
    """
    if isinstance(source, RingSchedule):
        return Player(ring_film(source.size, layout, S, causal=causal))
    if not isinstance(source, Run | Timeline):
        raise ValueError(f"source={source!r:.60}: must be a run, or a RingSchedule")
    shown = timeline_of(source)
    return Player(timeline_film(shown))
