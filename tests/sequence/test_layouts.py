"""Which rank owns which tokens, who sends what to whom, and which tile of queries × keys is work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.arrays import asarray, to_numpy
from parlab.sequence import LAYOUTS, RingSchedule, Tile, positions, shard, unshard
from parlab.sequence.tiles import sharded_mask, tiles_between
from tests.libraries import EACH_LIBRARY


def test_zigzag_s16_p4_rank_r_owns_chunks_r_and_7_minus_r():
    assert positions(16, 4, "zigzag") == [[0, 1, 14, 15], [2, 3, 12, 13], [4, 5, 10, 11], [6, 7, 8, 9]]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", [1, -2])
@pytest.mark.parametrize("library", EACH_LIBRARY)
def test_shard_follows_positions_and_unshard_undoes_it(library, axis, layout):
    x = asarray(np.arange(3 * 24 * 2).reshape(3, 24, 2), library)
    shards = shard(x, 3, layout, axis)
    for piece, tokens in zip(shards, positions(24, 3, layout), strict=True):
        assert np.array_equal(to_numpy(piece), to_numpy(x)[:, tokens])
    assert np.array_equal(to_numpy(unshard(shards, layout, axis)), to_numpy(x))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1, 2])
def test_a_shard_is_a_copy(size, layout):
    x = np.zeros(8)
    shard(x, size, layout, axis=0)[0][:] = 1
    assert not x.any()


@pytest.mark.parametrize("size", [2, 3, 8])
def test_after_every_hop_the_sender_named_the_same_source_as_the_receiver(size):
    held = list(range(size))
    for hop in range(size - 1):
        steps = [RingSchedule(rank, size).steps[hop] for rank in range(size)]
        assert all(steps[step.send_to].recv_from == rank for rank, step in enumerate(steps))
        held = [held[step.recv_from] for step in steps]
        assert held == [step.kv_source for step in steps]


@settings(max_examples=60)
@given(
    size=st.integers(1, 5),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    layout=st.sampled_from(LAYOUTS),
    causal=st.booleans(),
)
def test_packed_tiles_are_exactly_the_mask_of_documents_and_positions(size, lengths, layout, causal):
    documents = np.cumsum([0, *lengths]) * (2 * size if layout == "zigzag" else 1)
    if layout != "zigzag":
        documents[-1] += -documents[-1] % size
    S = int(documents[-1])
    owned = np.array(positions(S, size, layout, documents))
    inside = np.searchsorted(documents, owned, side="right")
    for rank, source in np.ndindex(size, size):
        visible = inside[rank][:, None] == inside[source]
        if causal:
            visible &= owned[rank][:, None] >= owned[source]
        found = np.zeros_like(visible)
        for tile in tiles_between(rank, source, sharded_mask(size, S // size, causal, layout, documents)):
            part = np.ones_like(found[tile.queries, tile.keys])
            part = part if tile.diagonal is None else np.tril(part, tile.diagonal)
            assert tile.pairs == np.sum(part) > 0
            found[tile.queries, tile.keys] |= part
        assert np.array_equal(found, visible)


@given(*[st.integers(0, 9)] * 2, st.integers(-12, 12), st.none() | st.integers(1, 12))
def test_pairs_of_a_tile_are_those_counted(queries, keys, diagonal, window):
    newest = np.arange(queries)[:, None] + diagonal
    seen = (np.arange(keys) <= newest) & (np.arange(keys) > newest - (window or 99))
    assert Tile(slice(0, queries), slice(0, keys), diagonal, window).pairs == np.sum(seen)
