"""Every way to attend across ranks equals dense attention, and sends and holds what its closed form says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab import Cluster, per_rank, run
from parlab.nn.dense_attention import dense_attention, dense_attention_backward
from parlab.sequence import (
    LAYOUTS,
    PATTERNS,
    AttentionShape,
    shard,
    tree_attention,
    tree_attention_backward,
)
from parlab.world import Device, Link, WorldError
from tests.libraries import LIBRARIES
from tests.nn.parity import assert_parity
from tests.sequence import methods
from tests.sequence.methods import METHODS, method_error, pair, runs, timelines, visible, whole

DRAWN = st.sampled_from(LIBRARIES)


def divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]


@st.composite
def cases(draw, method):
    """A rank count, B, H, G, S, D, and arguments that the method takes."""
    size, G = draw(st.integers(1, 8)), draw(st.integers(1, 2))
    H = G * draw(st.integers(1, 3))
    how = {"scale": draw(st.none() | st.floats(0.1, 2))}
    if draw(st.booleans()):
        how["causal"] = method == "window" or draw(st.booleans())
    if method in methods.LAYOUTS:
        how["layout"] = draw(st.sampled_from(LAYOUTS[:2] if method == "usp" else LAYOUTS))
    if method == "ulysses":
        size = min(size, H)
    S = size * draw(st.integers(1, 4)) * (2 if how.get("layout") == "zigzag" else 1)
    if method in ("ring", "allgather", "ulysses") and draw(st.booleans()):
        if how.get("layout") == "zigzag":
            edges = np.cumsum([0, *draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))]) * 2 * size
            S = int(edges[-1])
        else:
            edges = {0, S, *draw(st.lists(st.integers(0, S), max_size=5))}
        how["documents"] = sorted(map(int, edges))
    if method == "usp":
        how["ulysses"] = draw(st.sampled_from([d for d in divisors(size) if d <= H]))
    if method in ("ulysses", "allgather", "usp") and draw(st.booleans()):
        group = how.get("ulysses", size)
        how["ranks_per_node"] = draw(st.sampled_from([d for d in divisors(size) if d % group == 0 or group % d == 0]))
    if method == "double_ring":
        how["ranks_per_node"] = draw(st.sampled_from(divisors(size)))
        how["crossing"] = draw(st.sampled_from(["early", "late"]))
    if method == "window":
        how["window"] = draw(st.integers(1, S))
    return size, (draw(st.integers(1, 2)), H, G, S, draw(st.integers(1, 4))), how


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=10)
@given(data=st.data(), library=DRAWN)
def test_matches_dense_to_1e_12(method, data, library):
    size, shape, how = data.draw(cases(method))
    assert method_error(pair(method), size, shape, library, **how) <= 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_one_token_a_rank_matches_dense(method):
    how = {"usp": {"ulysses": 2}, "double_ring": {"ranks_per_node": 3}, "window": {"window": 4}}.get(method, {})
    assert method_error(pair(method), 6, (1, 6, 3, 6, 2), causal=True, **how) <= 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_float16_shards_keep_float32_sums(method):
    how = {"usp": {"ulysses": 2}, "double_ring": {"ranks_per_node": 2}, "window": {"window": 9}}.get(method, {})
    inputs = [x.astype(np.float16) for x in methods.draw_inputs(1, 4, 2, 16, 4)]
    done = methods.run_method(pair(method), 4, inputs, causal=True, **how)
    assert [x.dtype for x in done.results[0]] == [np.float16, np.float32, np.float16, np.float16, np.float16]
    found = [np.concatenate(x, axis=2).astype(np.float64) for x in zip(*done.results, strict=True)]
    assert_parity(
        found, whole([x.astype(np.float64) for x in inputs], visible(16, True, window=how.get("window"))), 2**-8
    )


def test_the_five_patterns_are_ring_tree_window_ulysses_and_double_ring():
    methods_of = {"ring": "ring", "tree": "tree", "point_to_point": "window", "all_to_all": "ulysses"}
    assert {
        pattern: pair(method) for pattern, method in (methods_of | {"hierarchical": "double_ring"}).items()
    } == PATTERNS


# Memory after the call


def owner(x):
    """The array whose memory `x` shows."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("method", METHODS)
