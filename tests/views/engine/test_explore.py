"""Every control redraws its picture, which is the figure function's; the text is stable."""

import io
from functools import partial

import numpy as np
import pytest
from ipywidgets import Dropdown, SelectionSlider
from matplotlib.figure import Figure
from PIL import Image

from parlab import views
from parlab.views.engine.picture import png, sheet, write


def test_a_picture_in_a_widget_is_a_png_of_1000_pixels():
    with Image.open(io.BytesIO(views.explore_all_reduce_seconds().picture.value)) as picture:
        assert picture.format == "PNG"
        assert picture.width == 1000


def hops(ranks: int = 8, way: str = "ring"):
    """A figure of one's own."""
    picture = sheet(f"{ranks} ranks by {way}", 1.0)
    write(picture, 0.15, 0.3, f"{ranks} ranks by {way}")
    return picture


def forgetful(ranks: int = 8):
    """A figure whose last line, the return, is missing."""
    hops(ranks)


def plain(ranks: int = 8):
    """A figure of matplotlib, which has no text."""
    return Figure((ranks, 2))


def test_explore_starts_at_the_defaults_and_numbers_are_sliders_and_words_menus():
    explorer = views.explore(hops, ranks={"two": 2, "eight": 8}, way=["tree", "ring"])
    assert repr(explorer) == "explore_hops: 8 ranks by ring"
    assert [type(control) for control in explorer.controls.values()] == [SelectionSlider, Dropdown]
    explorer.controls["ranks"].value = 2
    explorer.controls["way"].value = "tree"
    assert repr(explorer) == "explore_hops: 2 ranks by tree"
    assert explorer.picture.value == png(hops(2, "tree"))


def test_a_function_without_a_name_can_be_explored():
    assert repr(views.explore(partial(hops, way="tree"), ranks=[2, 4])) == "explore_figure: 2 ranks by tree"


def test_explore_starts_at_the_first_value_where_the_default_is_none_of_them_and_leaves_other_arguments():
    assert repr(views.explore(hops, ranks=[2, 4])) == "explore_hops: 2 ranks by ring"
    assert type(views.explore(hops, ranks=[True, False]).controls["ranks"]) is Dropdown
    assert type(views.explore(hops, ranks=np.array([2, 4])).controls["ranks"]) is SelectionSlider


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: views.explore(3, ranks=[1, 2]), "figure=3: must be a function that returns a figure"),
        (lambda: views.explore(hops), r"choices: give the values of one argument or more, such as ranks=\[2, 4, 8\]"),
        (lambda: views.explore(hops, size=[1, 2]), "size: hops takes ranks, way"),
        (lambda: views.explore(hops, ranks=[8]), r"ranks=\[8\]: give two values or more"),
        (lambda: views.explore(hops, ranks=8), "ranks=8: give two values or more, in a list"),
        (lambda: views.explore(hops, way="ring"), "way='ring': give two values or more, in a list"),
        (lambda: views.explore(forgetful, ranks=[2, 4]), "explore_forgetful: its function returned None; return"),
        (lambda: views.explore(plain, ranks=[2, 4]), "explore_plain: its function returned <Figure"),
    ],
)
def test_what_cannot_be_explored_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
