"""JupyterLab as `make lab` starts it: no news, a column of text, figures not wider, fit for the dark theme."""

from pathlib import Path

import nbformat
import pytest

from parlab import views
from tests.browser.reader import OUTPUT, write

BOOK = Path(__file__).parents[2] / "docs/book.css"

PICTURE = """
from matplotlib.figure import Figure
from IPython.display import Image
import io, ipywidgets

stored = io.BytesIO()
Figure(figsize=(20, 2)).savefig(stored, format="png")
display(Image(stored.getvalue()))
ipywidgets.Image(value=stored.getvalue())
"""
WIDTHS = "boxes => boxes.map(box => box.getBoundingClientRect().width)"
FILTER = "picture => getComputedStyle(picture).filter"
SAVE = "() => jupyterapp.commands.execute('docmanager:save').then(() => true)"
THEME = "theme => jupyterapp.commands.execute('apputils:change-theme', { theme }).then(() => true)"


@pytest.mark.slow
def test_text_and_figures_share_a_column_and_the_dark_theme_dims_figures_to_nine_tenths(reader):
    write(reader.folder / "look.ipynb", nbformat.v4.new_markdown_cell("word " * 100), PICTURE)
    page = reader.page
    window = page.viewport_size
    page.set_viewport_size({"width": 1920, "height": 1080})
    reader.open("look.ipynb")
    reader.run_all_cells()
    assert page.get_by_text("news", exact=False).count() == 0
    text = page.locator(".jp-RenderedMarkdown p").first
    (width,) = text.evaluate_all(WIDTHS)
    em = text.evaluate("p => parseFloat(getComputedStyle(p).fontSize)")
    assert 80 < width / (0.55 * em) < 105  # a letter is 0.55 em wide, in the mean
    pictures = page.locator(".jp-RenderedImage img, .widget-image")
    assert pictures.count() == 2
    assert max(pictures.evaluate_all(WIDTHS)) <= width + 30  # the margins of the text
    assert [picture.evaluate(FILTER) for picture in pictures.all()] == ["none"] * 2
    reader._await(THEME, "JupyterLab Dark")
    for _ in range(100):  # the new theme's style comes to one picture after the other
        dimmed = [picture.evaluate(FILTER) for picture in pictures.all()]
        if "none" not in dimmed:
            break
        page.wait_for_timeout(100)
    assert dimmed == ["brightness(0.9)"] * 2
    reader._await(THEME, "JupyterLab Light")
    page.set_viewport_size(window)


@pytest.mark.slow
def test_a_notebook_that_is_opened_again_shows_the_pictures_of_its_widgets(reader):
    asks = ["from parlab import views\nviews.explore_all_reduce_seconds()", 'views.predict("How many messages?", 14)']
    place = reader.folder / "again.ipynb"
    write(place, *asks)
    page = reader.page
    reader.open(place.name)
    reader.run_all_cells()
    assert page.locator(".noUi-handle").count() > 0
    reader._await(SAVE)
    reader.close()
    reader.open(place.name)
    page.locator(".jp-RenderedImage img").wait_for()
    shown = "\n".join(page.locator(OUTPUT).all_inner_texts())
    assert "How many messages? (answer with a number)" in shown
    assert "Error displaying widget" not in shown


FILM = """
import numpy as np
from parlab import run, views

views.film(run(lambda comm, x: comm.sendrecv(x, comm.right, comm.left), 2, np.ones(9)), waits=True)
"""
MIDDLES = """caption => {
    const text = document.createRange();
    text.selectNodeContents(caption);
    return [text, caption.closest(".plays")].map(part => part.getBoundingClientRect())
        .map(box => box.left + box.width / 2);
}"""


@pytest.mark.slow
def test_the_caption_of_a_film_stands_below_the_middle_of_its_drawing(reader):
    write(reader.folder / "film.ipynb", FILM)
    reader.open("film.ipynb")
    reader.run_all_cells()
    text, drawing = reader.page.locator(".film .caption p").first.evaluate(MIDDLES)
    assert abs(text - drawing) < 2  # pixels


SHAPES = """film => {
    const box = part => film.querySelector(part).getBoundingClientRect();
    const reel = film.querySelector(".plays").parentElement;
    reel.scrollLeft = 10000;
    return {
        letter: 16 * box("svg").width / 640, moved: reel.scrollLeft, left: box(".caption").left,
        right: box(".caption").right, page: document.documentElement.scrollWidth
    };
}"""


@pytest.mark.parametrize(("width", "letter", "moved"), [(390, 13, 520 - 374), (1200, 19, 0)])
def test_in_the_book_a_film_keeps_letters_of_13_pixels_on_a_telephone_and_moves_below_its_caption(
    chromium, width, letter, moved
):
    page = chromium.new_page(viewport={"width": width, "height": 800})
    page.set_content(f"<style>{BOOK.read_text()}</style>{views.film_of_copies().html}")
    found = page.locator(".film").evaluate(SHAPES)
    page.close()
    assert found["letter"] == letter
    assert found["moved"] == moved  # margins of 8 at both sides
    assert found["left"] >= 8
    assert found["right"] <= found["page"] == width
