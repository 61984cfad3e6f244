"""The tensor-parallel Llama against the serial one: logits, loss, every gradient, and ten optimizer steps."""

from __future__ import annotations

import math

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab import run
from parlab.nn.layers import CAUSAL_ATTENTION
from parlab.nn.llama import LlamaConfig
from parlab.nn.optimizer import AdamW, clip_gradients
from parlab.tensor import NOTHING, ParallelLlama, gradients_of_ranks, shard_weights, weight_slices
from tests.nn.parity import assert_parity, relative_error
from tests.tensor.models import SIZES, in_turn, model, parallel_results, serial_results, text

both_ways = pytest.mark.parametrize("sequence_parallel", [False, True], ids=["whole", "sequence"])


def assert_all_within(found: dict, expected: dict, tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        error = relative_error(found[name], array)
        assert error <= tolerance, f"{name}: relative error {error:.1e}"


@both_ways
@pytest.mark.parametrize(
    ("size", "heads", "xp"),
    [*((size, heads, np) for size in (1, 2, 4, 8) for heads in (8, 2)), (4, 2, array_api_strict)],
    ids=lambda value: None if isinstance(value, int) else "",
)
def test_logits_loss_and_all_gradients_within_1e_12_of_serial(xp, size, heads, sequence_parallel):
    serial = model(xp, num_key_value_heads=heads)
    tokens, targets = text(xp)
    found = parallel_results(serial, size, tokens, targets, sequence_parallel=sequence_parallel)
    assert_all_within(found, serial_results(serial, tokens, targets), 1e-12)


def test_gradients_of_4_ranks_are_the_serial_ones_and_a_change_breaks_16_of_21():
    serial, (tokens, targets) = model(), text()
    expected = serial.loss_and_gradients(tokens, targets)
    loss, gradients = gradients_of_ranks(serial, tokens, targets, 4)
    assert relative_error(np.asarray(loss), np.asarray(expected[0])) <= 1e-12
    assert_all_within(gradients, expected[1], 1e-12)

    def forget(parallel):
        parallel.blocks[-1].mlp.enter = NOTHING

    _, broken = gradients_of_ranks(serial, tokens, targets, 4, forget)
    assert sum(relative_error(broken[name], array) > 1e-3 for name, array in expected[1].items()) == 16


@both_ways
@pytest.mark.parametrize(
    ("xp", "steps", "size", "heads"),
    [(np, 10, 4, 2), (array_api_strict, 2, 2, 1)],
)
def test_ten_adamw_steps_and_two_on_strict_arrays_end_within_1e_9_of_serial(xp, steps, size, heads, sequence_parallel):
    serial, start = model(xp, num_key_value_heads=heads), model(xp, num_key_value_heads=heads)
    optimizer, expected = AdamW(lr=1e-2), []
    for step in range(steps):
        loss, gradients = serial.loss_and_gradients(*text(xp, seed=step))
        gradients, norm = clip_gradients(gradients, 1.0)
        optimizer.step(serial.weights, gradients)
        expected += [loss, norm]

    def program(comm):
        parallel = ParallelLlama.from_full(comm, start, sequence_parallel=sequence_parallel)
        optimizer, found = AdamW(lr=1e-2), []
        for step in range(steps):
            loss, gradients = parallel.loss_and_gradients(*text(xp, seed=step))
            gradients, norm = parallel.clip_gradients(gradients, 1.0)
            optimizer.step(parallel.weights, gradients)
            found += [loss, norm]
        return found, parallel.whole(parallel.weights)

    for found, weights in run(program, size).results:
        assert_parity([found], [expected], 1e-9)
        assert_all_within(weights, serial.weights, 1e-9)


@both_ways
def test_loss_and_logits_are_bitwise_the_same_on_all_4_ranks(sequence_parallel):
    serial, (tokens, targets) = model(), text()

    def program(comm):
        parallel = ParallelLlama.from_full(comm, serial, sequence_parallel=sequence_parallel)
        return parallel.loss_and_gradients(tokens, targets)[0], parallel.logits(tokens)

    results = run(program, 4).results
    assert all(loss == results[0][0] and (logits == results[0][1]).all() for loss, logits in results)


def test_what_several_ranks_own_stays_bitwise_the_same_through_three_steps():
    start = model(num_key_value_heads=2)

    def program(comm):
        parallel, optimizer = ParallelLlama.from_full(comm, start, sequence_parallel=True), AdamW(lr=1e-2)
        for step in range(3):
            optimizer.step(parallel.weights, parallel.loss_and_gradients(*text(seed=step))[1])
        return parallel.weights, parallel.slices

    results = run(program, 4).results
    for name, piece in results[0][1].items():
        for rank, (weights, _) in enumerate(results):
            assert (weights[name] == results[rank - rank % piece.shared_by][0][name]).all(), name


@both_ways
def test_overlapped_or_not_the_numbers_are_bitwise_the_same(sequence_parallel):
    serial, (tokens, targets) = model(num_key_value_heads=2), text()
    one, other = (
        parallel_results(serial, 4, tokens, targets, sequence_parallel=sequence_parallel, **change)
        for change in ({"change": in_turn}, {})
    )
    assert all((one[name] == other[name]).all() for name in one)


@both_ways
def test_backward_parts_of_three_microbatches_in_any_order_are_bitwise_the_joint_backward(sequence_parallel):
    serial = model(num_key_value_heads=2)

    def program(comm):
        parallel = ParallelLlama.from_full(comm, serial, sequence_parallel=sequence_parallel)
        batches = [text(seed=seed) for seed in range(3)]
        joint = [parallel.loss_and_gradients(*batch)[1] for batch in batches]
        caches = [parallel.chain.forward(*batch)[1] for batch in batches]
        pending = {i: parallel.chain.backward_input(1.0, caches[i])[1] for i in (1, 0, 2)}
        later = {i: parallel.chain.backward_weight(pending[i]) for i in (2, 0, 1)}
        return all((later[i][name] == joint[i][name]).all() for i in later for name in joint[i])

    assert run(program, 4).results == [True] * 4


def test_fact_e_1024_m_4096_h_16_g_4_t_2_has_q_512_kv_128_and_m_2048_columns():
    sizes = {"vocab_size": 32, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 1}
    owned = weight_slices(LlamaConfig(**sizes, num_attention_heads=16, num_key_value_heads=4), rank=1, size=2)
    layer = "model.layers.0"
    expected = {"self_attn.q_proj": 512, "self_attn.k_proj": 128, "self_attn.v_proj": 128, "self_attn.o_proj": 512}
    expected |= {"mlp.gate_proj": 2048, "mlp.up_proj": 2048, "mlp.down_proj": 2048}
    for name, length in expected.items():
        piece = owned[f"{layer}.{name}.weight"]
        assert (piece.start, piece.stop) == (length, 2 * length)
        assert piece.axis == (0 if name.endswith(("o_proj", "down_proj")) else 1)


@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        ({"num_attention_heads": 6, "hidden_size": 24, "num_key_value_heads": 6}, 4,
         "num_attention_heads 6 do not divide among 4 tensor-parallel ranks: use a multiple of 4"),
        ({"num_attention_heads": 12, "hidden_size": 24, "num_key_value_heads": 6}, 4,
         "num_key_value_heads 6 and 4 tensor-parallel ranks: one must divide the other"),
        ({"intermediate_size": 26}, 4,
         "intermediate_size 26 does not divide among 4 tensor-parallel ranks: use a multiple of 4"),
        ({"vocab_size": 3}, 4, "vocab_size 3 does not reach for 4 tensor-parallel ranks: use 4 or more"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_divide_are_refused_before_any_message(changes, size, message):
    serial = model(**changes)

    def program(comm):
        ParallelLlama.from_full(comm, serial)

    with pytest.raises(ValueError, match=message) as caught:
        run(program, size)
    assert all(caught.value.run.timeline.messages(rank) == 0 for rank in range(size))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda own, full: full, r"embed_tokens.weight has shape \(19, 16\): .*, rank 0 of 2 owns \(10, 16\)"),
        (lambda own, full: {name: x for name, x in own.items() if "norm" not in name}, "input_layernorm.* is missing"),
    ],
)
def test_weights_that_are_not_this_ranks_slices_are_refused(change, message):
    serial = model()

    def program(comm):
        own = shard_weights(serial.config, serial.weights, comm.rank, comm.size)
        ParallelLlama(comm, serial.config, change(own, serial.weights))

    with pytest.raises(ValueError, match=message):
        run(program, 2)


