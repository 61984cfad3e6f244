"""The bill of a million tokens: work, calls and the wait that remains add up to each ring's time on H100s."""

import pytest

from parlab import views
from parlab.sequence import FLASH_ATTENTION_3, AttentionShape, method_times, pair_flops, unmasked_pairs
from parlab.views.sequence.ring_bill import GPUS, KV_HEADS, LAYERS, METHODS
from parlab.world import DGX_H100
from tests.views.drawn import boxes, check_refused, title

PEAK = 989e12


PARTS = ("work", "calls", "waits")


def bill(gpus, kv_heads, merges="after"):
    """The seconds of each part that are drawn, by method."""
    figure = views.ring_bill(gpus, kv_heads, merges)
    found = {part: [right - left for left, right, _, _ in boxes(figure, part)] for part in PARTS}
    return {name: {part: found[part][row] for part in PARTS} for row, name in enumerate(METHODS)}


@pytest.mark.parametrize("gpus", GPUS)
def test_the_work_is_half_of_all_pairs_at_65_percent_of_the_peak(gpus):
    pairs = 2**20 * (2**20 + 1) / 2
    for parts in bill(gpus, 32).values():
        assert parts["work"] == pytest.approx(32 * 4 * 32 * 128 * pairs / gpus / (0.65 * PEAK), rel=1e-9)


@pytest.mark.parametrize("kv_heads", KV_HEADS)
def test_the_parts_add_up_to_the_time_with_calls_and_merges(kv_heads):
    shape = AttentionShape(2**20, 32, kv_heads, 128, 2)
    times = method_times(shape, 512, DGX_H100, FLASH_ATTENTION_3, step=1)
    for name, parts in bill(512, kv_heads).items():
        assert sum(parts.values()) == pytest.approx(LAYERS * times[name].picoseconds / 1e12, rel=1e-9)


def test_one_ring_takes_11_seconds_on_64_and_on_256_gpus_and_2_82_with_8_kv_heads():
    """All K/V but the own shard pass a port of 50 GB/s: (P − 1)/P of 17.2 GB for each of 32 layers."""
    for gpus, kv_heads, seconds in ((64, 32, 10.95), (256, 32, 11.04), (256, 8, 2.82)):
        parts = bill(gpus, kv_heads)["ring"]
        last = (parts["work"] + parts["calls"]) / gpus  # the tile and the merge behind the last hop
        moved = 32 * 2 * kv_heads * 128 * 2 * 2**20 * (gpus - 1) / gpus / 50e9 + 32 * (gpus - 1) * 9.6e-6
        assert sum(parts.values()) == pytest.approx(moved + last, rel=1e-3)
        assert sum(parts.values()) == pytest.approx(seconds, abs=0.01)


def test_of_256_gpus_with_8_kv_heads_one_ring_works_1_75_seconds_pays_0_47_and_waits_for_0_60():
    parts = bill(256, 8)["ring"]
    assert list(parts.values()) == pytest.approx([1.751, 0.474, 0.600], abs=0.001)
    # by hand: 255 hops and a half tile with its merge, less all work and all merges
    hop, half, merge = 9.6e-6 + 4096 * 4096 / 50e9, 8192 * 4096**2 / (0.65 * PEAK), 8e-6 + 10 * 4096 * 4096 / 3.35e12
    assert parts["waits"] == pytest.approx(32 * 255 * (hop - half - merge), rel=1e-2)


def test_the_double_ring_waits_on_1024_gpus_first_and_with_8_kv_heads_never():
    waits = {(gpus, heads): bill(gpus, heads)["double ring"]["waits"] > 0.001 for gpus in GPUS for heads in (32, 8)}
    assert waits == {(gpus, heads): heads == 32 and gpus == 1024 for gpus in GPUS for heads in (32, 8)}
    parts = bill(1024, 8)["double ring"]
    assert (parts["calls"], parts["work"]) == (pytest.approx(0.67, abs=0.005), pytest.approx(0.44, abs=0.005))


