"""The bill of a million tokens: work, calls and the wait that remains add up to each way's time on H100s."""

from functools import cache

import pytest

from parlab import views
from parlab.sequence import FLASH_ATTENTION_3, AttentionShape, least_step_cost, method_times, pair_flops, unmasked_pairs
from parlab.views.sequence.ring_bill import GPUS, LAYERS, REPAIRS, STEPS
from parlab.world import DGX_H100
from tests.views.drawn import boxes, texts, title

PEAK = 989e12
PARTS = ("work", "calls", "waits")
WAYS = {"one ring": (32, "ring"), "8 heads": (8, "ring"), "double ring": (32, "double ring"), "USP": (32, "USP")}


@cache
def bill(gpus, step=1):
    """The seconds of each part that are drawn, by way; the last bar is the work alone."""
    figure = views.ring_bill(gpus, step)
    found = {part: [right - left for left, right, _, _ in boxes(figure, part)] for part in PARTS}
    for (_, end, *_), (start, *_) in zip(boxes(figure, "calls"), boxes(figure, "waits"), strict=True):
        assert start == pytest.approx(end)
    return {name: {part: found[part][row] for part in PARTS} for row, name in enumerate([*WAYS, "work alone"])}


@pytest.mark.parametrize("gpus", GPUS)
def test_the_work_is_half_of_all_pairs_at_65_percent_of_the_peak(gpus):
    pairs = 2**20 * (2**20 + 1) / 2
    for parts in bill(gpus).values():
        assert parts["work"] == pytest.approx(32 * 4 * 32 * 128 * pairs / gpus / (0.65 * PEAK), rel=1e-9)
    assert (parts["calls"], parts["waits"]) == (0, 0)  # of the work alone


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("gpus", [32, 256, 1024])
def test_the_parts_add_up_to_the_time_of_the_method(gpus, step):
    found = bill(gpus, step)
    for name, (kv_heads, method) in WAYS.items():
        shape = AttentionShape(2**20, 32, kv_heads, 128, 2)
        cost = step * least_step_cost(shape, gpus, DGX_H100)
        takes = method_times(shape, gpus, DGX_H100, FLASH_ATTENTION_3, step_cost=cost)[method].picoseconds
        assert sum(found[name].values()) == pytest.approx(LAYERS * takes / 1e12, rel=1e-6)


def test_one_ring_takes_11_seconds_on_64_and_on_256_gpus_and_2_82_with_8_kv_heads():
    """All K/V but the own shard pass a port of 50 GB/s: (P − 1)/P of 17.2 GB for each of 32 layers."""
    for gpus, name, kv_heads, seconds in (
        (64, "one ring", 32, 10.95),
        (256, "one ring", 32, 11.04),
        (256, "8 heads", 8, 2.82),
    ):
        parts = bill(gpus)[name]
        last = (parts["work"] + parts["calls"]) / gpus  # the tile and the merge behind the last hop
        moved = 32 * 2 * kv_heads * 128 * 2 * 2**20 * (gpus - 1) / gpus / 50e9 + 32 * (gpus - 1) * 9.6e-6
        assert sum(parts.values()) == pytest.approx(moved + last, rel=1e-3)
        assert sum(parts.values()) == pytest.approx(seconds, abs=0.01)


def test_256_gpus_in_a_double_ring_wait_for_nothing_and_pay_0_47_seconds_for_calls_and_merges():
    """255 steps of 32 layers: 8 µs a call, and 10 bytes for each of 4096 · 4096 numbers at 3.35 TB/s."""
    parts = bill(256)["double ring"]
    assert parts["calls"] == pytest.approx(32 * 255 * (8e-6 + 10 * 4096 * 4096 / 3.35e12), rel=1e-4)
    assert list(parts.values()) == pytest.approx([1.751, 0.474, 0], abs=0.001)
    assert list(bill(256, 0)["double ring"].values()) == pytest.approx([1.751, 0, 0], abs=0.001)


def test_256_gpus_take_1_82_seconds_in_usp_whose_31_further_steps_cost_0_06_and_whose_all_to_alls_0_01():
    parts = bill(256)["USP"]
    assert parts["calls"] == pytest.approx(32 * 31 * (8e-6 + 10 * 4096 * 4096 / 3.35e12), rel=1e-4)
    # by hand: seven messages inside the node with an eighth of q, k, v, out (4096 numbers each) and the log-sum-exp
    eighth = 4096 * (4 * 4096 * 2 + 32 * 4) / 8
    latency = 2 * DGX_H100.intra.latency  # q, k, v on the way there, out and log-sum-exp on the way back
    assert parts["waits"] == pytest.approx(32 * 7 * (eighth / 450e9 + latency), rel=1e-3)
    assert sum(parts.values()) == pytest.approx(1.819, abs=0.001)


def test_with_steps_of_3_times_the_best_case_256_gpus_take_3_17_seconds_in_a_double_ring_and_1_87_in_usp():
    dear = bill(256, 3)
    assert sum(dear["double ring"].values()) == pytest.approx(3.173, abs=0.001)
    assert sum(dear["USP"].values()) == pytest.approx(1.867, abs=0.001)


def test_on_1024_gpus_a_double_ring_takes_1_41_seconds_for_0_44_of_work_and_1_11_with_8_kv_heads():
    parts = bill(1024)["double ring"]
    assert (sum(parts.values()), parts["work"]) == (pytest.approx(1.413, abs=0.001), pytest.approx(0.438, abs=0.001))
    assert bill(512)["double ring"]["waits"] == pytest.approx(0, abs=0.001)
    assert sum(bill(512)["double ring"].values()) == pytest.approx(1.42, abs=0.005)
    few = AttentionShape(2**20, 32, 8, 128, 2)
    cost = least_step_cost(few, 1024, DGX_H100)
    takes = method_times(few, 1024, DGX_H100, FLASH_ATTENTION_3, step_cost=cost)["double ring"].picoseconds
    assert LAYERS * takes / 1e12 == pytest.approx(1.11, abs=0.005)


def test_a_double_ring_of_256_gpus_hides_its_messages_from_3_250_tokens_each_on():
    for each, waits in ((3240, True), (3250, False)):
        shape = AttentionShape(256 * each, 32, 32, 128, 2)
        takes = method_times(shape, 256, DGX_H100, FLASH_ATTENTION_3)["double ring"].picoseconds / 1e12
        work = pair_flops(unmasked_pairs(shape.S, 256, "zigzag")[0], 1, 32, 128) / (0.65 * PEAK)
        assert (takes > work * (1 + 1e-6)) == waits


@pytest.mark.parametrize(("gpus", "step", "number"), [(256, 1, 3), (256, 0, 2), (256, 3, 3), (1024, 1, 3)])
def test_the_best_repair_is_the_shortest_bar_and_fewer_steps_lose_only_where_a_step_is_free(gpus, step, number):
    times = [sum(parts.values()) for parts in bill(gpus, step).values()][1:4]
    assert views.best_repair(gpus, step) == number
    assert times[number - 1] == min(times)
    assert list(REPAIRS)[number - 1].startswith(f"{number}: ")


def test_the_headline_has_the_times_of_one_ring_and_the_best_repair_and_each_bar_its_share_of_work():
    figure = views.ring_bill()
    assert title(figure) == "256 GPUs: one ring takes 11.0 s, the best repair 1.82 s"
    said = [text.strip() for text, _ in texts(figure)]
    for times in ("11.0 s, 16 % work", "2.83 s, 62 % work", "2.23 s, 79 % work", "1.82 s, 96 % work"):
        assert times in said
    assert "1.75 s, 100 % work" in said
