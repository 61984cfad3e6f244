"""Ring attention's figures show what the schedule, the masks, the runs and the formulas say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Text

from parlab import Cluster, per_rank, run, views
from parlab.sequence import (
    LAYOUTS,
    RingSchedule,
    bytes_sent,
    forward_bytes_held,
    ring_attention,
    ring_attention_backward,
    score_bytes,
    shard,
    unmasked_pairs,
)
from parlab.views import explore_ring, marks, theme
from parlab.views.picture import png
from parlab.views.ring_masks import MASKED, SKIPPED
from tests.views.drawn import artists, boxes, texts

SIZES = (1, 2, 4, 8, 16)
H, G, D = 4, 2, 8


# ring_steps


@pytest.fixture
def written(monkeypatch):
    """The words that are written into boxes: (middle, lane, text), as they are drawn."""
    words = []
    write = marks._write

    def record(axes, x, y, texts, colors, size):
        words.extend(zip(x, y, texts, strict=True))
        write(axes, x, y, texts, colors, size)

    monkeypatch.setattr(marks, "_write", record)
    return words


def cells(figure, name):
    """(column, rank, colour) of every box."""
    (drawn,) = artists(figure, name)
    colors = [to_hex(color).upper() for color in drawn.get_facecolors()]
    places = [(int(left), round((low + high) / 2)) for left, _, low, high in boxes(figure, name)]
    return dict(zip(places, colors, strict=True))


@pytest.mark.parametrize("size", SIZES)
def test_each_cell_has_the_colour_and_the_number_of_the_kv_that_the_rank_holds_then(size, written):
    held = {(0, rank): rank for rank in range(size)} | {
        (step.step + 1, rank): step.kv_source for rank in range(size) for step in RingSchedule(rank, size).steps
    }
    figure = views.ring_steps(size)
    assert cells(figure, "K/V") == {place: theme.rank_color(source) for place, source in held.items()}
    said = {(int(x), round(y)): text for x, y, text in written}
    assert {place: int(text.split()[-1]) for place, text in said.items()} == held
    for rank in range(size):
        assert f"rank {rank}: K/V of {', '.join(str(held[hop, rank]) for hop in range(size))}" in repr(figure)


@pytest.mark.parametrize("size", SIZES[1:])
def test_gradients_follow_their_kv_collect_n_shares_and_hop_n_comes_home(size, written):
    figure = views.ring_steps(size, backward=True)
    # What starts at rank s is on rank s + hop after each hop, and has a share of each rank it has been on.
    held = {(hop, rank): (rank - hop) % size for hop in range(size + 1) for rank in range(size)}
    assert cells(figure, "dK/dV") == {place: theme.rank_color(source) for place, source in held.items()}
    assert {held[size, rank] - rank for rank in range(size)} == {0}
    for x, y, text in written:
        hop, rank = int(x), round(y)
        source, _, shares = text.removeprefix("dK/dV ").partition(": ")
        assert int(source) == held[hop, rank]
        assert shares in ("", f"{min(hop + 1, size)}/{size}")
    assert len(written) == len(held)


def test_a_ring_that_is_shifted_by_one_would_be_noticed(monkeypatch, written):
    monkeypatch.setitem(
        views.ring_steps.__globals__, "RingSchedule", lambda rank, size: RingSchedule((rank + 1) % size, size)
    )
    with pytest.raises(AssertionError):
        test_each_cell_has_the_colour_and_the_number_of_the_kv_that_the_rank_holds_then(4, written)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_every_arrow_leads_from_a_rank_to_its_right_into_the_next_column(size, backward):
    arrows = artists(views.ring_steps(size, backward=backward), "arrows")
    segments = [segment for drawn in arrows for segment in drawn.get_segments()]
    hops = 0 if size == 1 else size - 1 + backward
    assert len(segments) == hops * size
    for (x, y), (tip, end) in segments:
        assert int(tip) == int(x) + 1
        assert end == (y + 1) % size


# ring_masks


def causal_mask(S):
    """Who sees whom among all tokens of the sequence, whichever rank has them: `[S, S]`."""
    return np.tril(np.ones((S, S), dtype=bool))


def dealt(S, size, layout):
    """Token positions in each rank's shard, dealt out by hand: `[P, S/P]`."""
    if layout == "striped":
        return np.arange(S).reshape(-1, size).T
    if layout == "contiguous":
        return np.arange(S).reshape(size, -1)
    chunks = np.arange(S).reshape(2 * size, -1)
    return np.concatenate([chunks[:size], chunks[::-1][:size]], axis=1)


