"""Every control redraws its picture, which is the figure function's; the text is stable."""

import io
from base64 import b64decode
from html import escape

import pytest
from ipywidgets import Dropdown, SelectionSlider
from PIL import Image

from parlab import views
from parlab.views.engine.explore import Explorer, steps
from parlab.views.engine.picture import png, sheet, write
from parlab.world import DGX_H100
from tests.views.drawn import check_controls

EXPLORERS = {
    "all-reduce seconds": views.explore_all_reduce_seconds,
    "tensor": views.explore_tensor,
    "price tag": views.explore_price_tag,
}


def options(control):
    """What the control's options stand for."""
    return [value for _, value in control.options]


@pytest.mark.parametrize("explore", EXPLORERS.values())
def test_every_value_of_every_control_changes_the_picture_and_at_first_it_is_the_figure_functions(explore):
    explorer = explore()
    check_controls(explorer)
    assert explorer.picture.value == png(explorer.draw())


@pytest.mark.parametrize(
    ("explore", "draw"),
    [
        (views.explore_all_reduce_seconds, views.all_reduce_seconds),
        (views.explore_ring_bill, views.ring_bill),
        (views.explore_group_times, views.group_times),
        (views.explore_bubble_prices, views.bubble_prices),
        (views.explore_price_tag, views.price_tag),
    ],
)
def test_a_widget_starts_as_its_figure_function_draws_without_being_told(explore, draw):
    explorer = explore()
    assert repr(explorer) == f"{explorer.name}: {draw()!r}"


@pytest.mark.parametrize(
    ("explore", "draw", "values"),
    [
        (views.explore_all_reduce_seconds, views.all_reduce_seconds, {"ranks": 8, "latency": 14e-6}),
        (views.explore_tensor, views.tensor, {"S": 1024, "ranks_per_node": 32}),
        (views.explore_price_tag, views.price_tag, {"params": 7.5e9, "tokens": 4096, "cluster": DGX_H100}),
    ],
)
def test_the_picture_is_the_figure_functions_with_the_controls_values(explore, draw, values):
    explorer = explore()
    for name, value in values.items():
        explorer.controls[name].value = value
    assert explorer.picture.value == png(draw(**values))
    assert explorer.numbers.value == f"<pre>{escape(repr(draw(**values)))}</pre>"
    assert repr(explorer) == f"{explorer.name}: {draw(**values)!r}"


@pytest.mark.parametrize("explore", EXPLORERS.values())
def test_every_control_has_a_name_and_shows_its_default(explore):
    for control in explore().controls.values():
        assert control.description
        assert control.index is not None  # with the value None a menu would show nothing
        assert len(control.options) >= 2


def test_sliders_follow_the_hand():
    assert steps("ranks", [("1", 1), ("2", 2)], 1).continuous_update


@pytest.mark.parametrize("explore", EXPLORERS.values())
def test_the_text_of_a_widget_names_no_object_and_where_no_kernel_is_it_shows_its_figures_picture(explore):
    explorer = explore()
    bundle, described = explorer._repr_mimebundle_()
    assert bundle["text/plain"].startswith("explore_")
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "children" not in bundle["text/plain"]
    assert bundle["text/plain"] == explore()._repr_mimebundle_()[0]["text/plain"]
    assert (b64decode(bundle["image/png"]), described["image/png"]) == explorer.figure._repr_png_()


def test_a_picture_in_a_widget_is_a_png_of_1000_pixels():
    with Image.open(io.BytesIO(views.explore_all_reduce_seconds().picture.value)) as picture:
        assert picture.format == "PNG"
        assert picture.width == 1000


def test_any_figure_function_becomes_an_explorer():
    explorer = Explorer("explore_rings", {"ranks": steps("ranks", [("2", 2), ("4", 4)], 2)}, views.all_reduce_seconds)
    explorer.controls["ranks"].value = 4
    assert repr(explorer) == f"explore_rings: {views.all_reduce_seconds(4)!r}"


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
