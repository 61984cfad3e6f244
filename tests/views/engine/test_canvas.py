"""What holds for every figure: it fits its canvas, comes out the same twice, and leaves no trace outside itself."""

from itertools import product

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text

from parlab import run, views
from parlab.pipeline import one_f_one_b
from parlab.views.engine.canvas import Canvas, Ruler
from parlab.views.engine.picture import plot, png, scale
from tests.views.drawn import both_send_first, nothing, ring, stuck, texts

FIGURES = {
    "timeline": lambda: views.timeline(run(ring, 8, np.ones(256))),
    "no time": lambda: views.timeline(run(nothing, 4)),
    "deadlock": lambda: views.deadlock(stuck(both_send_first, 5)),
    "all-reduce": lambda: views.all_reduce_seconds(4),
    "schedule": lambda: views.schedule(one_f_one_b(3, 4)),
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_run_drawn_twice_gives_the_same_pixels_and_a_figure_keeps_its_size(name):
    figure = FIGURES[name]()
    before = png(figure)
    figure._repr_png_()
    assert png(figure) == before == png(FIGURES[name]())


def on_white(renderer, text, prop, angle, x, y):
    """The pixels [height, width, RGB] of a text in a half transparent red, from 0 to 1."""
    renderer.clear()
    pen = renderer.new_gc()
    pen.set_foreground("#B30000")
    pen.set_alpha(0.5)
    renderer.draw_text(pen, x, y, text, prop, angle)
    drawn = np.array(renderer.buffer_rgba()) / 255
    return 1 - drawn[..., 3:] * (1 - drawn[..., :3])


TEXTS = [
    *product(("d 128, p 16: 6.4 s", "jWj", "µ ½ → ■", "-", "_", "√ ∘", " AVA", "fi"), (["sans-serif"], ["monospace"])),
    ("a → ■ √", ["cmr10", "sans-serif"]),  # the first has letters and no signs
]


@pytest.mark.skipif(matplotlib.__version_info__ < (3, 11), reason="3.10 sets letters up to a pixel elsewhere")
@pytest.mark.parametrize(("angle", "off"), [(0, 0.01), (90, 0.04)])
@pytest.mark.parametrize(("size", "dpi", "weight"), [(7, 100, "bold"), (13, 150, "normal")])
def test_a_text_has_matplotlibs_pixels_at_the_nearest_whole_place_but_for_1_percent_upright_for_4(
    size, dpi, weight, angle, off
):
    kept, plain = Canvas(Figure((4, 4), dpi=dpi)).get_renderer(), RendererAgg(4 * dpi, 4 * dpi, dpi)
    for text, family in TEXTS:
        prop = FontProperties(family=family, size=size, weight=weight)
        ours = on_white(kept, text, prop, angle, 99.7, 300.4)
        assert np.abs(ours - on_white(plain, text, prop, angle, 100, 300)).max() <= off
        assert ours.min() < 0.8


def test_a_text_is_drawn_once(monkeypatch):
    png(FIGURES["all-reduce"]())
    monkeypatch.setattr(RendererAgg, "draw_text", None)
    png(FIGURES["all-reduce"]())


def test_what_is_measured_stands_below_the_horizontal_axis_and_left_of_the_upright_one():
    figure = views.all_reduce_seconds(8)
    places, axes = dict(texts(figure)), figure.axes[0].get_window_extent()
    below, beside = places["bytes of the array, on every rank"], places["time"]
    assert below.y1 < places["10 kB"].y0 < axes.y0 < beside.y0
    assert beside.x1 < places["10 µs"].x0 < axes.x0 < below.x0
    assert beside.height > beside.width


def test_no_tick_is_named_beyond_the_end_of_a_logarithmic_axis():
    figure, axes = plot("", 3)
    scale(axes.xaxis, "error", ends=(1e-17, 10), log=10)
    figure.canvas.draw()
    ruler = next(artist for artist in figure.axes[0].get_children() if isinstance(artist, Ruler))
    *named, _ = [part for part in ruler.get_children() if isinstance(part, Text)]  # the last: what is measured
    powers = [name.get_position()[0] for name in named]
    assert len(powers) > 5
    assert 1e-17 <= min(powers) < max(powers) <= 10
