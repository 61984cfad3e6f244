"""A question before the answer: the learner guesses, and then sees the guess beside the measured value."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets

from parlab.arguments import finite
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import name_rows
from parlab.views.drawing.marks import text_width
from parlab.views.drawing.picture import Picture, plot, png, scale, write

LINE = 90  # letters in a line of a question
LONG = 1e21  # larger whole numbers are written with a power of ten
GUESS, MEASURED = "#BBBBBB", "#0072B2"


def prediction(question: str, guess: float, measured: float, unit: str = "") -> Picture:
    """Draw a guess beside the measured value. `predict` shows this after the answer.

    Args:
        question: the question.
        guess: the learner's answer.
        measured: the measured value.
        unit: the unit of both.

    Raises:
        ValueError: no question, or a value that is not a finite number.

    >>> prediction("How many messages?", 7, 14)
    How many messages?
    you said 7, measured 14: 2 times too low
    """
    _check_texts(question, unit)
    finite("guess", guess)
    finite("measured", measured)
    guess, measured = float(guess), float(measured)
    verdict = _verdict(guess, measured)
    text = f"{question}\nyou said {_with_unit(guess, unit)}, measured {_with_unit(measured, unit)}: {verdict}"
    values = [_with_unit(value, unit) for value in (guess, measured)]
    lines = textwrap.wrap(question, LINE)
    top = 0.85 + 0.22 * (len(lines) - 1)
    right = 0.35 + max(text_width(value, theme.TEXT) for value in values) / 72
    figure, axes = plot(text, top + 1.25, "\n".join(lines), left=1.3, right=right, top=top, bottom=0.2)
    part = 1 if abs(guess - measured) < math.inf else 1e-9  # of both numbers: a longer axis cannot be drawn
    drawn = [part * guess, part * measured]
    low, high = min(0.0, *drawn), max(0.0, *drawn)
    scale(axes.xaxis, ends=(low, high if high > low else 1), ticks=(), line=False)
    name_rows(axes, 2, ["you said", "measured"])
    marks.bars(axes, "bars", 0, drawn, [GUESS, MEASURED], half=0.35)
    beside = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
    for row, (value, shown) in enumerate(zip(drawn, values, strict=True)):
        axes.annotate(shown, (max(value, 0), row), size=theme.TEXT, color=theme.INK, **beside)
    write(figure, 0.15, top - 0.35, verdict, theme.TEXT)
    return figure


class Prediction(widgets.VBox):
    """The question with its field and button. The picture appears after the answer."""

    def __init__(self, question: str, measured: float | Callable[[], float], unit: str):
        self.question, self.measured, self.unit = question, measured, unit
        self.field = widgets.FloatText(layout=widgets.Layout(width="10em"))
        self.button = widgets.Button(description="Compare", button_style="primary")
        self.picture = widgets.Image(format="png", layout=widgets.Layout(display="none", max_width=theme.ON_PAGE))
        self.answer = widgets.Label()
        self.button.on_click(self._answer)
        row = [self.field, *([widgets.Label(unit)] if unit else []), self.button]
        super().__init__([widgets.HTML(f"<b>{question}</b>"), widgets.HBox(row), self.picture, self.answer])

    def _answer(self, _: Any) -> None:
        measured = self.measured() if callable(self.measured) else self.measured
        figure = prediction(self.question, self.field.value, measured, self.unit)
        self.picture.value = png(figure)
        self.answer.value = repr(figure).splitlines()[-1]
        self.picture.layout.display = None

    def __repr__(self) -> str:
        return f"{self.question} (answer with a number{', in ' + self.unit if self.unit else ''})"


def predict(question: str, measured: float | Callable[[], float], unit: str = "") -> Prediction:
    """Ask the learner for a number. Then draw the guess beside the measured value.

    Args:
        question: the text of the question.
        measured: the measured value, or a function without arguments that measures it after the guess.
        unit: the unit of the answer, such as "bytes" or "µs".

    Raises:
        ValueError: no question, or an answer that is no number.
    """
    _check_texts(question, unit)
    if not callable(measured):
        finite("measured", measured)
    return Prediction(question, measured, unit)


def _check_texts(question: Any, unit: Any) -> None:
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"question={question!r}: must be a text")
    if not isinstance(unit, str):
        raise ValueError(f"unit={unit!r}: must be a text, such as bytes")


def _with_unit(value: float, unit: str) -> str:
    shown = f"{value:,.0f}".replace(",", " ") if value.is_integer() and abs(value) < LONG else f"{value:.4g}"
    return f"{shown} {unit}".rstrip()


def _verdict(guess: float, measured: float) -> str:
    if guess == measured:
        return "exactly right"
    if min(guess, measured) <= 0 <= max(guess, measured):
        return "too low" if guess < measured else "too high"
    ratio = guess / measured
    if 0.99 < ratio < 1.01:
        return "right within 1 %"
    times = ratio if ratio > 1 else measured / guess
    if times == math.inf:
        shown = "more than 1e308"
    else:
        shown = f"{times:.3g}" if times < 1000 else _with_unit(float(round(times)), "")
    return f"{shown} times too {'high' if ratio > 1 else 'low'}"
