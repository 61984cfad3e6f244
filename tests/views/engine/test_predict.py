"""`predict` hides what it asks about until somebody has answered, and shows all of it where nobody can."""

import ipywidgets
import numpy as np
import pytest

from parlab import views
from parlab.views.engine import predict as guess
from parlab.views.engine.picture import png
from parlab.views.engine.predict import Answer

USUAL = (56, "a rank sends to each of the others")


class Film:
    """As `views.film` makes them."""

    def _repr_html_(self):
        return "<svg>blocks travel</svg>"


def figure():
    return views.all_reduce_seconds(4)


def answered(widget, said):
    widget.field.value = said
    widget.compare.click()
    return widget


def asked(truth=1750, **options):
    return views.predict("How many bytes?", truth, "bytes", **options)


def shown(widget):
    """The widgets of the answer, which take the place of the field; none before an answer."""
    return () if widget.note in widget.children else widget.children


@pytest.fixture
def displayed(monkeypatch):
    """The bundles that `_ipython_display_` displays."""
    bundles = []

    def display(made, raw=False):
        bundles.append(made if raw else {"text/plain": repr(made), "made": made})

    monkeypatch.setattr(guess, "display", display)
    for name in guess.LIVE:
        monkeypatch.delenv(name, raising=False)
    return bundles


@pytest.mark.parametrize("editor", guess.LIVE)
def test_in_an_open_notebook_neither_the_truth_nor_the_usual_guess_nor_the_figure_is_there_before_an_answer(
    editor, displayed, monkeypatch
):
    monkeypatch.setenv(editor, "00.ipynb")
    calls = []
    widget = asked(lambda: calls.append("truth") or 1750, usual=USUAL, then=lambda: calls.append("then"))
    widget._ipython_display_()
    (bundle,) = displayed
    assert bundle["text/plain"] == repr(widget) == "How many bytes? (answer with a number, in bytes)"
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "text/html" not in bundle
    assert (calls, shown(widget)) == ([], ())


def test_where_nobody_guesses_the_truth_the_usual_guess_and_the_figure_are_shown(displayed):
    asked(usual=USUAL, then=Film, how="counted")._ipython_display_()
    answer, film = displayed
    assert answer["text/plain"] == (
        "How many bytes?\ncounted: 1 750 bytes\nmany say 56 bytes: a rank sends to each of the others"
    )
    assert isinstance(film["made"], Film)


def test_the_guess_stands_beside_the_truth_and_the_usual_guess():
    (answer,) = shown(answered(asked(usual=USUAL, how="counted"), "875"))
    assert "you said 875 bytes, counted 1 750 bytes: 2 times too low" in answer.value
    assert "many say 56 bytes: a rank sends to each of the others" in answer.value
    assert [f"width:{width}%" in answer.value for width in ("50.00", "100.00", "3.20")] == [True] * 3


@pytest.mark.parametrize("said", ["", "  ", "many", "nan", "inf", "1,750"])
def test_what_is_no_number_is_no_answer(said):
    widget = answered(asked(), said)
    assert shown(widget) == ()
    assert widget.note.value.startswith("Write a number")
    assert not widget.compare.disabled


@pytest.mark.parametrize(("said", "number"), [("0", 0), ("1 750", 1750), ("2.5", 2.5), ("1e3", 1000), (" 40 % ", 40)])
def test_numbers_are_read_as_people_write_them(said, number):
    (answer,) = shown(answered(asked(), said))
    assert answer.value == Answer("How many bytes?", 1750.0, "bytes", guess=float(number))._repr_html_()


def test_i_do_not_know_is_an_answer_without_a_guess():
    widget = asked(usual=USUAL)
    widget.pass_by.click()
    (answer,) = shown(widget)
    assert "you said" not in answer.value
    assert "1 750 bytes" in answer.value


def test_the_truth_is_looked_for_once_and_after_the_answer():
    calls = []
    widget = asked(lambda: calls.append(1) or 3)
    assert not calls
    assert "exactly right" in shown(answered(widget, "3"))[0].value
    assert calls == [1]


def test_a_figure_and_a_film_follow_the_answer():
    drawn, film = (shown(answered(asked(then=then), "3"))[1] for then in (figure, Film))
    assert drawn.value == png(figure())
    assert film.value == "<svg>blocks travel</svg>"


def test_a_widget_follows_the_answer_as_it_is():
    made = ipywidgets.VBox()
    assert shown(answered(asked(then=lambda: made), "3"))[1] is made


