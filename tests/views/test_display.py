"""What a notebook stores: runs, timelines and figures as a picture and as text, widgets as text alone."""

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

from parlab import run, views
from parlab.views import display
from tests.views.drawn import ring


@pytest.fixture(scope="module")
def shown():
    shell = InteractiveShell.instance()
    display.register(shell)
    yield shell.display_formatter.format
    InteractiveShell.clear_instance()


DONE = run(ring, 4, np.ones(64))
LAST_LINES = {"run": DONE, "timeline": DONE.timeline, "figure": views.compare_timelines({"ring": DONE})}


@pytest.mark.parametrize("name", LAST_LINES)
def test_the_last_line_of_a_cell_is_a_picture_and_its_numbers(shown, name):
    data, metadata = shown(LAST_LINES[name])
    assert data["text/plain"] == repr(LAST_LINES[name])
    assert "makespan" in data["text/plain"] or "through one port" in data["text/plain"]
    assert data["image/png"].startswith(b"\x89PNG")
    assert set(data) == {"text/plain", "image/png"}


def test_a_picture_is_as_wide_as_its_page_with_half_as_many_pixels_more_and_says_what_it_shows(shown):
    data, metadata = shown(DONE)
    assert metadata["image/png"]["width"] == 1000
    assert int.from_bytes(data["image/png"][16:20]) == 1500
    assert metadata["image/png"]["alt"] == repr(DONE.timeline)


def test_matplotlib_inline_does_not_take_our_figures_over(shown):
    from matplotlib.figure import Figure

    formatter = InteractiveShell.instance().display_formatter.formatters["image/png"]
    formatter.for_type(Figure, lambda figure: b"theirs")  # what `%matplotlib inline` does
    try:
        assert shown(views.timeline(DONE))[0]["image/png"].startswith(b"\x89PNG")
    finally:
        formatter.pop(Figure)


def test_outside_a_notebook_there_is_nothing_to_register_with(monkeypatch):
    monkeypatch.setattr(display, "get_ipython", lambda: None)
    display.register()
