"""A learner's guess: before it nothing is shown, after it the answer and the figure; an empty field is no guess."""

import pytest

from tests.browser.reader import OUTPUT, write

ASKS = """
from parlab import views

class Film:
    def _repr_html_(self):
        return "<svg width='300' height='100'><text y='50'>56 arrows</text></svg>"

views.predict("How many messages?", lambda: 14, usual=(56, "to each"), how="counted", then=Film)
"""


@pytest.mark.slow
def test_the_answer_and_the_figure_are_hidden_until_somebody_guesses(reader):
    write(reader.folder / "guess.ipynb", ASKS)
    reader.open("guess.ipynb")
    reader.run_all_cells()
    shown = reader.page.locator(OUTPUT)
    assert "How many messages?" in shown.inner_text()
    hidden = ("counted", "14", "56")
    assert [word for word in hidden if word in shown.inner_text()] == []
    shown.get_by_role("button", name="Compare").click()
    reader._wait(lambda: "Write a number" in shown.inner_text(), "the empty field is refused")
    assert [word for word in hidden if word in shown.inner_text()] == []
    shown.locator("input").fill("7")
    shown.get_by_role("button", name="Compare").click()
    reader._wait(lambda: "56 arrows" in shown.inner_text(), "the film is shown")
    assert "you said 7, counted 14: 2 times too low" in shown.inner_text()
    assert "many say 56: to each" in shown.inner_text()
    reader._photograph("guess.png")


@pytest.mark.slow
def test_a_guess_may_open_a_widget_and_its_menu_draws_anew(reader):
    asks = 'from parlab import views\nviews.predict("Which t?", lambda: 32, then=views.explore_tensor)'
    write(reader.folder / "widget.ipynb", asks)
    reader.open("widget.ipynb")
    reader.run_all_cells()
    shown = reader.page.locator(OUTPUT)
    assert shown.locator("select, .widget-image").count() == 0
    shown.get_by_role("button", name="I don't know").click()
    shown.locator(".widget-image").wait_for()
    first = shown.locator(".widget-image").get_attribute("src")
    shown.locator("select").select_option("Llama 3 8B")
    reader._wait(lambda: shown.locator(".widget-image").get_attribute("src") != first, "another picture")
    reader._photograph("widget.png")
