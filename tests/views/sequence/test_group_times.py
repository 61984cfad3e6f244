"""How many ranks should share the heads: curves of published rates, and of times by formula."""

import pytest

from parlab import views
from parlab.sequence import AttentionShape, least_step_cost, method_times, ring_cost, ulysses_cost, usp_time
from parlab.views.sequence.group_times import GPUS, GROUPS, KV_HEADS, TOKENS, H
from parlab.world import DGX_A100, DGX_H100
from tests.views.drawn import artists, title

THEIRS = AttentionShape(S=131072, H=32, G=32, D=32, itemsize=2, B=2)
A100, L20 = views.PUBLISHED_RATES.values()
PCIE_4 = 31.5e9  # bytes a second of 16 lanes, one way
# The same table of 8 A100s, 131 072 tokens, 32 heads of 32, by the layout and whether q, k and v are packed.
ON_A100S = {
    "zigzag": A100,
    "zigzag, packed": {1: 13.169, 2: 15.305, 4: 16.027, 8: 15.895},
    "stripe": {1: 12.608, 2: 15.055, 4: 15.486, 8: 15.834},
    "stripe, packed": {1: 12.841, 2: 15.071, 4: 15.817, 8: 15.87},
}


def text(gpus, kv_heads=32, each=None):
    return AttentionShape(each * gpus if each else TOKENS[gpus], H, kv_heads, 128, 2)


def times(figure, machine):
    """Milliseconds by group, as the figure says them, and how many times the fastest is drawn."""
    (said,) = [line.partition(": ")[2] for line in repr(figure).splitlines() if line.startswith(f"{machine}")]
    ms = [float(part.split()[-1]) for part in said.removesuffix(" ms").split(", ")]
    (curve,) = [line for line in figure.axes[0].lines if str(line.get_gid()).startswith(machine)]
    return dict(zip(map(int, curve.get_xdata()), ms, strict=True)), list(curve.get_ydata())


def three_times_the_least(shape):
    return 3 * least_step_cost(shape, 16, DGX_H100)


def fastest(gpus, kv_heads=32, step=3):
    other = GPUS[0] if gpus == 16 else gpus
    found, _ = times(views.group_times(other, kv_heads, step), f"{gpus} H100s")
    shape, on = text(gpus, kv_heads), DGX_H100.reaching(0.65)
    ways = {u: ("flat", "grid", "two levels") if u > 8 else ("flat",) for u in found}
    cost = step * least_step_cost(shape, gpus, on)
    exact = {u: min(usp_time(shape, gpus, on, ulysses=u, way=w, step_cost=cost) for w in ways[u]) / 1e9 for u in found}
    assert found == pytest.approx(exact, rel=5e-3)
    return min(exact, key=exact.get)


def test_the_published_ring_takes_80_ms_to_63_on_nvlink_and_135_to_253_on_pcie_where_pairs_take_118():
    found = [round(1000 / rates[group]) for rates in (A100, L20) for group in (1, 8)]
    assert (found, round(1000 / L20[2])) == ([80, 63, 135, 253], 118)
    assert [max(rates, key=rates.get) for rates in (A100, L20)] == [8, 2]


def test_ulysses_sends_a_quarter_of_the_rings_bytes_on_both_machines():
    assert ulysses_cost(THEIRS, 8).nbytes / ring_cost(THEIRS, 8).nbytes == pytest.approx(0.25, abs=0.005)  # and the lse


def test_by_the_data_sheets_the_all_to_alls_take_0_8_ms_on_nvlink_and_7_6_on_pcie_where_ulysses_is_118_slower():
    sent = ulysses_cost(THEIRS, 8).nbytes
    assert [1000 * sent / link for link in (DGX_A100.intra.bandwidth, PCIE_4)] == pytest.approx([0.80, 7.57], abs=0.01)
    assert 1000 / L20[8] - 1000 / L20[1] == pytest.approx(118, abs=0.5)


def test_in_four_published_settings_ulysses_is_13_to_17_ms_faster_than_the_ring_on_nvlink():
    faster = [1000 / rates[1] - 1000 / rates[8] for rates in ON_A100S.values()]
    assert (min(faster), max(faster)) == (pytest.approx(13.0, abs=0.05), pytest.approx(17.2, abs=0.05))