def test_with_merges_beside_the_next_tile_the_double_ring_waits_from_512_gpus_on():
    """By the equation its messages are hidden on up to 2²⁰ / 3214 = 326 GPUs."""
    waits = [bill(gpus, 32, "beside")["double ring"]["waits"] > 0.001 for gpus in GPUS]
    assert waits == [gpus >= 512 for gpus in GPUS]
    assert [bill(gpus, 8, "beside")["double ring"]["waits"] > 0.001 for gpus in GPUS] == [False] * len(GPUS)


def test_calls_and_merges_cost_0_47_seconds_after_each_tile_and_nothing_beside_the_next():
    """255 steps of 32 layers: 8 µs a call, and 10 bytes for each of 4096 · 4096 numbers at 3.35 TB/s."""
    parts = bill(256, 32)["double ring"]
    assert parts["calls"] == pytest.approx(32 * 255 * (8e-6 + 10 * 4096 * 4096 / 3.35e12), rel=1e-4)
    assert parts["calls"] == pytest.approx(0.474, abs=0.001)
    beside = bill(256, 32, "beside")["double ring"]
    assert list(beside.values()) == pytest.approx([1.751, 0, 0], abs=0.001)


def test_on_1024_gpus_a_merge_is_longer_than_half_a_tile_and_what_is_longer_costs_0_23_seconds():
    parts = bill(1024, 8, "beside")["double ring"]
    half, merge = 8192 * 1024**2 / (0.65 * PEAK), 8e-6 + 10 * 1024 * 4096 / 3.35e12
    assert parts["calls"] == pytest.approx(32 * 1023 * (merge - half), rel=1e-2)
    assert parts["calls"] == pytest.approx(0.234, abs=0.001)


@pytest.mark.parametrize(("gpus", "merges"), [(256, "after"), (256, "beside"), (1024, "after"), (1024, "beside")])
def test_to_scale_stand_a_hop_and_one_half_tile_and_the_same_hop_and_eight(gpus, merges):
    figure, c = views.ring_bill(gpus, 32, merges), 2**20 // gpus
    hops, tiles = boxes(figure, "hop"), boxes(figure, "tile")
    assert [right - left for left, right, _, _ in hops] == pytest.approx([(9.6e-6 + c * 16384 / 50e9) * 1e12] * 2)
    assert len(tiles) == 1 + 8
    assert {round(right - left) for left, right, _, _ in tiles} == {round(1e12 * 8192 * c**2 / (0.65 * PEAK))}
    merge = 8e-6 + 10 * c * 4096 / 3.35e12
    assert [right - left for left, right, _, _ in boxes(figure, "merge")] == pytest.approx([merge * 1e12] * 9)
    # the drawn turn, 32 layers and as many turns as nodes, is the bill's time
    steps = [*tiles[1:], *boxes(figure, "merge")[1:]] if merges == "after" else tiles[1:]
    turn = max(hops[1][1], *(right for _, right, _, _ in steps)) / 1e12
    seconds = sum(bill(gpus, 32, merges)["double ring"].values())
    assert 32 * gpus / 8 * turn == pytest.approx(seconds, rel=0.02)


def test_a_double_ring_of_256_gpus_hides_its_messages_from_3_250_tokens_each_on():
    for each, waits in ((3240, True), (3250, False)):
        shape = AttentionShape(256 * each, 32, 32, 128, 2)
        takes = method_times(shape, 256, DGX_H100, FLASH_ATTENTION_3)["double ring"].picoseconds / 1e12
        work = pair_flops(unmasked_pairs(shape.S, 256, "zigzag")[0], 1, 32, 128) / (0.65 * PEAK)
        assert (takes > work * (1 + 1e-6)) == waits


def test_the_headline_has_both_times_and_one_head_is_no_heads():
    assert title(views.ring_bill(256)) == "256 GPUs, 32 K/V heads: one ring 11.04 s, double ring 2.23 s"
    assert title(views.ring_bill(64, 1)).startswith("64 GPUs, 1 K/V head: ")


@pytest.mark.parametrize(
    ("given", "said", "right"),
    [
        ({"gpus": 100}, "gpus=100", "use one of 32, 64"),
        ({"kv_heads": 2}, "kv_heads=2", "use one of 32, 8"),
        ({"merges": "never"}, "merges='never'", "beside"),
    ],
)
def test_what_is_no_stop_of_a_slider_is_refused(given, said, right):
    check_refused(lambda: views.ring_bill(**given), said, right)
