"""The ring's widgets: the clock's verdict, and a picture for every position of every control."""

import math

import numpy as np
import pytest
from matplotlib.text import Text

from parlab import Cluster, per_rank, run, views
from parlab.sequence import hidden_from, ring_attention, shard, unmasked_pairs
from parlab.views.attention import overlap as explore_ring
from parlab.views.attention.overlap import FLOPS, LINES, TOKENS
from parlab.views.drawing.picture import png
from tests.views.drawn import artists, title

SLIDERS = {
    name: [value for _, value in control.options] for name, control in views.explore_ring_overlap().controls.items()
}


def points(figure, layout):
    """Where a line goes, (tokens, part), from left to right. Its dots are the stops; at most one place has none."""
    (line,) = artists(figure, layout)
    along, parts = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    assert line.get_marker() == "o"
    assert along[line.get_markevery()].tolist() == list(TOKENS)
    assert (np.diff(along) > 0).all()
    assert set(TOKENS) <= set(along)
    assert len(along) <= len(TOKENS) + (layout == "zigzag")
    return list(zip(along.tolist(), parts.tolist(), strict=True))


def curve(figure, layout):
    """The parts at the dots."""
    found = dict(points(figure, layout))
    return [found[c] for c in TOKENS]


def bound(figure):
    (line,) = artists(figure, "bound")
    return line.get_xdata()[0]


@pytest.mark.parametrize("size", [2, 4, 8])
def test_zigzag_computes_all_the_time_from_the_bound_on_and_never_below(size):
    for bandwidth in SLIDERS["bandwidth"]:
        figure = views.ring_overlap(size, 4, bandwidth)
        for tokens, part in points(figure, "zigzag"):
            assert (part > 1 - 1e-4) == (tokens >= bound(figure))  # 1e-4: a picosecond of rounding a hop


@pytest.mark.parametrize("latency", SLIDERS["latency"])
@pytest.mark.parametrize("kernel", SLIDERS["kernel"])
@pytest.mark.parametrize("kv_heads", SLIDERS["kv_heads"])
def test_zigzags_line_bends_on_the_bound_wherever_a_slider_puts_it(kv_heads, kernel, latency):
    """The first place where all is work is the bound's, or the next even number: zigzag needs one."""
    for bandwidth in SLIDERS["bandwidth"]:
        figure = views.ring_overlap(4, kv_heads, bandwidth, kernel, latency)
        found, edge = points(figure, "zigzag"), bound(figure)
        if edge <= figure.axes[0].get_xlim()[1] - 2:
            bend = next(tokens for tokens, part in found if part > 1 - 1e-4)
            assert bend == max(2 * math.ceil(edge / 2), TOKENS[0])
        else:
            assert [tokens for tokens, _ in found] == list(TOKENS)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_place_of_the_bend_is_what_a_run_with_so_many_tokens_computes(size):
    """20 GB/s: 200 tokens, which is no stop. With 1 µs of latency 260.1, right of the last stop: the c of
    64c² / 10¹² = 10⁻⁶ + 256c / (20 · 10⁹).
    """
    for latency, bend in ((0.0, 200), (1e-6, 262)):
        figure = views.ring_overlap(size, 4, 20e9, latency=latency)
        (at,) = [tokens for tokens, _ in points(figure, "zigzag") if tokens not in TOKENS]
        assert at == bend
        x = per_rank(shard(np.zeros((1, 4, size * bend, 8), dtype=np.float32), size, "zigzag"))
        cluster = Cluster.uniform(latency, 20e9, flops=FLOPS)
        clock = run(ring_attention, size, x, x, x, causal=True, layout="zigzag", cluster=cluster).timeline
        part = sum(map(clock.busy, range(size))) / (size * clock.makespan)
        assert dict(points(figure, "zigzag"))[bend] == pytest.approx(part, abs=1e-6)


@pytest.mark.parametrize("layout", LINES)
@pytest.mark.parametrize("size", [2, 8])
def test_far_above_the_bound_only_uneven_work_is_lost(layout, size):
    part = curve(views.ring_overlap(size, 1, 200e9), layout)[-1]
    pairs = unmasked_pairs(size * TOKENS[-1], size, layout)
    assert part == pytest.approx(sum(pairs) / (size * max(pairs)), rel=2e-3)


@pytest.mark.parametrize(("kv_heads", "needed"), [(4, 80), (2, 40), (1, 20)])
def test_1_tflops_over_50_gb_a_second_in_float32_needs_20_tokens_times_4_g_over_h(kv_heads, needed):
    figure = views.ring_overlap(kv_heads=kv_heads, bandwidth=50e9)
    assert bound(figure) == needed
    assert title(figure) == f"4 ranks: zigzag hides every transfer from {needed} tokens a rank on"


