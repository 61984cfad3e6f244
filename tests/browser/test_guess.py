"""A learner's guess opens a widget whose controls still move it."""

import pytest

from tests.browser.reader import OUTPUT, write


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
