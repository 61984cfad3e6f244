"""The decision map says what the formulas say, cell by cell, and its widget follows."""

from dataclasses import replace
from math import log2

import pytest

from parlab import views
from parlab.sequence import FLASH_ATTENTION_3, METHODS, AttentionShape, method_times, ring_cost, ulysses_cost
from parlab.sequence.times import usp_time
from parlab.views.attention.methods import COLORS, FASTEST, LENGTHS, NONE, RANKS
from parlab.views.drawing.picture import png
from parlab.world import CLASSROOM, DGX_H100
from tests.views.drawn import artists, boxes, check_controls, check_text, title

GRID = [(S, size) for S in LENGTHS for size in RANKS]


def times(S, size, cluster=DGX_H100, G=8, kernel=FLASH_ATTENTION_3, step=1):
    return method_times(AttentionShape(S=S, H=32, G=G, D=128, itemsize=2), size, cluster, kernel, step=step)


def cells(figure):
    (drawn,) = artists(figure, "cells")
    return {at: tuple(color) for at, color in zip(GRID, drawn.get_facecolor().round(4).tolist(), strict=True)}


def test_each_of_77_cells_has_the_colour_of_the_method_with_the_least_time():
    from matplotlib.colors import to_rgba

    shown = cells(views.attention_map())
    assert len(shown) == 77
    for at, color in shown.items():
        found = times(*at)
        best = COLORS[min(found, key=lambda name: found[name].picoseconds)]
        assert color == tuple(round(x, 4) for x in to_rgba(best)), at


def test_the_text_names_every_cell_and_usp_with_its_best_group():
    rows = repr(views.attention_map(131072, 16)).splitlines()
    row = next(line for line in rows if line.startswith("   32768 |"))
    found = "all-gather= all-gather= Ulysses= USP 8 USP 8 USP 8 USP 16"
    assert row.split("|")[1].split() == found.split()
    assert rows[0] == "USP 8 is fastest, ring takes 8 % longer: 131072 tokens on 16 ranks, at 65 % of the peak"
    assert rows[-2] == "=: another method is within 5 %"
    assert rows[-1] == "a call and a merge in each step after the first: 108 µs at the framed point"


def test_at_0_the_map_is_the_clocks():
    rows = repr(views.attention_map(131072, 16, step=0)).splitlines()
    row = next(line for line in rows if line.startswith("   32768 |"))
    found = "ring= ring ring double ring double ring USP 8= USP 16"
    assert row.split("|")[1].split() == found.split()
    assert rows[0] == "Ring, double ring and USP 2 tie: 131072 tokens on 16 ranks, at 65 % of the peak"
    assert rows[-1] == "=: another method is within 5 %"


def test_a_bar_is_work_then_calls_and_merges_then_waiting():
    """On 16 ranks USP 8 has one step after the first, the rings have 15 and the others none: 15 · 108.16 µs."""
    figure = views.attention_map(131072, 16)
    gray = [right - left for left, right, *_ in boxes(figure, "beside")]
    assert [round(wide / 108_162_484, 3) for wide in gray] == [1, 15, 15, 0, 0]
    (work,) = {right for _, right, *_ in boxes(figure, "work")}
    assert [left - work for left, *_ in boxes(figure, "lost")] == gray


def test_below_the_map_stand_the_heads_that_are_drawn_also_where_the_slider_has_more_than_there_are():
    explorer = views.explore_long_sequences()
    explorer.controls["H"].value, explorer.controls["G"].value = 8, 32
    labels = [axes.get_xlabel() for axes in explorer.figure.get_axes()]
    assert "ranks, with 8 query heads and 8 K/V heads" in labels


def tied(found):
    """The fastest method and those within 5 %."""
    took = {name: time.picoseconds / 1e6 for name, time in found.items()}
    return {name for name in took if took[name] <= 1.05 * min(took.values())}