def test_in_four_published_settings_the_first_4_steps_that_go_save_2_6_to_3_7_ms_each_and_the_last_at_most_1_4():
    saved = [
        [(1000 / rates[u] - 1000 / rates[2 * u]) / (8 // u - 4 // u) for u in (1, 2, 4)] for rates in ON_A100S.values()
    ]
    four, two, one = zip(*saved, strict=True)
    assert (min(four), max(four)) == (pytest.approx(2.65, abs=0.01), pytest.approx(3.69, abs=0.01))
    assert (min(two), max(two)) == (pytest.approx(0.92, abs=0.01), pytest.approx(1.56, abs=0.01))
    assert (min(one), max(one)) == (pytest.approx(-0.52, abs=0.01), pytest.approx(1.42, abs=0.01))


def test_the_published_ring_of_this_shape_pays_3_times_the_least_for_a_step():
    """8 H800s, 8192 tokens on each, 32 and 8 heads of 128, forwards a second: 63.0, and 73.9 of one GPU alone."""
    step = (1 / 63.0 - 1 / 73.9) / 7
    assert step / (least_step_cost(text(8, 8, each=8192), 8, DGX_H100) / 1e12) == pytest.approx(3.1, abs=0.1)


@pytest.mark.parametrize("kv_heads", KV_HEADS)
def test_at_three_times_the_least_groups_of_a_node_win_on_two_to_eight_nodes_and_groups_of_32_on_32(kv_heads):
    assert [fastest(gpus, kv_heads) for gpus in (16, 32, 64)] == [8, 8, 8]
    assert fastest(256, kv_heads) == 32


@pytest.mark.parametrize(
    ("step", "first"),
    [(0, [4, 1, 2, 4, 8]), (1, [8, 8, 8, 8, 8]), (3, [8, 8, 8, 16, 32]), (10, [8, 8, 32, 32, 32])],
)
def test_the_dearer_a_step_the_larger_are_the_fastest_groups(step, first):
    assert [fastest(gpus, 32, step) for gpus in (16, *GPUS)] == first


def test_on_256_gpus_wider_all_to_alls_cost_2_1_ms_and_24_steps_fewer_save_4_2():
    (free, _), (paid, _) = (times(views.group_times(256, 32, step), "256 H100s") for step in (0, 3))
    assert free[32] - free[8] == pytest.approx(2.1, abs=0.06)
    assert (paid[8] - free[8]) - (paid[32] - free[32]) == pytest.approx(4.2, abs=0.06)
    assert (paid[8], paid[32]) == (60.4, 58.3)


def test_in_two_nodes_usp_8_takes_14_6_ms_ulysses_16_8_the_double_ring_18_6_and_the_ring_41_6():
    found = method_times(text(16), 16, DGX_H100, 0.65, step_cost=three_times_the_least(text(16)))
    ms = {name: time.picoseconds / 1e9 for name, time in found.items()}
    expected = {"ring": 41.6, "double ring": 18.6, "Ulysses": 16.8, "USP": 14.6, "all-gather": 21.1}
    assert (ms, found["USP"].ulysses) == (pytest.approx(expected, abs=0.05), 8)
    hop = DGX_H100.inter.picoseconds(ring_cost(text(16), 16).nbytes // 15) / 1e9
    assert hop == pytest.approx(2.69, abs=0.01)  # and the work beside it takes a third
    work = 131072**2 / 2 / 16**2 * 4 * 32 * 128 / (0.65 * 989e12) * 1000  # of a step
    assert work == pytest.approx(0.86, abs=0.01)


def test_with_8_kv_heads_the_ring_of_two_nodes_waits_for_nothing_and_loses_by_the_cost_of_its_steps():
    (free, _), (paid, _) = (times(views.group_times(32, 8, step), "16 H100s") for step in (0, 3))
    assert (min(free, key=free.get), min(paid, key=paid.get)) == (1, 8)
    assert paid[1] - free[1] == pytest.approx(4.87, abs=0.06)


def test_in_two_nodes_all_gather_is_first_with_2_kv_heads_by_14_1_ms_to_14_4():
    found = method_times(text(16, 2), 16, DGX_H100, 0.65, step_cost=three_times_the_least(text(16, 2)))
    assert found["all-gather"].picoseconds / 1e9 == pytest.approx(14.15, abs=0.01)
    assert found["USP"].picoseconds / 1e9 == pytest.approx(14.38, abs=0.01)


def test_with_tiles_at_55_percent_of_the_peak_usp_8_takes_17_1_ms_and_ulysses_in_one_call_16_8():
    cost = three_times_the_least(text(16))
    slow, fast = (method_times(text(16), 16, DGX_H100, kernel, step_cost=cost) for kernel in (0.55, 0.65))
    assert (slow["USP"].picoseconds / 1e9, slow["USP"].ulysses) == (pytest.approx(17.1, abs=0.05), 8)
    assert fast["Ulysses"].picoseconds / 1e9 == pytest.approx(16.8, abs=0.05)


def test_a_curve_stands_over_its_groups_as_multiples_of_its_lowest_point_which_has_the_larger_dot():
    figure = views.published_groups()
    assert title(figure) == "Fastest on 8 A100s, NVLink: Ulysses; on 8 L20s, PCIe: USP 2"
    for name, rates in views.PUBLISHED_RATES.items():
        ms, drawn = times(figure, name)
        assert tuple(ms) == GROUPS
        assert drawn == pytest.approx([max(rates.values()) / rate for rate in rates.values()])
    assert [line.get_xdata()[0] for line in artists(figure, "fastest")] == [8, 2]
    assert [line.get_xdata()[0] for line in artists(views.group_times(), "fastest")] == [8, 2, 8, 32]
