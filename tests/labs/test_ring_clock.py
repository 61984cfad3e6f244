"""Lesson 02's clock: small arrays take the times of a large model's attention on H100s."""

import numpy as np
import pytest

from parlab import labs, run
from parlab.labs.ring_clock import MODEL, NUMBERS, ROW
from parlab.nn.attention import merge
from parlab.sequence import FLASH_ATTENTION_3, ring_attention, usp_time
from parlab.world import DGX_H100, Cluster


def timeline(each):
    """Of a causal zigzag ring of four GPUs."""
    text = labs.tokens_on(gpus=4, each=each, layout="zigzag")
    return run(ring_attention, 4, text, text, text, causal=True, layout="zigzag", cluster=labs.h100s()).timeline


def test_a_ring_of_small_arrays_takes_the_time_of_the_models_layer_on_h100s_without_latency():
    real = Cluster.uniform(0, DGX_H100.inter.bandwidth, flops=FLASH_ATTENTION_3 * DGX_H100.device.flops)
    for each in (4096, 16384, 65536):
        shape = type(MODEL)(4 * each, MODEL.H, MODEL.G, MODEL.D, MODEL.itemsize)
        takes = usp_time(shape, 4, real, ulysses=1)
        assert timeline(each).makespan == pytest.approx(takes, rel=2e-2 if each == 4096 else 5e-3)


def test_on_the_clock_of_h100s_a_zigzag_ring_waits_with_25600_tokens_a_rank_and_not_with_25728():
    """By the equation, from 2 · 16 384/16 384 · 643e12/50e9 = 25 714 tokens on."""
    assert [timeline(each).makespan > timeline(each).busy(0) for each in (25600, 25728)] == [True, False]


def attend(q, k, v, causal=False):
    scores = np.exp(q @ k.T / np.sqrt(NUMBERS))
    weights = np.tril(scores) if causal else scores
    return weights @ v / weights.sum(axis=1)[:, None], np.log(weights.sum(axis=1))


zigzag = labs.ring_of(labs.posted_ring, merge, attend, labs.zigzag_rule)
without_a_rule = labs.ring_of(labs.posted_ring, merge, attend)


@pytest.mark.parametrize(
    ("program", "layout", "pairs"), [(zigzag, "zigzag", 64 * 65 / 2), (without_a_rule, "contiguous", 64 * 64)]
)
def test_a_ring_of_a_learners_parts_is_one_devices_attention_and_works_on_the_pairs_of_its_rule(program, layout, pairs):
    q, k, v = np.random.default_rng(0).standard_normal((3, 64, NUMBERS))
    done = run(program, 4, *(labs.dealt(x, layout=layout) for x in (q, k, v)), cluster=labs.h100s())
    assert labs.same_as_one(done, attend(q, k, v, causal=program is zigzag)[0], layout)
    pair = 64**2 * 4 * 32 * 128 / (FLASH_ATTENTION_3 * DGX_H100.device.flops) * 1e12
    assert [done.timeline.busy(rank) for rank in range(4)] == [pytest.approx(pairs / 4 * pair, rel=1e-3)] * 4


def test_a_zigzag_ring_hides_its_messages_from_25728_tokens_on_each_rank_on():
    assert labs.tokens_that_hide(zigzag) == 25728


def test_a_ring_that_waits_with_every_number_of_tokens_is_refused():
    def late(comm, q, k, v):
        comm.sendrecv(q, comm.right, comm.left)

    with pytest.raises(ValueError, match="waits for messages with 65536 tokens on each rank"):
        labs.tokens_that_hide(late)


def test_inside_a_node_the_link_is_9_times_as_fast_and_free_messages_take_no_time():
    cluster = labs.h100s(ranks_per_node=2)
    inside, between = (cluster.link(0, other).picoseconds(10**6) for other in (1, 2))
    assert between / inside == pytest.approx(9, rel=1e-6)
    assert labs.h100s(free=True).link(0, 1).picoseconds(10**9) == 0


@pytest.mark.parametrize("layout", ["contiguous", "zigzag", "striped"])
def test_what_ranks_found_is_the_same_as_one_device_only_in_its_layout(layout):
    x = np.random.default_rng(0).standard_normal((64, NUMBERS))
    done = run(lambda comm, mine: (mine, mine[:, 0]), 4, labs.dealt(x, layout=layout))
    assert labs.same_as_one(done, x, layout)
    assert not labs.same_as_one(done, x + 1e-11, layout)
    assert labs.same_as_one(done, x, "striped" if layout == "zigzag" else "zigzag") is False


def test_by_the_name_of_the_work_the_film_knows_the_mask():
    x = np.zeros((16, NUMBERS))
    shards = [labs.dealt(x), labs.dealt(x, layout="zigzag")]
    done = [run(program, 4, x, x, x) for program, x in zip((without_a_rule, zigzag), shards, strict=True)]
    assert [one.timeline.computes[0].name for one in done] == ["ring", "ring, causal=True, layout=zigzag"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: labs.tokens_on(gpus=2, each=100), f"each=100: must be a multiple of {ROW}"),
        (lambda: labs.tokens_on(gpus=0, each=64), "gpus=0"),
        (lambda: labs.h100s(0), "ranks_per_node=0"),
        (lambda: labs.h100s(free=1), "free=1: must be True or False"),
        (lambda: labs.recall_losses([range(100)]), "positions: of 100 tokens, must be of 128"),
        (lambda: labs.recall_losses([range(128)], steps=0), "steps=0"),
    ],
)
def test_bad_input_is_refused_by_name(call, said):
    with pytest.raises(ValueError, match="^" + said.replace("(", r"\(")):
        call()