def pixels(figure):
    (image,) = figure.axes[0].get_images()
    return np.asarray(image.get_array())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_the_causal_mask_between_the_tokens_of_both_ranks(size, layout, causal):
    S = 4 * size
    image, owned = pixels(views.ring_masks(S, size, layout, causal=causal)), dealt(S, size, layout)
    mask = causal_mask(S) if causal else np.ones((S, S), dtype=bool)
    for rank in range(size):
        for step in range(size):
            source = (rank - step) % size
            block = image[4 * rank : 4 * rank + 4, 4 * step : 4 * step + 4]
            seen = mask[np.ix_(owned[rank], owned[source])]
            assert (block[seen] == to_rgb(theme.rank_color(source))).all()
            hidden = {to_hex(color).upper() for color in block[~seen]}
            assert hidden <= {MASKED, SKIPPED}
            assert seen.any() or hidden == {SKIPPED}


@settings(max_examples=20)
@given(size=st.integers(1, 8), chunk=st.integers(1, 6), layout=st.sampled_from(LAYOUTS))
def test_as_many_pixels_are_coloured_as_pairs_are_attended_and_bars_are_as_long(size, chunk, layout):
    S = 2 * size * chunk
    figure = views.ring_masks(S, size, layout)
    blank = [to_rgb(MASKED), to_rgb(SKIPPED)]
    coloured = (pixels(figure)[:, :, None, :] != np.array(blank)).any(axis=-1).all(axis=-1)
    load = coloured.reshape(size, 2 * chunk, S).sum(axis=(1, 2)).tolist()
    assert load == unmasked_pairs(S, size, layout)
    assert [box[:2] for box in boxes(figure, "load")] == [(0, pairs) for pairs in load]
    assert artists(figure, "mean")[0].get_xdata() == [sum(load) / size] * 2
    shown = [text for text, _ in texts(figure)]
    assert all(f"{pairs}" in shown for pairs in load)
    assert all(f"rank {rank}: {pairs} pairs" in repr(figure) for rank, pairs in enumerate(load))


@pytest.mark.parametrize(("layout", "ratio"), [("contiguous", "1.73"), ("zigzag", "1"), ("striped", "1.09")])
def test_32_tokens_on_4_ranks_slowest_over_mean_57_of_33_and_1_and_12_of_11(layout, ratio):
    figure = views.ring_masks(32, 4, layout)
    assert figure.texts[0].get_text() == (
        f"{layout}, causal, 4 ranks, 32 tokens: the slowest rank has {ratio} × the mean work"
    )


def test_the_text_says_what_is_attended_in_each_step():
    assert repr(views.ring_masks(12, 3, "zigzag")).splitlines()[1:] == [
        "rank 0: 26 pairs; causal, full (late queries), full (late queries)",
        "rank 1: 26 pairs; causal, full (early keys), full (late queries)",
        "rank 2: 26 pairs; causal, full (early keys), full (early keys)",
    ]
    assert repr(views.ring_masks(6, 2)).splitlines()[1:] == [
        "rank 0: 6 pairs; causal, none",
        "rank 1: 15 pairs; causal, full",
    ]
    assert "rank 0: 9 pairs; causal, strict" in repr(views.ring_masks(6, 2, "striped"))
    assert "rank 0: 18 pairs; full, full" in repr(views.ring_masks(6, 2, causal=False))


def test_a_mask_that_is_off_by_one_would_be_noticed(monkeypatch):
    monkeypatch.setitem(globals(), "causal_mask", lambda S: np.tril(np.ones((S, S), dtype=bool), -1))
    with pytest.raises(AssertionError):
        test_pixels_are_the_causal_mask_between_the_tokens_of_both_ranks(4, "zigzag", True)


# ring_growth


def both_ways(S, size):
    random = np.random.default_rng(S)
    parts = [random.standard_normal((1, heads, S, D)).astype(np.float32) for heads in (H, H, G, G)]
    dout, *qkv = [per_rank(shard(x, size, "zigzag")) for x in parts]
    there = run(ring_attention, size, *qkv, causal=True, layout="zigzag")
    kept = [per_rank(list(x)) for x in zip(*there.results, strict=True)]
    return there, run(ring_attention_backward, size, dout, *qkv, *kept, causal=True, layout="zigzag")


@pytest.fixture(scope="module")
def runs():
    return {size: {S: both_ways(S, size) for S in (16, 64, 256)} for size in (2, 4, 8)}


