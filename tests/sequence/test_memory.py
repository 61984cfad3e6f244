"""The memory levels of a block under ring attention: bytes, flops and messages as on paper, and the same gradients."""

from __future__ import annotations

from functools import cache, partial

import array_api_compat.numpy
import numpy as np
import pytest

from parlab import per_rank, run
from parlab.arrays import asarray, to_numpy
from parlab.nn import Llama, LlamaConfig
from parlab.nn.formulas import block_flops
from parlab.nn.layers import CAUSAL_ATTENTION, Core
from parlab.nn.llama import decoder_block
from parlab.nn.rotary import Rotary
from parlab.sequence import (
    MEMORY_LEVELS,
    CheckpointedBlock,
    level_bytes,
    pair_flops,
    positions,
    ring_attention,
    ring_attention_backward,
    shard,
    unmasked_pairs,
    unshard,
)
from parlab.world import Cluster, Link
from tests.libraries import EACH_LIBRARY
from tests.nn.counter import Counter
from tests.nn.parity import assert_parity

L, B, S, P = 3, 2, 32, 4
CONFIG = LlamaConfig(
    vocab_size=8,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=L,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
)
HOST = Link(latency=10e-6, bandwidth=25e9)  # PCIe 4.0, 16 lanes
LEVELS = list(MEMORY_LEVELS)


def step(comm, weights, x, dy, where, level):
    """Forward and backward of all blocks; between them this rank computes "between"."""
    how = {"causal": True, "layout": "zigzag"}
    core = Core(partial(ring_attention, comm, **how), partial(ring_attention_backward, comm, **how))
    rotary = Rotary(CONFIG.head_dim, positions=where)
    blocks = [CheckpointedBlock(comm, decoder_block(CONFIG, weights, i, rotary, core), level) for i in range(L)]
    kept = []
    for block in blocks:
        x, cache_of_one = block.forward(x)
        kept.append(cache_of_one)
    del cache_of_one
    comm.compute("between", seconds=1)
    gradients = {}
    for block in reversed(blocks):
        dy, of_one = block.backward(dy, kept.pop())
        gradients |= of_one
    return x, dy, gradients


@cache
def model_and_inputs():
    draw = np.random.default_rng(15)
    model = Llama.random(CONFIG, seed=16, xp=array_api_compat.numpy, dtype="float64", positions=np.arange(S))
    return model, *draw.normal(size=(2, B, S, CONFIG.hidden_size))


@cache
def run_at(level):
    model, x, dy = model_and_inputs()
    inputs = [per_rank(shard(array, P, "zigzag")) for array in (x, dy)]
    where = per_rank([np.array(tokens) for tokens in positions(S, P, "zigzag")])
    return run(step, P, model.weights, *inputs, where, level)


def flops_of(done, rank, *names):
    """On this cluster a flop lasts a picosecond."""
    timeline = done.on(Cluster.uniform(1e-6, 1e9, flops=1e12, memory_bandwidth=1e15))
    return sum(span.end - span.start for span in timeline.computes if span.rank == rank and span.name in names)


def arrays_of(result):
    x, dx, gradients = result
    return [x, dx, *(gradients[name] for name in sorted(gradients))]


@pytest.mark.parametrize("level", LEVELS)
def test_outputs_and_gradients_are_those_of_level_none_to_the_bit(level):
    for found, expected in zip(run_at(level).results, run_at("none").results, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(arrays_of(found), arrays_of(expected), strict=True))


def test_they_are_those_of_the_serial_blocks():
    model, x, dy = model_and_inputs()
    caches = []
    for block in model.blocks:
        x, kept = block.forward(x)
        caches.append(kept)
    gradients = {}
    for block in reversed(model.blocks):
        dy, of_one = block.backward(dy, caches.pop())
        gradients |= of_one
    results = run_at("extreme").results
    summed = {name: sum(result[2][name] for result in results) for name in gradients}
    joined = (unshard([result[i] for result in results], "zigzag") for i in (0, 1))
    assert_parity([*joined, *summed.values()], [x, dy, *(gradients[name] for name in summed)])


def test_extreme_keeps_a_copy_on_the_host_that_later_changes_of_the_input_do_not_reach():
    model, x, dy = model_and_inputs()

    def gradients(comm, overwrite):
        block, given = CheckpointedBlock(comm, model.blocks[0], "extreme"), x.copy()
        _, kept = block.forward(given)
        given[...] = overwrite
        return block.backward(dy, kept)[0]

    untouched, overwritten = (run(gradients, 1, value).results[0] for value in (x, 0.0))
    assert np.array_equal(untouched, overwritten)


