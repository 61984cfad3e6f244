"""Attention that exchanges in two levels: the results of one level, the bytes between nodes, and the closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.sequence import AttentionShape, allgather_cost, ulysses_cost
from parlab.world import CLASSROOM, Link
from tests.sequence.methods import pair, run_method, timelines
from tests.sequence.rings import draw_inputs
from tests.sequence.test_methods import cases

METHODS = ("ulysses", "allgather", "usp")
LESSON_03 = AttentionShape(S=1024, H=8, G=2, D=16, itemsize=4)
TWO_NODES = replace(CLASSROOM, ranks_per_node=4, inter=Link(latency=5e-6, bandwidth=2.5e9))  # lesson 03's cluster


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=8)
@given(data=st.data())
def test_out_lse_and_dq_are_those_of_one_level_to_the_bit(method, data):
    """So are dk and dv where each K/V head has one reader: nothing is summed in another order."""
    size, shape, how = data.draw(cases(method).filter(lambda case: "ranks_per_node" in case[2]))
    inputs = draw_inputs(*shape)
    two = run_method(pair(method), size, inputs, **how)
    one = run_method(pair(method), size, inputs, **how | {"ranks_per_node": None})
    _, H, G, _, _ = shape
    same = 5 if H == G and method != "allgather" else 3
    for found, expected in zip(two.results, one.results, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(found[:same], expected[:same], strict=True))


def crossing_bytes(timeline, rank, node):
    """The bytes that a rank sends to other nodes."""
    messages = [m for m in timeline.transfers if m.src == rank and m.dst // node != rank // node]
    return len(messages), sum(m.nbytes for m in messages)


def test_a_kv_head_that_4_ranks_of_a_node_read_crosses_once():
    """8 ranks, 4 a node, H = 8, G = 2: a node has 4 query heads and one K/V head. c = 128 tokens of 64 bytes a head."""
    c, head = 128, 16 * 4
    one = timelines("ulysses", 8, LESSON_03, np.float32)[0]
    two = timelines("ulysses", 8, LESSON_03, np.float32, ranks_per_node=4)[0]
    out_and_lse = 4 * c * (head + 4)  # of 4 ranks, or of 4 query heads
    for rank in range(8):
        assert crossing_bytes(one, rank, 4) == (8, 4 * c * (head + 2 * head) + out_and_lse)
        assert crossing_bytes(two, rank, 4) == (2, c * (4 * head + 2 * head) + out_and_lse)


def test_gathered_kv_enter_the_other_node_once():
    """Each rank sends one message a turn to the other node, not four."""
    one = timelines("allgather", 8, LESSON_03, np.float32, causal=True)[0]
    two = timelines("allgather", 8, LESSON_03, np.float32, causal=True, ranks_per_node=4)[0]
    kv = 128 * 2 * 2 * 64
    assert [crossing_bytes(one, rank, 4) for rank in range(8)] == [(4, 4 * kv)] * 8
    assert [crossing_bytes(two, rank, 4) for rank in range(8)] == [(1, kv)] * 8


@pytest.mark.parametrize("ranks_per_node", [1, 8])
def test_where_no_link_is_faster_than_another_ulysses_keeps_to_one_level(ranks_per_node):
    assert ulysses_cost(LESSON_03, 8, ranks_per_node=ranks_per_node) == ulysses_cost(LESSON_03, 8)


def test_two_levels_of_ulysses_hold_442368_bytes_not_364544_and_those_of_the_all_gather_no_more_than_one():
    assert [ulysses_cost(LESSON_03, 8, ranks_per_node=node).held for node in (None, 4)] == [364_544, 442_368]
    assert allgather_cost(LESSON_03, 8, ranks_per_node=4).held == allgather_cost(LESSON_03, 8).held


def test_two_levels_send_k_plus_g_minus_2_messages_each_way():
    """k = 2 nodes of g = 4: 4 messages, not 7; the all-gather in one turn of two K/V heads."""
    assert [ulysses_cost(LESSON_03, 8, ranks_per_node=node).messages for node in (None, 4)] == [14, 8]
    assert [allgather_cost(LESSON_03, 8, ranks_per_node=node).messages for node in (None, 4)] == [7, 4]


@pytest.mark.parametrize(
    ("crossing", "forward", "backward"),
    [("early", ".x.. ...", ".x...... .x......x"), ("late", "...x ...", ".....x.. .....x..x")],
)
def test_in_both_turns_of_a_double_ring_kv_and_gradients_cross_behind_the_first_hop_or_behind_the_last(
    crossing, forward, backward
):
    """Rank 5 of 8, the second of its node of 4: "." goes inside the node, "x" to the other one. A turn has 3 hops of
    K/V, and backward a hop of gradients behind each of its 4 tiles. The gradients of the last turn cross at the end.
    """
    found = timelines("double_ring", 8, LESSON_03, np.float32, ranks_per_node=4, crossing=crossing)
    for timeline, turns in zip(found, (forward, backward), strict=True):
        sent = "".join(".x"[m.dst // 4 != 1] for m in timeline.transfers if m.src == 5)
        assert sent == turns.replace(" ", "")