def growth(runs_of, itemsize=4):
    there, back = ({S: pair[way] for S, pair in runs_of.items()} for way in (0, 1))
    return views.ring_growth(there, back, H, G, D, itemsize)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_dots_are_the_measured_bytes_and_curves_the_formulas_through_them(runs, size):
    figure = growth(runs[size])
    lengths = sorted(runs[size])
    sent = [[runs[size][S][way].timeline.bytes_sent(0) for S in lengths] for way in (0, 1)]
    held = [max(map(runs[size][S][0].timeline.peak_bytes, range(size))) for S in lengths]
    assert [dots.get_xydata().tolist() for dots in artists(figure, "measured")] == [
        [[S, value] for S, value in zip(lengths, values, strict=True)] for values in (*sent, held)
    ]
    curves = [line.get_ydata() for axes in figure.axes for line in axes.lines if line.get_gid() != "measured"]
    assert [list(values) for values in curves] == [
        [bytes_sent(S, size, G, D, 4) for S in lengths],
        [bytes_sent(S, size, G, D, 4, backward=True) for S in lengths],
        [forward_bytes_held(S, size, H, G, D, 4) for S in lengths],
        [score_bytes(S, size, H, 4) for S in lengths],
    ]
    assert [list(values) for values in curves[:3]] == [*sent, held]
    assert figure.texts[-1].get_text() == f"A rank of {size}: measured = formula at every length"
    for S, f, b, h in zip(lengths, *sent, held, strict=True):
        assert f"{S} tokens: sends {f} forward, {b} backward; holds {h};" in repr(figure)


def test_a_formula_for_float64_beside_runs_in_float32_is_called_wrong(runs):
    assert "measured is NOT the formula" in growth(runs[4], itemsize=8).texts[-1].get_text()


# ring_overlap


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


# the widgets


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


# compare_timelines


def rings(size=8):
    x = [per_rank(shard(np.zeros((1, heads, 8 * size, D)), size)) for heads in (H, G, G)]
    free = Cluster.uniform(0, 1e18)
    return {
        "full": run(ring_attention, size, *x, cluster=free),
        "causal": run(ring_attention, size, *x, causal=True, cluster=free),
        "zigzag": run(ring_attention, size, *x, causal=True, layout="zigzag", cluster=free),
    }


def test_each_panel_shows_its_runs_computes_and_waits_and_all_have_one_clock():
    done = rings()
    figure = views.compare_timelines(done)
    assert {axes.get_xlim() for axes in figure.axes} == {(0, done["full"].timeline.makespan)}
    panels = zip(artists(figure, "computes"), done.values(), strict=True)
    for drawn, one in panels:
        corners = [path.vertices for path in drawn.get_paths()]
        bars = sorted((round(float(v[:, 1].mean())), v[:, 0].min(), v[:, 0].max()) for v in corners)
        assert bars == sorted((s.rank, s.start, s.end) for s in one.timeline.computes if s.end > s.start)
    (waits,) = artists(figure, "waits")  # of the contiguous run alone: the others never wait
    assert waits.axes is figure.axes[1]
    shown = {(round((low + high) / 2), left, right) for left, right, low, high in boxes(figure, "waits")}
    assert shown == {(w.rank, w.start, w.end) for w in done["causal"].timeline.waits}


def test_contiguous_8_ranks_of_8_tokens_compute_for_65_121_of_the_time_and_zigzag_for_all_of_it():
    words = [text for text, _ in texts(views.compare_timelines(rings()))]
    assert "causal: makespan 62.0 ns, the ranks compute 54% of it" in words  # (8·8 + 1)/(15·8 + 1) = 65/121
    assert "zigzag: makespan 33.3 ns, the ranks compute 100% of it" in words


# what holds for all of them

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
    figure = FIGURES[name]()
    shown, canvas = texts(figure), figure.bbox
    for number, (text, place) in enumerate(shown):
        assert place.x0 >= 0, text
        assert place.y0 >= 0, text
        assert place.x1 <= canvas.x1, text
        assert place.y1 <= canvas.y1, text
        for other, its_place in shown[:number]:
            wide = min(place.x1, its_place.x1) - max(place.x0, its_place.x0)
            tall = min(place.y1, its_place.y1) - max(place.y0, its_place.y0)
            assert wide <= 1 or tall <= 1, (text, other)
    assert min(text.get_size() for text in figure.findobj(Text) if text.get_text()) >= 7


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
    (lambda: views.ring_overlap(bandwidth=0), "bandwidth=0", "at least 1"),
    (lambda: views.compare_timelines({}), "runs={}", "at least one"),
    (lambda: views.compare_timelines([3]), "runs=[3]", "{name: run}"),
    (lambda: views.compare_timelines({"one": 3}), "runs['one']=3", "what run() or simulate() returned"),
    (lambda: views.compare_timelines({"one": DONE[64]}, headline=3), "headline=3", "text"),
]


@pytest.mark.parametrize(
    ("call", "value", "right"), REFUSED, ids=[f"{value} -> {right}" for _, value, right in REFUSED]
)
def test_refused(call, value, right):
    with pytest.raises(ValueError, match=r".") as caught:
        call()
    assert value in str(caught.value)
    assert right in str(caught.value)


def test_clocks_of_different_units_are_not_compared():
    from parlab.pipeline import gpipe, simulate

    with pytest.raises(ValueError, match="one clock needs one unit"):
        views.compare_timelines({"ring": DONE[64], "pipeline": simulate(gpipe(2, 2))})
