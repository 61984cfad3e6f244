"""A question before the answer: the learner guesses, and then sees the guess, the truth and the usual wrong guess."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import ipywidgets as widgets
from IPython.display import display
from matplotlib.figure import Figure

from parlab.arguments import Rule, checked, finite, flag, one_of, optional, text
from parlab.views.engine import theme
from parlab.views.engine.picture import png
from parlab.world.engines.strands import IN_BROWSER

LIVE = ("JPY_SESSION_NAME", "VSCODE_PID")  # set for the kernel of a notebook that somebody has open in an editor
LONG = 1e21  # larger whole numbers are written with a power of ten
HOW = ("counted", "computed", "measured", "published")
GUESS, TRUTH, USUAL = "#999999", "#0072B2", "#E69F00"


@dataclass(frozen=True)
class Answer:
    """A question, its true value, the usual wrong guess, and the learner's guess, if there was one."""

    question: str
    truth: float
    unit: str = ""
    how: str = "computed"
    usual: tuple[float, str] | None = None
    named: bool = False
    guess: float | None = None

    def _rows(self) -> list[tuple[str, float, str]]:
        """Name, value and colour of each bar."""
        guess = [] if self.guess is None else [("you said", self.guess, GUESS)]
        usual = [] if self.usual is None else [("many say", self.usual[0], USUAL)]
        return [*guess, (self.how, self.truth, TRUTH), *usual]

    def _verdict(self) -> str:
        if self.guess is None:
            return ""
        said = _with_unit(self.guess, self.unit)
        truth = _with_unit(self.truth, self.unit)
        if self.named:
            verdict = "right" if self.guess == self.truth else "it is another one"
        else:
            verdict = _how_far_off(self.guess, self.truth)
        return f"you said {said}, {self.how} {truth}: {verdict}"

    def _because(self) -> str:
        return f"many say {_with_unit(self.usual[0], self.unit)}: {self.usual[1]}" if self.usual else ""

    def _says(self) -> str:
        return self._verdict() or f"{self.how}: {_with_unit(self.truth, self.unit)}"

    def __repr__(self) -> str:
        return "\n".join(filter(None, [self.question, self._says(), self._because()]))

    def _bars(self) -> str:
        rows = self._rows()
        largest = max(abs(value) for _, value, _ in rows) or 1.0
        drawn = [value / largest for _, value, _ in rows]  # from −1 to 1: no sum of them overflows
        low = min(0.0, *drawn)
        length = max(0.0, *drawn) - low
        cells = []
        for (name, value, color), part in zip(rows, drawn, strict=True):
            left, width = (100 * (min(part, 0.0) - low) / length, 100 * abs(part) / length) if length else (0.0, 0.0)
            bar = f"margin-left:{left:.2f}%;width:{width:.2f}%;background:{color};height:1.2em;min-width:1px"
            shown = escape(_with_unit(value, self.unit))
            cells.append(f"<span>{name}</span><div style='{bar}'></div><span>{shown}</span>")
        grid = "display:grid;grid-template-columns:max-content 1fr max-content;gap:.3em .8em;align-items:center"
        return f"<div style='{grid}'>{''.join(cells)}</div>"

    def _repr_html_(self) -> str:
        paragraph = "<p style='margin:.4em 0'>"
        bars = "" if self.named else self._bars()  # they compare amounts, and a name is none
        verdict = self._says() if self.named else self._verdict()
        said = [f"{paragraph}{escape(line)}</p>" for line in (verdict, self._because()) if line]
        return (
            f"<div class='parlab-answer' style='max-width:760px'>{paragraph}<b>{escape(self.question)}</b></p>"
            f"{bars}{''.join(said)}</div>"
        )


class Prediction(widgets.VBox):
    """The question with a field. The truth, the usual guess and the figure appear after an answer, and only then.

    In a notebook that nobody has open, as under nbval and in the book, all of it is shown at once.
    """

    def __init__(self, asked: Answer, truth: Callable[[], float], then: Callable[[], Any] | None, later: str = ""):
        self.asked, self.truth, self.then, self.later = asked, truth, then, later
        self.guess: float | None = None
        self.field = widgets.Text(placeholder="a number", layout=widgets.Layout(width="10em"))
        self.compare = widgets.Button(description="Compare", button_style="primary")
        self.pass_by = widgets.Button(description="I don't know")
        self.note = widgets.Label()
        self.compare.on_click(self._compare)
        self.pass_by.on_click(lambda _: self._show(None))
        unit = [widgets.Label(asked.unit)] if asked.unit else []
        wraps = widgets.Layout(flex_flow="row wrap")  # on a telephone the row has no room for all
        row = widgets.HBox([self.field, *unit, self.compare, self.pass_by], layout=wraps)
        self.title = widgets.HTML(f"<b>{escape(asked.question)}</b>")
        super().__init__([self.title, row, self.note])
        self.add_class("parlab-predict")

    def _compare(self, _: Any) -> None:
        guess = _number(self.field.value)
        if guess is None:
            self.note.value = "Write a number, such as 12 or 0.5. A guess is enough."
        else:
            self._show(guess)

    def _show(self, guess: float | None) -> None:
        """Draw the answer in the place of the field: there is one guess. Or keep the guess until the answer opens."""
        self.guess = guess
        if self.later:
            said = "" if guess is None else f"You said {_with_unit(guess, self.asked.unit)}. "
            kept = escape(said + self._where())
            box = f"<div class='parlab-answer' style='max-width:760px;padding:1.2em 0'>{kept}</div>"
            self.children = [self.title, widgets.HTML(box)]
            return
        self.note.value = "One moment: it is being drawn."
        self.children = [self._drawn(lambda: self.answer(guess)), *([self._drawn(self.then)] if self.then else [])]

    def opened(self) -> Prediction:
        """The same question with the guess in its field, to keep or to change, and this time with the answer."""
        again = Prediction(self.asked, self.truth, self.then)
        if self.guess is not None:
            again.field.value = _with_unit(self.guess, "")
            again.note.value = "That was your guess. Keep it, or change it."
        return again

    def _where(self) -> str:
        return f"The answer opens in the section {self.later}."

    def answer(self, guess: float | None = None) -> Answer:
        """The truth beside `guess`."""
        truth = self.truth()
        finite("truth", truth)
        return replace(self.asked, truth=float(truth), guess=guess)

    def _drawn(self, draw: Callable[[], Any]) -> widgets.Widget:
        """The outcome of `draw` as a widget; an error is shown like one, since a button's own go unseen."""
        try:
            made = draw()
            if isinstance(made, widgets.Widget):
                return made
            if isinstance(made, Figure):
                return widgets.Image(value=png(made), format="png", layout=widgets.Layout(max_width=theme.ON_PAGE))
            return widgets.HTML(made._repr_html_())
        except Exception as error:
            return widgets.HTML(f"<pre>{escape(f'{type(error).__name__}: {error}')}</pre>")

    def _ipython_display_(self) -> None:
        if IN_BROWSER or any(name in os.environ for name in LIVE):
            display(self._repr_mimebundle_(), raw=True)
            return
        if self.later:
            question = f"<b>{escape(self.asked.question)}</b> {escape(self._where())}"
            display({"text/plain": f"{self.asked.question}\n{self._where()}", "text/html": question}, raw=True)
            return
        display(self.answer())
        if self.then:
            display(self.then())

    def __repr__(self) -> str:
        unit = f", in {self.asked.unit}" if self.asked.unit else ""
        return f"{self.asked.question} (answer with a number{unit})"


