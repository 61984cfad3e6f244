"""The ring's widgets: the clock's verdict, and a picture for every position of every control."""

import pytest

from parlab import Cluster, run, views
from parlab.sequence import (
    LAYOUTS,
)
from parlab.views.attention import explore as explore_ring
from parlab.views.drawing.picture import png
from tests.views.drawn import boxes


def unhindered(layout, size, tokens, kv_heads):
    """The makespan when transfers take no time."""
    done = explore_ring._ran(layout, size, tokens, kv_heads)
    return done.on(Cluster.uniform(0, 1e18, flops=explore_ring.FLOPS)).makespan


SLIDERS = {
    name: [value for _, value in control.options] for name, control in views.explore_ring_overlap().controls.items()
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [2, 8])
def test_the_headline_says_hidden_where_the_clock_shows_no_lost_time(layout, size):
    verdicts = set()
    for tokens in SLIDERS["tokens"]:
        for bandwidth in SLIDERS["bandwidth"]:
            shown = explore_ring._ran(layout, size, tokens, 4).on(
                Cluster.uniform(0, bandwidth, flops=explore_ring.FLOPS)
            )
            lost = shown.makespan - unhindered(layout, size, tokens, 4)
            verdict = explore_ring._verdict(layout, tokens, 2 * explore_ring.FLOPS / bandwidth)
            verdicts.add(verdict.partition(" ")[0])
            assert verdict.startswith("every block hides") == (lost <= size)  # a picosecond of rounding a hop
            hop = max(t.end - t.start for t in shown.transfers)
            assert not verdict.startswith("full blocks hide") or lost < hop  # the first hop alone, and only in part
    assert verdicts == {"every", "too", "full"} if layout == "contiguous" else {"every", "too"}


@pytest.mark.parametrize(("kv_heads", "needed"), [(4, 80), (2, 40), (1, 20)])
def test_1_tflops_over_50_gb_a_second_in_float32_needs_20_tokens_times_4_g_over_h(kv_heads, needed):
    figure = views.ring_overlap("zigzag", tokens=8, kv_heads=kv_heads, bandwidth=50e9)
    assert figure.texts[0].get_text().endswith(f"half-masked blocks hide the next K/V from {needed} on")


def test_the_overlaps_bars_are_those_of_the_run_on_the_sliders_cluster():
    figure = views.ring_overlap("zigzag", 4, 32, 2, 20e9)
    done = explore_ring._ran("zigzag", 4, 32, 2).on(Cluster.uniform(0, 20e9, flops=explore_ring.FLOPS))
    drawn = sorted((round(low + 0.23), left, right) for left, right, low, _ in boxes(figure, "computes"))
    assert drawn == sorted((span.rank, span.start, span.end) for span in done.computes)
    assert repr(figure).endswith(repr(done))
    assert figure.texts[0].get_text() in repr(figure)


def test_moving_the_bandwidth_runs_no_rank_again(monkeypatch):
    explorer, started = views.explore_ring_overlap(), []
    explore_ring._ran.cache_clear()
    monkeypatch.setattr(explore_ring, "run", lambda *given, **named: started.append(given) or run(*given, **named))
    pictures = set()
    for bandwidth in SLIDERS["bandwidth"]:
        explorer.controls["bandwidth"].value = bandwidth
        pictures.add(explorer.picture.value)
    assert len(pictures) == len(SLIDERS["bandwidth"])
    assert len(started) == 1
    explorer.controls["tokens"].value = 8
    assert len(started) == 2
    explorer.controls["tokens"].value = 64
    assert len(started) == 2


@pytest.mark.parametrize("explore", [views.explore_ring_masks, views.explore_ring_overlap])
def test_every_value_of_every_control_changes_the_picture(explore):
    for name, control in explore().controls.items():
        explorer, seen = explore(), set()
        for _, value in control.options:
            explorer.controls[name].value = value
            seen.add(explorer.picture.value)
        assert len(seen) == len(control.options)


def test_the_widgets_pictures_are_those_of_the_figure_functions():
    masks, overlap = views.explore_ring_masks(), views.explore_ring_overlap()
    masks.controls["layout"].value, masks.controls["tokens"].value = "striped", 4
    overlap.controls["size"].value, overlap.controls["kv_heads"].value = 3, 1
    assert masks.picture.value == png(views.ring_masks(16, 4, "striped"))
    assert overlap.picture.value == png(views.ring_overlap(size=3, kv_heads=1))
    assert repr(overlap) == f"explore_ring_overlap: {views.ring_overlap(size=3, kv_heads=1)!r}"