def test_an_error_of_the_truth_or_of_the_figure_is_shown():
    answer, drawn = shown(answered(asked(lambda: [][1], then=lambda: {}["<rank>"]), "3"))
    assert answer.value == "<pre>IndexError: list index out of range</pre>"
    assert drawn.value == "<pre>KeyError: &#x27;&lt;rank&gt;&#x27;</pre>"


@pytest.mark.parametrize(
    ("said", "truth", "places"),
    [
        (-1, 3, ["margin-left:0.00%;width:25.00%", "margin-left:25.00%;width:75.00%"]),
        (0, 0, ["margin-left:0.00%;width:0.00%"] * 2),
        (1e308, -1e308, ["margin-left:50.00%;width:50.00%", "margin-left:0.00%;width:50.00%"]),
    ],
)
def test_bars_start_at_zero(said, truth, places):
    html = Answer("How many?", float(truth), guess=float(said))._repr_html_()
    assert [html.count(place) for place in set(places)] == [places.count(place) for place in set(places)]


def test_the_text_of_the_lesson_is_text():
    html = Answer("a < b?", 1.0, "<b>", usual=(2.0, "1 < 2"))._repr_html_()
    assert "a &lt; b?" in html
    assert "1 &lt;b&gt;" in html
    assert "1 &lt; 2" in html


@pytest.mark.parametrize(
    ("said", "truth", "verdict"),
    [
        (14, 14, "exactly right"),
        (14.1, 14, "right within 1 %"),
        (7, 14, "2 times too low"),
        (30, 12, "2.5 times too high"),
        (3, 123_456_789, "41 152 263 times too low"),
        (0, 3, "too low"),
        (2, 0, "too high"),
        (0, 0, "exactly right"),
        (np.int64(7), 14, "2 times too low"),
        (1e300, 1e-300, "more than 1e308 times too high"),
        (1e-320, 1e300, "more than 1e308 times too low"),
        (5e-324, 1e-323, "2 times too low"),
        (10**30, 1, "1e+30 times too high"),
        (1e308, -1e308, "too high"),
    ],
)
def test_the_verdict_compares(said, truth, verdict):
    assert repr(Answer("How many?", float(truth), guess=float(said))).endswith(f": {verdict}")


@pytest.mark.parametrize(("said", "verdict"), [(3.0, "it is another one"), (7.0, "right")])
def test_a_rank_that_is_guessed_is_right_or_another_one_and_has_no_bar(said, verdict):
    made = views.predict("Which rank?", 7, usual=(4, "it stands alone"), named=True).answer(said)
    assert repr(made) == f"Which rank?\nyou said {said:.0f}, computed 7: {verdict}\nmany say 4: it stands alone"
    assert f"computed 7: {verdict}" in made._repr_html_()
    assert "width:" not in made._repr_html_().partition("max-width:760px")[2]
    assert "computed: 7" in views.predict("Which rank?", 7, named=True).answer()._repr_html_()


def test_a_guess_whose_answer_comes_later_shows_nothing_until_it_is_opened_with_the_guess_in_its_field():
    calls = []
    widget = answered(asked(lambda: calls.append(1) or 7, usual=USUAL, later="Find it"), "3")
    question, kept = widget.children
    assert "How many bytes?" in question.value
    assert ">You said 3 bytes. The answer opens in the section Find it.</div>" in kept.value
    again = widget.opened()
    assert (calls, again.field.value, shown(again)) == ([], "3", ())
    again.compare.click()
    assert "you said 3 bytes, computed 7 bytes: 2.33 times too low" in shown(again)[0].value


def test_who_did_not_guess_finds_an_empty_field_later():
    widget = asked(later="Find it")
    widget.pass_by.click()
    assert ">The answer opens in the section Find it.</div>" in widget.children[1].value
    assert (widget.opened().field.value, widget.opened().note.value) == ("", "")


def test_where_nobody_guesses_the_answer_still_comes_later(displayed):
    widget = asked(7, usual=USUAL, later="Find it")
    widget._ipython_display_()
    widget.opened()._ipython_display_()
    asks, answer = displayed
    assert asks["text/plain"] == "How many bytes?\nThe answer opens in the section Find it."
    assert asks["text/html"] == "<b>How many bytes?</b> The answer opens in the section Find it."
    assert answer["text/plain"].splitlines()[1] == "computed: 7 bytes"