@pytest.mark.parametrize("step", [0, 1])
def test_the_hatched_cells_are_those_in_which_another_method_is_within_5_percent(step):
    figure, ties = views.attention_map(131072, 16, step=step), set()
    for s, p in GRID:
        if len(tied(times(s, p, step=step))) > 1:
            ties.add((log2(p) - 0.5, log2(p) + 0.5, log2(s) - 0.5, log2(s) + 0.5))
    assert set(boxes(figure, "ties")) == ties
    assert ((3.5, 4.5, 16.5, 17.5) in ties) == (step == 0)
    assert not boxes(views.attention_map(131072, 16, method="ring"), "ties")


def beyond(**how):
    """The cells of more than a node in which USP is not the fastest method or tied with it."""
    return [at for at in GRID if at[1] > 8 and "USP" not in tied(times(*at, **how))]


@pytest.mark.parametrize("step", [0.5, 1, 2])
@pytest.mark.parametrize("kernel", [0.5, FLASH_ATTENTION_3, 1.0])
def test_beyond_a_node_usp_wins_or_ties_in_all_44_cells_from_half_to_twice_the_least_cost_of_a_step(step, kernel):
    assert not beyond(step=step, kernel=kernel)


def test_at_ten_times_the_least_cost_of_a_step_ulysses_has_9_short_prompts_on_two_and_four_nodes():
    lost = beyond(step=10)
    assert [size for _, size in lost].count(16) == 4
    assert [size for _, size in lost].count(32) == 5 == len(lost) - 4
    assert max(S for S, _ in lost) == 16384
    for at in lost:
        found = times(*at, step=10)
        assert min(found, key=lambda name: found[name].picoseconds) == "Ulysses"


@pytest.mark.parametrize(("step", "won"), [(1, 36), (10, 12)])
def test_groups_of_8_win_or_tie_in_36_of_the_44_cells_and_in_12_if_a_step_costs_ten_times_the_least(step, won):
    def with_groups_of_8(S, size):
        shape, cluster = AttentionShape(S=S, H=32, G=8, D=128, itemsize=2), DGX_H100.reaching(FLASH_ATTENTION_3)
        return usp_time(shape, size, cluster, ulysses=8, step=step)

    outside = [at for at in GRID if at[1] > 8]
    fastest = {at: min(time.picoseconds for time in times(*at, step=step).values()) for at in outside}
    assert sum(with_groups_of_8(*at) <= 1.05 * fastest[at] for at in outside) == won


def test_without_the_cost_of_a_step_or_with_2_kv_heads_usp_does_not_win_everywhere_beyond_a_node():
    assert len(beyond(step=0)) == 10
    assert {at[1] for at in beyond(G=2)} == {16, 32, 64, 128}


def test_at_1_the_plain_ring_keeps_one_cell_of_77_and_at_0_it_has_the_long_prompts():
    def has(step):
        return [at for at in GRID if min(found := times(*at, step=step), key=lambda n: found[n].picoseconds) == "ring"]

    assert has(1) == [(2048, 2)]
    assert {(131072, 16), (1048576, 128)} <= set(has(0))


@pytest.mark.parametrize(("kernel", "step", "tied"), [(FLASH_ATTENTION_3, 0, 3), (1.0, 0, 2), (1.0, 10, 2)])
def test_the_bars_of_the_methods_that_tie_are_hatched_and_no_other(kernel, step, tied):
    figure = views.attention_map(131072, 16, kernel=kernel, step=step)
    ends = sorted(time.picoseconds for time in times(131072, 16, kernel=kernel, step=step).values())
    assert [right for _, right, *_ in boxes(figure, "tied")] == ends[:tied]
    assert ends[tied - 1] <= 1.05 * ends[0] < ends[tied]


def test_where_one_method_leads_by_more_than_5_percent_no_bar_is_hatched():
    assert not boxes(views.attention_map(65536, 128), "tied")


