"""Counted messages and bytes, forward and backward, of a block and of the whole model, against the closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parlab import Cluster, run
from parlab.nn.llama import LlamaConfig
from parlab.tensor import (
    Collective,
    ParallelLlama,
    block_collectives,
    block_time,
    llama_kept_by_place,
    traffic,
)
from parlab.world import CLASSROOM, Link
from parlab.world.cluster import A_LEVEL
from tests.nn.kept import itemize
from tests.tensor.models import SIZES, B, S, config, in_turn, model, text

E, L = SIZES["hidden_size"], SIZES["num_hidden_layers"]
both_ways = pytest.mark.parametrize("sequence_parallel", [False, True], ids=["whole", "sequence"])
sizes = pytest.mark.parametrize("size", [1, 2, 4, 8])


def forward_of_block(comm, serial, change=lambda parallel: None, **options):
    parallel = ParallelLlama.from_full(comm, serial, **options)
    change(parallel)
    block = parallel.blocks[0]
    tokens = S // comm.size if options.get("sequence_parallel") else S
    x = np.ones((B, tokens, E), dtype=serial.weights["model.norm.weight"].dtype)
    return block, *block.forward(x)


def backward_of_block(comm, serial, **options):
    block, y, cache = forward_of_block(comm, serial, **options)
    block.backward(np.ones_like(y), cache)


def forward_of_model(comm, serial, change=lambda parallel: None, **options):
    parallel = ParallelLlama.from_full(comm, serial, **options)
    change(parallel)
    return parallel, *parallel.chain.forward(*text())


def backward_of_model(comm, serial, **options):
    parallel, _, cache = forward_of_model(comm, serial, **options)
    parallel.chain.backward(1.0, cache)


def counted(program, size, serial, **options):
    timeline = run(lambda comm: program(comm, serial, **options) and None, size).timeline
    return np.array([[timeline.messages(rank), timeline.bytes_sent(rank)] for rank in range(size)]).T


def ring(size, *arrays):
    """2n(t − 1)/t bytes in 2(t − 1) messages for an all-reduce of n bytes; half of both for its two halves."""
    messages = sum((2 if kind == "all_reduce" else 1) * (size - 1) for kind, _ in arrays)
    sent = sum((2 if kind == "all_reduce" else 1) * n * (size - 1) / size for kind, n in arrays)
    return np.array([[messages] * size, [sent] * size])


def on_paper(formula, size, itemsize=8, **options):
    """Messages and bytes of a closed form, forward and backward."""
    serial = config(num_key_value_heads=options.pop("heads", 8))
    ways = (formula(serial, B, S, size, itemsize, backward=back, **options) for back in (False, True))
    return [np.array(traffic(calls, size)) for calls in ways]


@pytest.mark.parametrize("itemsize", [4, 8])
@sizes
def test_a_block_takes_2_all_reduces_of_bse_each_way_or_2_gathers_and_2_scatters_forward_and_4_2_and_norms_backward(
    size, itemsize
):
    n, of_norms = B * S * E * itemsize, 2 * [("all_reduce", E * itemsize)]
    for found in on_paper(block_collectives, size, itemsize):
        assert (found == ring(size, *2 * [("all_reduce", n)])).all()
    forward, backward = on_paper(block_collectives, size, itemsize, sequence_parallel=True)
    assert (forward == ring(size, *2 * [("all_gather", n)], *2 * [("reduce_scatter", n)])).all()
    assert (backward == ring(size, *4 * [("all_gather", n)], *2 * [("reduce_scatter", n)], *of_norms)).all()


@sizes
def test_the_model_takes_2l_plus_1_all_reduces_and_3_of_bs_forward_and_2l_plus_1_backward(size):
    n, serial = B * S * E * 8, model(num_key_value_heads=8)
    forward = counted(forward_of_model, size, serial)
    backward = counted(backward_of_model, size, serial) - forward
    assert (forward == ring(size, *(2 * L + 1) * [("all_reduce", n)], *3 * [("all_reduce", B * S * 8)])).all()
    assert (backward == ring(size, *(2 * L + 1) * [("all_reduce", n)])).all()


@sizes
def test_with_sequence_parallelism_the_ends_of_the_model_add_a_scatter_and_a_gather_forward_2_and_1_backward(size):
    n, serial = B * S * E * 8, model(num_key_value_heads=8)
    gather, scatter, losses = ("all_gather", n), ("reduce_scatter", n), 3 * [("all_reduce", B * S * 8)]
    forward = counted(forward_of_model, size, serial, sequence_parallel=True)
    backward = counted(backward_of_model, size, serial, sequence_parallel=True) - forward
    assert (forward == ring(size, *(2 * L + 1) * [gather, scatter], *losses)).all()
    norms = (2 * L + 1) * [("all_reduce", E * 8)]
    assert (backward == ring(size, *(4 * L + 2) * [gather], *(2 * L + 1) * [scatter], *norms)).all()


@pytest.mark.parametrize(("size", "heads", "owners"), [(4, 2, 2), (8, 2, 4), (8, 1, 8)])
def test_fewer_kv_heads_than_ranks_add_2_all_reduces_of_their_weights_over_the_owners(size, heads, owners):
    shared, alone = (on_paper(block_collectives, size, heads=number)[1] for number in (heads, 8))
    assert (shared - alone == ring(owners, *2 * [("all_reduce", E * 2 * 8)])[:, :1]).all()


@both_ways
@pytest.mark.parametrize("heads", [8, 2])
@sizes
def test_counted_messages_and_bytes_of_a_block_equal_the_closed_form(size, heads, sequence_parallel):
    serial, options = model(num_key_value_heads=heads), {"sequence_parallel": sequence_parallel}
    forward = counted(forward_of_block, size, serial, **options)
    backward = counted(backward_of_block, size, serial, **options) - forward
    expected = on_paper(block_collectives, size, heads=heads, **options)
    for found, closed_form in zip((forward, backward), expected, strict=True):
        assert (found == closed_form).all()


def test_a_float16_model_sends_its_loss_in_float32():
    serial = model(dtype="float16")
    forward = counted(forward_of_model, 2, serial)
    assert (forward == ring(2, *(2 * L + 1) * [("all_reduce", B * S * E * 2)], *3 * [("all_reduce", B * S * 4)])).all()


def test_closed_forms_know_the_uneven_rings_of_3_ranks_whose_16_losses_do_not_divide():
    serial = model(num_attention_heads=6, num_key_value_heads=3, hidden_size=24)
    forward = counted(forward_of_model, 3, serial)
    assert len(set(forward[1])) > 1
    calls = (2 * L + 1) * [Collective("all_reduce", "y", B * S * 24, 8, 3)]
    calls += 3 * [Collective("all_reduce", "loss", B * S, 8, 3)]
    assert forward.tolist() == list(traffic(calls, 3))


def test_fact_24_blocks_of_e_1024_s_1024_float32_reduce_192_mib_forward_4_each():
    wide = LlamaConfig(
        vocab_size=32, hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16,
        num_key_value_heads=4,
    )  # fmt: skip
    calls = block_collectives(wide, B=1, S=1024, size=2, itemsize=4) * 24
    assert {call.elements * call.itemsize for call in calls} == {4 * 2**20}
    assert sum(call.elements * call.itemsize for call in calls) == 192 * 2**20


@both_ways
def test_overlap_hides_dx_behind_dw_on_the_clock(sequence_parallel):
    """A link on which dx takes as long as dW: overlapped, a backward is shorter by about the hidden time."""
    serial = model(num_key_value_heads=8)
    cluster = Cluster.uniform(latency=0, bandwidth=1e9, flops=1e9)
    whole, hidden = (
        run(backward_of_model, 2, serial, sequence_parallel=sequence_parallel, cluster=cluster, **change).timeline
        for change in ({"change": in_turn}, {})
    )
    assert [whole.bytes_sent(rank) for rank in range(2)] == [hidden.bytes_sent(rank) for rank in range(2)]
    dx = B * S * E * 8 * 10**12 // 10**9  # picoseconds of one all-reduce over 2 ranks, and of two halves of it
    moves = (2 * L + 1) * dx
    assert whole.makespan - hidden.makespan > moves // 2
    assert hidden.makespan >= whole.busy(0)


CLUSTERS = {
    "one node": CLASSROOM,
    "nodes of 2": replace(CLASSROOM, ranks_per_node=2),
    "the second group of 4 sharers straddles two nodes": replace(CLASSROOM, ranks_per_node=6),
    "a slower link inside": replace(CLASSROOM, ranks_per_node=2, intra=Link(9e-6, 1e8)),
}


@both_ways
@pytest.mark.parametrize(("size", "heads"), [(1, 8), (2, 8), (4, 2), (8, 2)])
@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
def test_block_time_equals_the_clock_to_the_picosecond_forward_and_backward(size, heads, sequence_parallel, cluster):
    serial, options = model(num_key_value_heads=heads), {"sequence_parallel": sequence_parallel}
    spans = [
        run(program, size, serial, change=in_turn, cluster=cluster, **options).timeline.makespan
        for program in (forward_of_block, backward_of_block)
    ]
    forward, backward = (
        sum(block_time(serial.config, B, S, size, 8, cluster, backward=back, **options)) for back in (False, True)
    )
    assert spans == [forward, forward + backward]


def test_2_ranks_of_a_node_of_8_may_ask_for_a_ring_through_each_card_and_get_the_ring():
    rings, ring = (block_time(config(), B, S, 2, 8, CLASSROOM, algorithm=name) for name in ("rings", "ring"))
    assert rings == ring


@pytest.mark.parametrize("size", [4, 8])
def test_block_time_with_a_ring_through_each_card_equals_the_clock_where_the_cards_set_the_pace(size):
    """The library's rings take turns inside a node, NCCL's run at once: they agree if links inside take no time."""
    serial = model(num_key_value_heads=8)
    cluster = Cluster("two", CLASSROOM.device, 2, Link(0, np.inf), Link(0, 1e9), ports=A_LEVEL)

    def rings(comm, x):
        return comm.all_reduce(x, algorithm="rings", ranks_per_node=2)

    def program(comm):
        block = ParallelLlama.from_full(comm, serial).blocks[0]
        for part in (block.attention, block.mlp):
            part.leave = part.leave._replace(forward=rings)
        block.forward(np.ones((B, S, E)))

    found = run(program, size, cluster=cluster).timeline.makespan
    one, two = (block_time(serial.config, B, S, size, 8, cluster, algorithm=name) for name in ("ring", "rings"))
    assert found == sum(two)
    assert one.messages == 2 * two.messages


@both_ways
@pytest.mark.parametrize("heads", [8, 2])
@sizes
def test_kept_bytes_of_a_llama_block_equal_the_closed_form_byte_for_byte(size, heads, sequence_parallel):
    serial, options = model(num_key_value_heads=heads), {"sequence_parallel": sequence_parallel}

    def program(comm):
        kept = itemize(forward_of_block(comm, serial, **options)[2])
        return {place: nbytes for place, nbytes in kept.items() if ".tables." not in place}  # which all blocks share

    expected = llama_kept_by_place(serial.config, B, S, size, 8, **options)
    assert run(program, size).results == [expected] * size
