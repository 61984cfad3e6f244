"""Every control redraws its picture, which is the figure function's; the text is stable."""

import io
from base64 import b64decode
from html import escape

import pytest
from PIL import Image

from parlab import views
from parlab.views.drawing.picture import png
from parlab.views.timelines import exchange
from parlab.views.timelines.exchange import AHEAD, SIZES
from parlab.views.widgets.explorer import BANDWIDTHS, LATENCIES, Explorer, steps
from parlab.world import DGX_H100
from tests.views.drawn import check_controls, title

EXPLORERS = {
    "two ranks": views.explore_two_ranks,
    "all-reduce seconds": views.explore_all_reduce_seconds,
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
        (views.explore_two_ranks, views.two_ranks),
        (views.explore_all_reduce_seconds, views.all_reduce_seconds),
        (views.explore_ring_bill, views.ring_bill),
        (views.explore_links, views.link_bill),
        (views.explore_bubble_prices, views.bubble_prices),
        (views.explore_price_tag, views.price_tag),
        (views.explore_layout, views.layout),
    ],
)
def test_a_widget_starts_as_its_figure_function_draws_without_being_told(explore, draw):
    explorer = explore()
    assert repr(explorer) == f"{explorer.name}: {draw()!r}"


@pytest.mark.parametrize(
    ("explore", "draw", "values"),
    [
        (views.explore_two_ranks, views.two_ranks, {"nbytes": 10**6, "latency": 5e-5, "order": list(views.ORDERS)[1]}),
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


@pytest.mark.parametrize("latency", [LATENCIES[0][1], LATENCIES[-1][1]])
@pytest.mark.parametrize("bandwidth", [BANDWIDTHS[0][1], BANDWIDTHS[-1][1]])
@pytest.mark.parametrize("order", list(views.ORDERS)[:-1])
@pytest.mark.parametrize("nbytes", [256, 2**22])
def test_two_ranks_take_as_long_as_their_formula_says(order, nbytes, latency, bandwidth):
    headline = title(views.two_ranks(order, nbytes, latency, bandwidth))
    said, _, by_the_clock = headline.rpartition(" = ")[2].partition(", by the clock ")
    assert said == by_the_clock


def test_moving_latency_and_bandwidth_runs_no_rank_again(monkeypatch):
    exchange._ran.cache_clear()
    explorer = views.explore_two_ranks()

    def refuse(*_):
        raise AssertionError("ran again")

    monkeypatch.setattr(exchange, "run", refuse)
    explorer.controls["latency"].value = 5e-5
    explorer.controls["bandwidth"].value = 1e9
    with pytest.raises(AssertionError, match="ran again"):
        explorer.controls["nbytes"].value = 1000


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
    with Image.open(io.BytesIO(views.explore_two_ranks().picture.value)) as picture:
        assert picture.format == "PNG"
        assert picture.width == 1000


def test_any_figure_function_becomes_an_explorer():
    explorer = Explorer("explore_rings", {"ranks": steps("ranks", [("2", 2), ("4", 4)], 2)}, views.all_reduce_seconds)
    explorer.controls["ranks"].value = 4
    assert repr(explorer) == f"explore_rings: {views.all_reduce_seconds(4)!r}"


@pytest.mark.parametrize(
    ("latency", "bandwidth", "nbytes"), [(5e-6, 10e9, 200_000), (5e-6, 5e9, 100_000), (20e-6, 10e9, 50_000)]
)
def test_the_longest_message_that_25_microseconds_hide_is_a_stop_of_the_slider(latency, bandwidth, nbytes):
    longer = SIZES[SIZES.index(nbytes) + 1]
    for size, hidden in ((nbytes, True), (longer, False)):
        assert title(views.two_ranks(AHEAD, size, latency, bandwidth)).endswith("by the clock 25.0 µs") == hidden