@settings(max_examples=20)
@given(st.data())
def test_random_sizes_within_1e_12_of_serial(data):
    size, shares = data.draw(st.sampled_from([(1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (4, 2), (4, 4), (6, 3)]))
    G = size // shares * (1 if shares > 1 else data.draw(st.integers(1, 2)))
    H = math.lcm(G, size) * data.draw(st.integers(1, 2))
    sequence_parallel, tied = data.draw(st.booleans()), data.draw(st.booleans())
    serial = model(
        vocab_size=data.draw(st.integers(size, 13)),
        hidden_size=2 * H,
        intermediate_size=size * data.draw(st.integers(1, 4)),
        num_hidden_layers=data.draw(st.integers(1, 2)),
        num_attention_heads=H,
        num_key_value_heads=G,
        tie_word_embeddings=tied,
    )
    shape = data.draw(st.integers(1, 3)), size * data.draw(st.integers(1, 3))
    tokens, targets = np.random.default_rng(0).integers(serial.config.vocab_size, size=(2, *shape))
    found = parallel_results(serial, size, tokens, targets, sequence_parallel=sequence_parallel)
    expected = serial_results(serial, tokens, targets)
    largest = max(float(np.max(np.abs(array))) for array in expected.values())
    for name, array in expected.items():  # where all tokens are alike, q and k have gradients of rounding alone
        assert relative_error(found[name], array, floor=1e-3 * largest) <= 1e-12, name


def test_a_sequence_that_does_not_divide_is_refused_before_any_message():
    serial = model()
    tokens, targets = (x[:, :6] for x in text())

    def program(comm):
        ParallelLlama.from_full(comm, serial, sequence_parallel=True).loss_and_gradients(tokens, targets)

    message = "sequence length 6 does not divide among 4 tensor-parallel ranks: use a multiple of 4"
    with pytest.raises(ValueError, match=message) as caught:
        run(program, 4)
    assert all(caught.value.run.timeline.messages(rank) == 0 for rank in range(4))


def test_tokens_outside_the_vocabulary_are_refused_on_every_rank():
    serial, (tokens, targets) = model(), text()
    tokens = tokens + SIZES["vocab_size"]

    def program(comm):
        ParallelLlama.from_full(comm, serial).loss_and_gradients(tokens, targets)

    with pytest.raises(ValueError, match=r"tokens hold 19\.\.\d+: the vocabulary has 0\.\.18"):
        run(program, 2)


@pytest.mark.parametrize("told", [True, False])
def test_a_core_that_tells_the_clock_itself_is_not_charged_twice(told):
    """2 rows of 8 tokens, 8 heads of 2: two products of 36 pairs, 4 · 2 · 36 · 16 operations on one rank."""
    serial = model()
    flops = []

    def program(comm):
        core = CAUSAL_ATTENTION._replace(flops=None) if told else CAUSAL_ATTENTION
        attention = ParallelLlama.from_full(comm, serial, core=core).blocks[0].attention
        x = np.zeros((2, 8, 16))
        flops.append((attention.core_flops(x), attention.core_flops(x, backward=True)))

    run(program, 1)
    assert flops == [(0, 0) if told else (4 * 2 * 36 * 16, 10 * 2 * 36 * 16)]
