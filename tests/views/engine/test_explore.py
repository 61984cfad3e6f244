"""Every control redraws its picture, which is the figure function's; the text is stable."""

import io

from ipywidgets import Dropdown, SelectionSlider
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


def test_explore_starts_at_the_defaults_and_numbers_are_sliders_and_words_menus():
    explorer = views.explore(hops, ranks={"two": 2, "eight": 8}, way=["tree", "ring"])
    assert repr(explorer) == "explore_hops: 8 ranks by ring"
    assert [type(control) for control in explorer.controls.values()] == [SelectionSlider, Dropdown]
    explorer.controls["ranks"].value = 2
    explorer.controls["way"].value = "tree"
    assert repr(explorer) == "explore_hops: 2 ranks by tree"
    assert explorer.picture.value == png(hops(2, "tree"))


def test_explore_starts_at_the_first_value_where_the_default_is_none_of_them_and_leaves_other_arguments():
    assert repr(views.explore(hops, ranks=[2, 4])) == "explore_hops: 2 ranks by ring"
    assert type(views.explore(hops, ranks=[True, False]).controls["ranks"]) is Dropdown
