"""Who owns what: every cut is disjoint and complete, and as even as can be."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlab.arrays import asarray, owning_buffer, to_numpy
from parlab.pipeline import partition
from parlab.zero import ShardMap, shard_range
from parlab.zero.shards import FlatLayout, shard_sizes
from tests.libraries import EACH_LIBRARY

ranks = st.integers(1, 9)


@given(total=st.integers(0, 10**12), size=ranks)
def test_shards_join_to_everything_and_the_first_total_mod_size_own_one_more(total, size):
    shards = [shard_range(total, rank, size) for rank in range(size)]
    assert shards[0].start == 0
    assert shards[-1].stop == total
    assert all(one.stop == next_one.start for one, next_one in itertools.pairwise(shards))
    lengths = [shard.stop - shard.start for shard in shards]
    assert lengths == [total // size + 1] * (total % size) + [total // size] * (size - total % size)


def test_fact_24_blocks_round_robin_over_4_rank_0_has_0_4_8_12_16_20():
    dealt = ShardMap.round_robin(24, 4)
    assert dealt.blocks(0) == [0, 4, 8, 12, 16, 20]
    assert [dealt.owner(i) for i in range(24)] == [i % 4 for i in range(24)]
    assert repr(ShardMap.round_robin(3, 2)) == "ShardMap([0, 1, 0], size=2)"


@given(num_blocks=st.integers(0, 40), size=ranks, kind=st.sampled_from(["contiguous", "round_robin"]))
def test_a_map_gives_each_block_one_owner_and_numbers_differ_by_at_most_1(num_blocks, size, kind):
    shard_map = getattr(ShardMap, kind)(num_blocks, size)
    owned = [shard_map.blocks(rank) for rank in range(size)]
    assert sorted(block for blocks in owned for block in blocks) == list(range(num_blocks))
    assert all(shard_map.owner(block) == rank for rank, blocks in enumerate(owned) for block in blocks)
    assert max(map(len, owned)) - min(map(len, owned)) <= 1


@pytest.mark.parametrize(("layers", "stages"), [(10, 3), (24, 4), (5, 5)])
def test_contiguous_owners_are_those_of_pipeline_stages(layers, stages):
    found = [ShardMap.contiguous(layers, stages).blocks(rank) for rank in range(stages)]
    assert found == [list(part) for part in partition(layers, stages)]


@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=8), size=ranks)
def test_a_cut_is_complete_even_in_each_block_and_a_rank_owns_in_all_its_shard_range(sizes, size):
    counts = shard_sizes(sizes, size)
    assert [sum(of_block) for of_block in counts] == sizes
    assert all(max(of_block) - min(of_block) <= 1 for of_block in counts)
    assert [sum(of_rank) for of_rank in zip(*counts, strict=True)] == [
        len(shard_range(sum(sizes), rank, size)) for rank in range(size)
    ]


@given(shapes=st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=4), size=ranks)
def test_packed_shards_join_to_the_arrays_and_unpack_as_they_were(shapes, size):
    arrays = {f"w{i}": np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(shapes)}
    (counts,) = shard_sizes([sum(x.size for x in arrays.values())], size)
    layouts = [
        FlatLayout({name: x.shape for name, x in arrays.items()}, counts, SimpleNamespace(rank=rank))
        for rank in range(size)
    ]
    flat = np.concatenate([layout.pack_own(arrays, np.float64) for layout in layouts])
    assert np.array_equal(flat, layouts[0].pack(arrays, np.float64))
    assert np.array_equal(flat, np.concatenate([layouts[0].pack(arrays, np.float64)[one.own] for one in layouts]))
    assert all(np.array_equal(x, arrays[name]) for name, x in layouts[0].unpack(flat).items())


@pytest.mark.parametrize("xp", EACH_LIBRARY)
def test_packing_copies_unpacking_does_not_and_a_shard_keeps_no_whole_alive(xp):
    arrays = {"w": asarray(np.ones((2, 3)), xp), "b": asarray(np.ones(5), xp)}
    layout = FlatLayout({"w": (2, 3), "b": (5,)}, [6, 5], SimpleNamespace(rank=1))
    flat = layout.pack(arrays, xp.float32)
    flat[...] = 2
    assert to_numpy(arrays["w"]).max() == 1
    assert {float(x[(0,) * x.ndim]) for x in layout.unpack(flat).values()} == {2.0}
    assert owning_buffer(layout.pack_own(arrays, xp.float64)).size == 5
