"""What holds for all of ring attention's figures: text that is read, the same pixels twice, bad input."""

import pytest

from parlab import run, views
from parlab.sequence import LAYOUTS
from parlab.views.drawing.picture import png
from tests.views.attention.ring_runs import SIZES, D, G, H, both_ways, growth, rings
from tests.views.drawn import check_refused, check_text

FIGURES = {
    **{
        f"steps of {size}{' backward' * back}": (lambda size=size, back=back: views.ring_steps(size, backward=back))
        for size in SIZES
        for back in (False, True)
    },
    **{
        f"{layout} masks of {size}": (lambda size=size, layout=layout: views.ring_masks(4 * size, size, layout))
        for size in SIZES
        for layout in LAYOUTS
    },
    "masks of 1024 tokens": lambda: views.ring_masks(1024, 16, "zigzag"),
    **{
        f"{layout} overlap of {size}": (lambda size=size, layout=layout: views.ring_overlap(layout, size))
        for size in SIZES
        for layout in LAYOUTS
    },
    "overlap between": lambda: views.ring_overlap("contiguous"),
    **{f"three runs of {size}": (lambda size=size: views.compare_timelines(rings(size))) for size in SIZES},
    "one run of 33": lambda: views.compare_timelines({"long name " * 3: run(lambda comm: comm.barrier(), 33)}),
    "no time": lambda: views.compare_timelines({"nothing": run(lambda comm: None, 2)}),
    **{
        f"growth of {size}": (lambda size=size: growth({S: both_ways(S, size) for S in (32, 64)})) for size in SIZES[1:]
    },
    "growth of one length": lambda: growth({64: both_ways(64, 2)}),
}


@pytest.mark.parametrize("name", FIGURES)
def test_all_text_is_on_the_canvas_large_enough_and_free_of_other_text(name):
    check_text(FIGURES[name]())


@pytest.mark.parametrize(
    "name",
    ["steps of 4 backward", "zigzag masks of 4", "striped overlap of 4", "three runs of 8", "growth of 4"],
)
def test_drawn_twice_gives_the_same_pixels(name):
    assert png(FIGURES[name]()) == png(FIGURES[name]())


DONE = {64: both_ways(64, 2)[0]}
BACK = {64: both_ways(64, 2)[1]}

REFUSED = [
    (lambda: views.ring_steps(0), "size=0", "1 to 16"),
    (lambda: views.ring_steps(17), "size=17", "1 to 16"),
    (lambda: views.ring_steps(4.0), "size=4.0", "whole number"),
    (lambda: views.ring_steps(True), "size=True", "whole number"),
    (lambda: views.ring_masks(0, 4), "S=0", "1 to 1024"),
    (lambda: views.ring_masks(2048, 4), "S=2048", "1 to 1024"),
    (lambda: views.ring_masks("32", 4), "S='32'", "whole number"),
    (lambda: views.ring_masks(32, 32), "size=32", "1 to 16"),
    (lambda: views.ring_masks(10, 4), "length 10", "multiple of 4"),
    (lambda: views.ring_masks(12, 4, "zigzag"), "length 12", "multiple of 8"),
    (lambda: views.ring_masks(32, 4, "spiral"), "layout='spiral'", "contiguous, zigzag, striped"),
    (lambda: views.ring_growth({}, {}, H, G, D, 4), "lengths []", "the same lengths"),
    (lambda: views.ring_growth(DONE, {128: BACK[64]}, H, G, D, 4), "backward [128]", "the same lengths"),
    (lambda: views.ring_growth(DONE, {64: both_ways(64, 4)[1]}, H, G, D, 4), "[2, 4] ranks", "one number of ranks"),
    (lambda: views.ring_growth({64: 3}, BACK, H, G, D, 4), "forward[64]=3", "what run()"),
    (lambda: views.ring_growth(DONE, {64: None}, H, G, D, 4), "backward[64]=None", "what run()"),
    (lambda: views.ring_growth([64], BACK, H, G, D, 4), "forward=[64]", "{length: run}"),
    (
        lambda: views.ring_growth({64: both_ways(64, 1)[0]}, {64: both_ways(64, 1)[1]}, H, G, D, 4),
        "1 rank",
        "2 or more",
    ),
    (lambda: views.ring_overlap("spiral"), "layout='spiral'", "contiguous, zigzag, striped"),
    (lambda: views.ring_overlap(tokens=7), "length 28", "multiple of 8"),
    (lambda: views.ring_overlap(tokens=0), "tokens=0", "1 to 1024"),
    (lambda: views.ring_overlap(tokens=64.0), "tokens=64.0", "whole number"),
    (lambda: views.ring_overlap(size=0), "size=0", "1 to 16"),
    (lambda: views.ring_overlap(kv_heads=3), "kv_heads=3", "1, 2 or 4"),
    (lambda: views.ring_overlap(bandwidth=0), "bandwidth=0", "greater than 0"),
    (lambda: views.compare_timelines({}), "runs={}", "at least one"),
    (lambda: views.compare_timelines([3]), "runs=[3]", "{name: run}"),
    (lambda: views.compare_timelines({"one": 3}), "runs['one']=3", "what run() or simulate() returned"),
    (lambda: views.compare_timelines({"one": DONE[64]}, headline=3), "headline=3", "text"),
]


@pytest.mark.parametrize(
    ("call", "value", "right"), REFUSED, ids=[f"{value} -> {right}" for _, value, right in REFUSED]
)
def test_refused(call, value, right):
    check_refused(call, value, right)


def test_clocks_of_different_units_are_not_compared():
    from parlab.pipeline import gpipe, simulate

    with pytest.raises(ValueError, match="one clock needs one unit"):
        views.compare_timelines({"ring": DONE[64], "pipeline": simulate(gpipe(2, 2))})
