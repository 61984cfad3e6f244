"""What holds for all of ring attention's figures: text that is read, the same pixels twice, bad input."""

import pytest

from parlab import run, views
from parlab.sequence import LAYOUTS
from parlab.views.engine.picture import png
from tests.views.drawn import check_refused, check_text
from tests.views.sequence.ring_runs import SIZES, rings

FIGURES = {
    **{
        f"{layout} masks of {size}": (lambda size=size, layout=layout: views.ring_masks(4 * size, size, layout))
        for size in SIZES
        for layout in LAYOUTS
    },
    "masks of 1024 tokens": lambda: views.ring_masks(1024, 16, "zigzag"),
    **{f"three runs of {size}": (lambda size=size: views.compare_timelines(rings(size))) for size in SIZES},
    "one run of 33": lambda: views.compare_timelines({"long name " * 3: run(lambda comm: comm.barrier(), 33)}),
    "no time": lambda: views.compare_timelines({"nothing": run(lambda comm: None, 2)}),
}


@pytest.mark.parametrize("name", FIGURES)
def test_all_text_is_on_the_canvas_large_enough_and_free_of_other_text(name):
    check_text(FIGURES[name]())


@pytest.mark.parametrize(
    "name",
    ["zigzag masks of 4", "three runs of 8"],
)
def test_drawn_twice_gives_the_same_pixels(name):
    assert png(FIGURES[name]()) == png(FIGURES[name]())


DONE = rings(2)["full"]

REFUSED = [
    (lambda: views.ring_masks(0, 4), "S=0", "1 to 1024"),
    (lambda: views.ring_masks(2048, 4), "S=2048", "1 to 1024"),
    (lambda: views.ring_masks("32", 4), "S='32'", "whole number"),
    (lambda: views.ring_masks(32, 32), "size=32", "1 to 16"),
    (lambda: views.ring_masks(10, 4), "length 10", "multiple of 4"),
    (lambda: views.ring_masks(12, 4, "zigzag"), "length 12", "multiple of 8"),
    (lambda: views.ring_masks(32, 4, "spiral"), "layout='spiral'", "contiguous, zigzag, striped"),
    (lambda: views.ring_masks(4.0, 4), "S=4.0", "whole number"),
    (lambda: views.ring_masks(4, True), "size=True", "whole number"),
    (lambda: views.compare_timelines({}), "runs={}", "at least one"),
    (lambda: views.compare_timelines([3]), "runs=[3]", "{name: run}"),
    (lambda: views.compare_timelines({"one": 3}), "runs['one']=3", "what run() or simulate() returned"),
    (lambda: views.compare_timelines({"one": DONE}, headline=3), "headline=3", "text"),
]


@pytest.mark.parametrize(
    ("call", "value", "right"), REFUSED, ids=[f"{value} -> {right}" for _, value, right in REFUSED]
)
def test_refused(call, value, right):
    check_refused(call, value, right)


def test_clocks_of_different_units_are_not_compared():
    from parlab.pipeline import gpipe, simulate

    with pytest.raises(ValueError, match="one clock needs one unit"):
        views.compare_timelines({"ring": DONE, "pipeline": simulate(gpipe(2, 2))})