@pytest.mark.parametrize(
    ("point", "how", "said"),
    [
        ((131072, 16), {"kernel": 1.0, "step": 0}, "Double ring and USP 2 tie: 131072 tokens"),
        ((65536, 128), {"step": 0}, "USP 8 is fastest, double ring takes 10 % longer: 65536 tokens"),
        ((131072, 16), {"step": 10}, "USP 8, all-gather and Ulysses tie: 131072 tokens"),
        ((1048576, 16), {}, "USP 8, ring, double ring, all-gather and Ulysses tie: 1048576 tokens"),
    ],
)
def test_the_headline_names_the_fastest_and_the_next_or_those_that_tie(point, how, said):
    assert title(views.attention_map(*point, **how)).startswith(said)


def test_at_the_peak_the_double_ring_and_usp_tie_at_the_readers_point_and_the_rows_say_which_exchange():
    rows = repr(views.attention_map(131072, 16, kernel=1.0, step=0)).splitlines()
    assert rows[0] == "Double ring and USP 2 tie: 131072 tokens on 16 ranks, at 100 % of the peak"
    ways = {row[:11].strip(): row.split(", ")[1] for row in rows[1:6]}
    assert ways == {
        "double ring": "early",
        "USP 2": "flat",
        "all-gather": "two levels",
        "ring": "flat",
        "Ulysses": "two levels",
    }


def test_the_frame_and_the_bars_are_the_readers_point():
    figure = views.attention_map(4096, 64, G=1, cluster=CLASSROOM)
    assert boxes(figure, "you") == [(5.5, 6.5, 11.5, 12.5)]
    found = times(4096, 64, CLASSROOM, G=1)
    ends = sorted(time.picoseconds for time in found.values())
    assert sorted(right for _, right, *_ in boxes(figure, "lost")) == ends
    assert "4096 tokens on 64 ranks, " in title(figure)


def test_the_bytes_are_the_closed_forms():
    text = repr(views.attention_map(131072, 16))
    shape = AttentionShape(S=131072, H=32, G=8, D=128, itemsize=2)
    assert f"sends {ring_cost(shape, 16).nbytes / 2**20:.0f} MiB a rank" in text
    assert f"sends {ulysses_cost(shape, 16, ranks_per_node=8).nbytes / 2**20:.0f} MiB a rank" in text


@pytest.mark.parametrize("method", METHODS)
def test_one_method_is_shown_as_a_multiple_of_the_fastest_or_not_at_all(method):
    from matplotlib.colors import to_rgba

    figure = views.attention_map(method=method)
    absent = tuple(round(x, 4) for x in to_rgba(NONE))
    assert {at for at, color in cells(figure).items() if color == absent} == {
        at for at in GRID if method not in times(*at)
    }
    found = times(1024, 2)
    if method in found:
        row = next(line for line in repr(figure).splitlines() if line.startswith("    1024 |"))
        assert f"{found[method].picoseconds / min(found.values()).picoseconds:.1f} ×" in row


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"S": 1000}, "S=1000: must be one of 1024"),
        ({"size": 3}, "size=3: must be one of 2, 4"),
        ({"method": "star"}, "method='star': use one of fastest, ring"),
        ({"G": 5}, "G must divide H"),
        ({"kernel": 1.5}, "kernel=1.5: must be at most 1, the peak"),
    ],
)
def test_a_point_off_the_map_is_refused(values, said):
    with pytest.raises(ValueError, match=said):
        views.attention_map(**values)


def test_every_value_of_every_control_changes_the_picture_and_it_is_the_maps():
    explorer = views.explore_long_sequences()
    assert explorer.picture.value == png(views.attention_map())
    check_controls(explorer)
    explorer.controls["node"].value = 64
    explorer.controls["H"].value = 8
    explorer.controls["G"].value = 32  # more than query heads: 8
    expected = views.attention_map(H=8, G=8, cluster=replace(DGX_H100, ranks_per_node=64), method=FASTEST)
    assert explorer.picture.value == png(expected)


@pytest.mark.parametrize("method", [FASTEST, "Ulysses"])
def test_all_text_is_readable(method):
    check_text(views.attention_map(method=method))
