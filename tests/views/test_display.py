"""What a notebook stores: runs, timelines and figures as a picture and as text, widgets as text alone."""

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

from parlab import run, views
from parlab.pipeline import Action, Schedule, one_f_one_b, simulate
from parlab.views import display
from tests.views.drawn import ring


@pytest.fixture(scope="module")
def shown():
    shell = InteractiveShell.instance()
    display.register(shell)
    yield shell.display_formatter.format
    InteractiveShell.clear_instance()


DONE = run(ring, 4, np.ones(64))
STUCK = Schedule([[Action("B", 0, 0), Action("F", 0, 0)]])
LAST_LINES = {  # a value, its picture, and whose text it has
    "run": (DONE, views.timeline(DONE), DONE),
    "timeline": (DONE.timeline, views.timeline(DONE), DONE.timeline),
    "figure": [views.compare_timelines({"ring": DONE})] * 3,
    "schedule": (one_f_one_b(4, 8), *[views.schedule(one_f_one_b(4, 8))] * 2),
    "simulated": (simulate(one_f_one_b(4, 8)), *[views.schedule(one_f_one_b(4, 8))] * 2),
    "a schedule that cannot run": (STUCK, *[views.schedule(STUCK)] * 2),
}


@pytest.mark.parametrize("name", LAST_LINES)
def test_the_last_line_of_a_cell_is_a_picture_and_its_numbers(shown, name):
    value, picture, text = LAST_LINES[name]
    data, _ = shown(value)
    assert data == {"text/plain": repr(text), "image/png": picture._repr_png_()[0]}
    assert any(
        words in repr(text) for words in ("makespan", "through one port", "cannot run: 0B0 (rank 0, action 0) needs")
    )


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
