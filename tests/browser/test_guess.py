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