def test_after_the_call_each_result_keeps_its_own_bytes_alive_and_no_more(method, size, dtype):
    """A view of one shard in an array of all rows would keep P times its bytes."""
    how = {"usp": {"ulysses": size}, "double_ring": {"ranks_per_node": size // 2 or 1}, "window": {"window": 5}}
    inputs = [x.astype(dtype) for x in methods.draw_inputs(1, 4, 2, 16, 3)]
    done = methods.run_method(pair(method), size, inputs, **how.get(method, {}))
    for results in done.results:
        assert [owner(x).nbytes for x in results] == [x.nbytes for x in results]


# Decoding


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [1, 2, 7])
@pytest.mark.parametrize("size", [1, 2, 3, 6, 8])
def test_replicated_queries_of_the_last_tokens_match_dense_and_are_the_same_on_all_ranks(size, queries, causal):
    S = size * (7 // size + 1)
    dout, q, k, v = methods.draw_inputs(1, 4, 2, S, 3)
    new = slice(S - queries, S)
    functions = {"forward": tree_attention, "backward": tree_attention_backward}
    shards = [per_rank(shard(x, size)) for x in (k, v)]
    how = {"causal": causal, "replicated": True}
    done = run(methods.both, size, dout[:, :, new], q[:, :, new], *shards, **functions, **how)
    mask = visible(S, causal)[new]
    out, lse = dense_attention(q[:, :, new], k, v, mask=mask)
    dq, dk, dv = dense_attention_backward(dout[:, :, new], q[:, :, new], k, v, out, lse, mask=mask)
    for number, expected in enumerate((out, lse, dq)):
        assert_parity([done.results[0][number]], [expected])
        assert all(np.array_equal(result[number], done.results[0][number]) for result in done.results)
    for number, expected in ((3, dk), (4, dv)):
        assert_parity([np.concatenate([result[number] for result in done.results], axis=2)], [expected])


def test_decoding_on_8_ranks_takes_3_latencies():
    q, cache = np.ones((1, 2, 1, 4)), per_rank(shard(np.ones((1, 2, 16, 4)), 8))
    tree = run(tree_attention, 8, q, cache, cache, replicated=True)
    assert tree.on(Cluster.uniform(latency=1, bandwidth=1e30, flops=1e30)).makespan == 3 * 10**12  # of a second each


# Bytes, messages, memory


PACKED = {"documents": [0, 3, 10, 24, 30, 32]}
PACKED_ZIGZAG = {"documents": [0, 16, 32], "layout": "zigzag"}
NODES = [{"ranks_per_node": 1}, {"ranks_per_node": 2}, {"ranks_per_node": 4, "causal": True}]
COSTS = {  # method: arguments of the method, and which of them its cost takes
    "ring": ([{}, {"causal": True}, {"layout": "zigzag"}], ["causal", "layout"]),
    "ulysses": ([{}, {"causal": True}, *NODES], ["ranks_per_node"]),
    "allgather": ([{}, {"causal": True}, *NODES], ["ranks_per_node"]),
    "usp": (
        [
            *({"ulysses": 1}, {"ulysses": 2}, {"ulysses": 4, "layout": "zigzag"}, {"ulysses": 8}),
            *({"ulysses": 4, "ranks_per_node": 2}, {"ulysses": 8, "ranks_per_node": 4, "layout": "zigzag"}),
        ],
        ["ulysses", "ranks_per_node"],
    ),
    "double_ring": ([{}, *NODES, {"ranks_per_node": 4, "crossing": "late"}], ["ranks_per_node"]),
    "tree": ([{}, {"causal": True}], []),
    "window": ([{"window": window} for window in (1, 3, 5, 6, 11, 16)], ["window"]),
}


def assert_cost(method, size, shape, takes, dtype=np.float64, *, queries=None, **how):
    told = {name: how[name] for name in takes if name in how} | ({"queries": queries} if queries else {})
    cost = methods.cost_of(method)
    node = how.get("ranks_per_node") or 1
    slow = Cluster("slow", Device("fast", 1e12, 1e12), node, Link(1, 1e30), Link(1e3, 1e30), ports=None)
    for backward, done in enumerate(runs(method, size, shape, dtype, queries, **how)):
        timeline = done.on(slow)  # on which all that was posted is under way for as long as it can be
        for rank in range(size):
            found = timeline.messages(rank), timeline.bytes_sent(rank), timeline.peak_bytes(rank)
            assert found == tuple(cost(shape, size, rank, **told, backward=bool(backward))), (how, backward, rank)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize("size", [1, 2, 3, 6, 8])
@pytest.mark.parametrize("method", METHODS)
def test_messages_bytes_and_peak_are_those_of_the_formulas_on_every_rank(method, size, dtype):
    shape = AttentionShape(S=4 * size, H=8, G=2, D=3, itemsize=np.dtype(dtype).itemsize, B=2)
    cases, takes = COSTS[method]
    for how in cases:
        groups = [how[name] for name in ("ulysses", "ranks_per_node") if name in how]
        if all(size % number == 0 for number in groups) and how.get("window", 1) <= shape.S:
            assert_cost(method, size, shape, takes, dtype, **how)


@pytest.mark.parametrize("method", ["ring", "allgather"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("how", [PACKED, PACKED | {"layout": "striped"}, PACKED_ZIGZAG, {"documents": [0, 16, 32]}])
@pytest.mark.parametrize("size", [1, 2, 8])
def test_packed_messages_bytes_and_peak_are_those_of_the_formulas(method, causal, how, size):
    shape, takes = AttentionShape(S=32, H=2, G=1, D=3, itemsize=8), ["causal", "layout", "documents"]
    assert_cost(method, size, shape, takes, causal=causal, **how)


@pytest.mark.parametrize("size", [1, 2, 3, 6, 8])
@pytest.mark.parametrize("queries", [1, 2])
def test_decoding_messages_bytes_and_peak_are_those_of_the_formulas(size, queries):
    assert_cost("tree", size, AttentionShape(S=4 * size, H=8, G=2, D=3, itemsize=8), [], queries=queries)


@pytest.mark.parametrize(
    ("size", "H", "G", "D"), [(3, 4, 4, 1), (3, 8, 2, 1), (3, 8, 4, 1), (4, 9, 3, 2), (5, 7, 7, 3)]
)
def test_uneven_heads_hold_what_the_formula_says_where_the_way_home_holds_most(size, H, G, D):
    """The largest message home counts: of ranks with one head more and with one less."""
    assert_cost("ulysses", size, AttentionShape(S=2 * size, H=H, G=G, D=D, itemsize=8), [])


@pytest.mark.parametrize("G", [1, 3, 4])
def test_a_last_turn_of_the_all_gather_with_one_head_or_two_is_that_of_the_formula(G):
    assert_cost("allgather", 4, AttentionShape(S=16, H=2 * G, G=G, D=3, itemsize=8), [])


def test_ulysses_p4_h_equal_g_sends_4_se_3_sixteenths_elements_and_lse():
    S, H, D = 64, 8, 4
    counted = timelines("ulysses", 4, AttentionShape(S, H, H, D, 8), np.float64)[0]
    assert [counted.bytes_sent(rank) for rank in range(4)] == [8 * (4 * S * H * D * 3 // 16 + S * H * 3 // 16)] * 4


def test_no_kv_travel_to_a_rank_that_needs_none_of_them():
    documents = [0, 6, 12, 16]
    seen = visible(16, True, documents).reshape(4, 4, 4, 4).any(axis=(1, 3))  # [rank, source]
    forward, _ = timelines("allgather", 4, AttentionShape(16, 2, 1, 3, 8), np.float64, causal=True, documents=documents)
    sent = {(message.src, message.dst) for message in forward.transfers}
    assert sent == {(src, dst) for src in range(4) for dst in range(4) if src != dst and seen[dst, src]}


@pytest.mark.parametrize(
    ("method", "how"),
    [("ring", {}), ("ring", {"documents": [0, 16]}), ("usp", {"ulysses": 1}), ("double_ring", {"ranks_per_node": 1})],
)
def test_all_that_goes_around_a_ring_goes_to_the_right_in_both_passes(method, how):
    """A pass that went to the left, or dK/dV that met their K/V half way, would give the same numbers."""
    for timeline in timelines(method, 4, AttentionShape(16, 2, 1, 3, 8), np.float64, **how):
        assert {(message.dst - message.src) % 4 for message in timeline.transfers} == {1}


# Bad input


NEEDED = {"usp": {"ulysses": 2}, "window": {"window": 3}}
DIFFERENT = [
    ("ring", {"layout": "zigzag"}, {"layout": "striped"}),
    ("ring", {"documents": [0, 6, 16]}, {"documents": [0, 5, 16]}),
    ("ring", {"causal": True}, {"causal": False}),
    ("ulysses", {"documents": [0, 6, 16]}, {"documents": [0, 5, 16]}),
    ("allgather", {"layout": "zigzag"}, {"layout": "contiguous"}),
    ("allgather", {"documents": [0, 6, 16]}, {}),
    ("ulysses", {"ranks_per_node": 2}, {"ranks_per_node": 4}),
    ("ulysses", {"ranks_per_node": 2}, {}),
    ("allgather", {"ranks_per_node": 2}, {"ranks_per_node": 4}),
    ("allgather", {"ranks_per_node": 2}, {}),
    ("usp", {"ulysses": 2}, {"ulysses": 2, "layout": "zigzag"}),
    ("usp", {"ulysses": 2}, {"ulysses": 4}),
    ("double_ring", {"ranks_per_node": 2}, {"ranks_per_node": 4}),
    ("double_ring", {"ranks_per_node": 1}, {"ranks_per_node": 1, "layout": "striped"}),
    ("allgather", {}, {"scale": 1.0}),
    ("tree", {"causal": True}, {"causal": False}),
    ("window", {"window": 4}, {"window": 5}),
    ("window", {"window": 1}, {"window": 2}),
    *((method, NEEDED.get(method, {}), NEEDED.get(method, {}) | {"scale": 1.0}) for method in METHODS),
]


@pytest.mark.parametrize("odd", [0, 3])
@pytest.mark.parametrize(("method", "how", "other"), DIFFERENT)
@pytest.mark.parametrize("backward", [False, True])
def test_a_rank_that_was_told_something_else_is_an_error_not_a_wrong_answer(method, how, other, odd, backward):
    def program(comm):
        x, told = np.zeros((1, 4, 4, 3)), other if comm.rank == odd else how
        if backward:
            pair(method)[1](comm, x, x, x, x, x, x[..., 0], **told)
        else:
            pair(method)[0](comm, x, x, x, **told)

    with pytest.raises(WorldError):
        run(program, 4)