def _question(name: str, value: Any) -> None:
    if not text(name, value).strip():
        raise ValueError(f"{name}={value!r}: must be a text")


def _truth(name: str, value: Any) -> None:
    if not callable(value):
        finite(name, value)


def _function(name: str, value: Any) -> None:
    if not callable(value):
        raise ValueError(f"{name}={value!r:.60}: must be a function without arguments that returns a figure or a film")


def _usual(name: str, value: Any) -> None:
    if not isinstance(value, tuple) or len(value) != 2:
        raise ValueError(f"{name}={value!r:.60}: must be (value, the reasoning that leads there)")
    finite(f"{name}[0]", value[0])
    _question(f"{name}[1]", value[1])


RULES: Mapping[str, Rule] = {
    "question": _question,
    "truth": _truth,
    "unit": text,
    "then": optional(_function),
    "usual": optional(_usual),
    "how": lambda name, value: one_of(name, value, HOW),
    "named": flag,
    "later": text,
}


@checked(RULES)
def predict(
    question: str,
    truth: float | Callable[[], float],
    unit: str = "",
    then: Callable[[], Any] | None = None,
    usual: tuple[float, str] | None = None,
    how: str = "computed",
    named: bool = False,
    later: str = "",
) -> Prediction:
    """Ask the learner for a number, and hide the answer until one was given, or "I don't know".

    Then the guess, the truth and the usual wrong guess stand side by side, above the figure or film of `then`. Under
    nbval, in stored outputs and in the book nobody guesses: all of it is shown at once.

    Args:
        question: the text of the question.
        truth: the true value, or a function without arguments that finds it; it is called after the answer only.
        unit: the unit of the answer, such as "bytes" or "µs".
        then: a function without arguments that returns a figure, a film or a widget; it is drawn after the answer only.
        usual: the usual wrong guess, and the reasoning that leads there: (56, "a rank sends to each of the others").
        how: the truth was "counted" (messages, bytes, FLOPs), "computed" (by the simulated clock or a formula),
            "measured" (by a watch) or "published". A cell whose truth is measured is not compared: NBVAL_IGNORE_OUTPUT.
        named: the number is a name, such as a rank's: a guess is right or another one, neither too high nor too low.
        later: the section of the lesson in which the answer opens: there, `opened()` of what this returned asks again,
            with the guess in the field. "": the answer appears here.

    Raises:
        ValueError: no question, a truth that is no finite number, or another argument of the wrong kind.

    >>> predict("How many messages?", 14, usual=(56, "a rank sends to each of the others"), how="counted").answer(7)
    How many messages?
    you said 7, counted 14: 2 times too low
    many say 56: a rank sends to each of the others
    """
    known = math.nan if callable(truth) else truth
    found = truth if callable(truth) else lambda: known
    usual = None if usual is None else (float(usual[0]), usual[1])
    return Prediction(Answer(question, known, unit, how, usual, named), found, then, later)


def _number(said: str) -> float | None:
    """The number in a field: "1 750", "2.5", "1e6", "40 %"; None if there is none."""
    try:
        number = float("".join(said.split()).rstrip("%"))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _with_unit(value: float, unit: str) -> str:
    shown = f"{value:,.0f}".replace(",", " ") if float(value).is_integer() and abs(value) < LONG else f"{value:.4g}"
    return f"{shown} {unit}".rstrip()


def _how_far_off(guess: float, truth: float) -> str:
    if guess == truth:
        return "exactly right"
    if min(guess, truth) <= 0 <= max(guess, truth):
        return "too low" if guess < truth else "too high"
    ratio = guess / truth
    if 0.99 < ratio < 1.01:
        return "right within 1 %"
    times = ratio if ratio > 1 else truth / guess
    if times == math.inf:
        shown = "more than 1e308"
    else:
        shown = f"{times:.3g}" if times < 1000 else _with_unit(float(round(times)), "")
    return f"{shown} times too {'high' if ratio > 1 else 'low'}"