@pytest.mark.parametrize("level", LEVELS)
def test_bytes_kept_between_forward_and_backward_are_l_times_those_of_a_block_on_paper(level):
    timeline = run_at(level).timeline
    for rank in range(P):
        between = next(span for span in timeline.computes if span.rank == rank and span.name == "between")
        held = [total for time, total in timeline.held(rank) if time <= between.start]
        assert ([0, *held])[-1] == L * level_bytes(CONFIG, B, S, P, level, itemsize=8)


@pytest.mark.parametrize("level", LEVELS)
def test_the_peak_falls_by_what_all_blocks_but_one_keep_less(level):
    saved = level_bytes(CONFIG, B, S, P, "none", 8) - level_bytes(CONFIG, B, S, P, level, 8)
    peaks = [[run_at(name).timeline.peak_bytes(rank) for rank in range(P)] for name in ("none", level)]
    assert [none - less for none, less in zip(*peaks, strict=True)] == [(L - 1) * saved] * P


@pytest.mark.parametrize("level", LEVELS)
def test_flops_made_again_are_those_of_all_products_from_medium_on_and_of_attention_from_high_on(level):
    products = sum(f.forward for name, f in block_flops(CONFIG, B, S // P).items() if name != "attention")
    pairs = unmasked_pairs(S, P, "zigzag")
    for rank in range(P):
        attention = pair_flops(pairs[rank], B, CONFIG.num_attention_heads, CONFIG.head_dim)
        again = {"none": 0, "low": 0, "medium": products}.get(level, products + attention)
        found, none = (flops_of(run_at(name), rank, "again", "attend") for name in (level, "none"))
        assert found - none == L * again


def test_extreme_moves_its_input_to_the_host_and_back():
    moved = flops_of(run_at("extreme"), 0, "to or from the host")  # picoseconds
    assert moved == 2 * L * HOST.picoseconds(B * S // P * CONFIG.hidden_size * 8)
    assert flops_of(run_at("high"), 0, "to or from the host") == 0


class MatrixProducts(Counter):
    """Those of the projections and of attention's tiles, and not the norms'."""

    def count(self, name, arguments, result):
        if name == "matmul":
            super().count(name, arguments, result)


@pytest.mark.parametrize("level", LEVELS[:-1])  # a counted array cannot be moved to the host
def test_the_products_really_made_again_are_those_noted(level):
    """On one rank, counted array by array. Attention there computes whole tiles, and a column of ones beside v."""
    model, x, dy = model_and_inputs()

    def backward(comm, level):
        counter = MatrixProducts()
        watched = {name: counter.watch(weight) for name, weight in model.weights.items()}
        rotary = Rotary(CONFIG.head_dim, positions=counter.watch(np.arange(S)))
        block = CheckpointedBlock(comm, decoder_block(CONFIG, watched, 0, rotary, CAUSAL_ATTENTION), level)
        block._hold = lambda kept: None  # a counted array owns no memory
        kept = block.forward(counter.watch(x))[1]
        before = counter.products
        block.backward(counter.watch(dy), kept)
        return counter.products - before

    done = {name: run(backward, 1, name) for name in ("none", level)}
    more = done[level].results[0] - done["none"].results[0]
    tiles = 2 * B * CONFIG.num_attention_heads * S * S * (2 * CONFIG.head_dim + 1) if level == "high" else 0
    assert more == flops_of(done[level], 0, "again") + tiles


@pytest.mark.parametrize("level", ["low", "medium", "extreme"])
@pytest.mark.parametrize("xp", EACH_LIBRARY[1:])
def test_other_libraries_give_what_numpy_gives(level, xp):
    model, x, dy = model_and_inputs()
    results = []
    for library in (np, xp):
        weights = {name: asarray(weight, library) for name, weight in model.weights.items()}
        inputs = (asarray(array[:1, :4, :], library) for array in (x, dy))
        where = asarray(np.arange(4), library)
        results.append(run(step, 1, weights, *inputs, where, level).results[0])
    assert_parity([to_numpy(x) for x in arrays_of(results[1])], arrays_of(results[0]))