def test_a_kernel_at_half_of_the_peak_halves_the_bound():
    figure = views.ring_overlap(kernel=0.5)
    assert bound(figure) == 40
    assert title(figure) == "4 ranks: zigzag hides every transfer from 40 tokens a rank on"


def test_a_learners_bound_is_the_line_with_the_figures_operations_bytes_and_speeds():
    given = []

    def mine(*four):
        given.append(four)
        return 123

    figure = views.ring_overlap(4, 2, 20e9, kernel=0.5, latency=1e-6, bound=mine)
    assert bound(figure) == 123
    assert given == [(4 * 8 * 4, 2 * 2 * 8 * 4, 0.5e12, 20e9)]
    assert "your bound" in [text.get_text() for text in figure.findobj(Text)]


@pytest.mark.parametrize("kernel", SLIDERS["kernel"])
@pytest.mark.parametrize("kv_heads", SLIDERS["kv_heads"])
def test_the_bound_of_the_exercise_is_the_librarys_line_without_latency_and_stands_in_the_picture(kernel, kv_heads):
    for bandwidth in SLIDERS["bandwidth"]:
        mine = views.ring_overlap(4, kv_heads, bandwidth, kernel, bound=hidden_from)
        assert bound(mine) == pytest.approx(bound(views.ring_overlap(4, kv_heads, bandwidth, kernel)))
        low, high = mine.axes[0].get_xlim()
        assert low < bound(mine) < high


def test_with_1_us_of_latency_the_line_of_the_exercise_stays_at_80_and_the_headline_says_172():
    figure = views.ring_overlap(latency=1e-6, bound=hidden_from)
    assert bound(figure) == 80
    assert "the bound" in [text.get_text() for text in figure.findobj(Text)]
    assert title(figure) == "4 ranks: zigzag hides every transfer from 172 tokens a rank on"


def test_a_bound_of_5_tokens_is_6_in_the_headline_as_a_zigzag_shard_has_two_pieces():
    figure = views.ring_overlap(8, 1, 200e9)
    assert bound(figure) == 5
    assert title(figure) == "8 ranks: zigzag hides every transfer from 6 tokens a rank on"
    assert dict(points(figure, "zigzag"))[6] == 1 > dict(points(figure, "zigzag"))[4]


@pytest.mark.parametrize("wrong", [3, "80"])
def test_a_bound_that_is_no_function_is_refused(wrong):
    for draw in (views.ring_overlap, views.explore_ring_overlap):
        with pytest.raises(ValueError, match=r"^bound=.*: must be a function \(flops, nbytes, F, W\)"):
            draw(bound=wrong)


def test_a_bound_that_finds_no_number_is_refused():
    with pytest.raises(ValueError, match=r"^bound\(flops, nbytes, F, W\)="):
        views.ring_overlap(bound=lambda *four: float("nan"))


def test_a_dot_is_what_the_run_on_the_sliders_cluster_computed_of_its_time():
    done = explore_ring._ran("contiguous", 4, 32, 2).on(Cluster.uniform(0, 20e9, flops=FLOPS))
    busy = sum(span.end - span.start for span in done.computes)
    figure = views.ring_overlap(4, 2, 20e9)
    part = curve(figure, "contiguous")[TOKENS.index(32)]
    assert part == busy / (4 * done.makespan)
    (row,) = [line for line in repr(figure).splitlines() if line.startswith("contiguous")]
    assert row.split()[1 + TOKENS.index(32)] == f"{part:.0%}"


def test_moving_the_bandwidth_runs_no_rank_again(monkeypatch):
    explorer, started = views.explore_ring_overlap(), []
    explore_ring._ran.cache_clear()
    monkeypatch.setattr(explore_ring, "run", lambda *given, **named: started.append(given) or run(*given, **named))
    pictures = set()
    for bandwidth in SLIDERS["bandwidth"]:
        explorer.controls["bandwidth"].value = bandwidth
        pictures.add(explorer.picture.value)
    assert len(pictures) == len(SLIDERS["bandwidth"])
    assert len(started) == len(LINES) * len(TOKENS)


@pytest.mark.parametrize("explore", [views.explore_ring_masks, views.explore_ring_overlap, views.explore_ring_seconds])
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
    overlap.controls["size"].value, overlap.controls["kv_heads"].value = 2, 1
    assert masks.picture.value == png(views.ring_masks(16, 4, "striped"))
    assert overlap.picture.value == png(views.ring_overlap(2, 1))
    assert repr(overlap) == f"explore_ring_overlap: {views.ring_overlap(2, 1)!r}"
