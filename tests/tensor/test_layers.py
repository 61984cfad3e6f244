"""The layers one by one: integers bitwise, strict arrays, and who holds what in between."""

from __future__ import annotations

import array_api_strict
import numpy as np
import pytest

from parlab import per_rank, run
from parlab.arrays import asarray, to_numpy
from parlab.nn.activation import swiglu
from parlab.nn.cross_entropy import IGNORED, cross_entropy, cross_entropy_backward
from parlab.nn.linear import linear, linear_backward_input, linear_backward_weight
from parlab.nn.rotary import Rotary
from parlab.tensor import (
    COPY,
    ColumnParallelLinear,
    ParallelAttention,
    ParallelMLP,
    RowParallelLinear,
    vocab_parallel_cross_entropy,
    vocab_parallel_cross_entropy_backward,
)
from parlab.tensor.slices import shard_weights
from tests.nn.parity import assert_parity
from tests.tensor.models import model

every_size = pytest.mark.parametrize(
    ("size", "xp"), [(2, np), (8, np), (4, array_api_strict)], ids=["2", "8", "4-strict"]
)
both_ways = pytest.mark.parametrize("sequence_parallel", [False, True], ids=["whole", "sequence"])


def integers(xp, *shape, seed=0):
    """float64 whole numbers, small enough for every sum of products to be exact."""
    return asarray(np.random.default_rng([seed, *shape]).integers(-9, 10, size=shape).astype("float64"), xp)


def tokens_of(x, comm, sequence_parallel):
    """This rank's tokens of [B, S, E]."""
    if not sequence_parallel:
        return x
    length = x.shape[1] // comm.size
    return x[:, comm.rank * length : (comm.rank + 1) * length, :]


def joined(pieces, axis):
    return np.concatenate([to_numpy(piece) for piece in pieces], axis=axis)


@both_ways
@every_size
def test_integers_through_columns_and_rows_are_bitwise_serial(xp, size, sequence_parallel):
    x, dy = integers(xp, 2, 8, 6), integers(xp, 2, 8, 5, seed=1)
    first, second = integers(xp, 6, 16, seed=2), integers(xp, 16, 5, seed=3)
    hidden, first_cache = linear(x, first)
    y, second_cache = linear(hidden, second)
    dhidden, of_second = linear_backward_input(dy, second_cache, second)
    dx, of_first = linear_backward_input(dhidden, first_cache, first)
    dsecond, dfirst = linear_backward_weight(of_second), linear_backward_weight(of_first)

    def program(comm):
        columns = ColumnParallelLinear.from_full(comm, first, sequence_parallel=sequence_parallel)
        rows = RowParallelLinear.from_full(comm, second, sequence_parallel=sequence_parallel)
        hidden, first_cache = columns.forward(tokens_of(x, comm, sequence_parallel))
        y, second_cache = rows.forward(hidden)
        dhidden, dsecond = rows.backward(tokens_of(dy, comm, sequence_parallel), second_cache)
        dx, dfirst = columns.backward(dhidden, first_cache)
        return hidden, y, dhidden, dx, dfirst["weight"], dsecond["weight"]

    found = list(zip(*run(program, size).results, strict=True))
    for pieces, expected, axis in (
        (found[0], hidden, 2), (found[2], dhidden, 2), (found[4], dfirst, 1), (found[5], dsecond, 0)
    ):  # fmt: skip
        assert (joined(pieces, axis) == to_numpy(expected)).all()
    for pieces, expected in ((found[1], y), (found[3], dx)):
        whole = [joined(pieces, 1)] if sequence_parallel else [to_numpy(piece) for piece in pieces]
        assert all((piece == to_numpy(expected)).all() for piece in whole)


@pytest.mark.parametrize(("size", "heads"), [(2, 8), (4, 4), (4, 2), (4, 1)])
def test_attention_and_mlp_from_full_weights_have_the_slices_of_the_model(size, heads):
    """Of 4 ranks 2 share a key/value head where there are 2, and 4 where there is 1; else none does."""
    serial = model(num_key_value_heads=heads)

    def program(comm):
        own = shard_weights(serial.config, serial.weights, comm.rank, size)
        attention = ParallelAttention.from_full(comm, serial.weights, "model.layers.0.self_attn", 2, Rotary(2))
        mlp = ParallelMLP.from_full(comm, serial.weights, "model.layers.0.mlp")
        for part in (attention, mlp):
            assert part.enter is COPY  # no sequence parallelism, unless told
            assert all((part.weights[name] == own[name]).all() for name in part.weight_names)
        return attention.sharers and attention.sharers.size

    assert run(program, size).results == [None if heads >= size else size // heads] * size


@both_ways
def test_an_mlp_is_two_column_layers_and_a_row_layer_bitwise_and_leaves_out_one_of_their_two_gathers(sequence_parallel):
    names = [f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
    weights = dict(zip(names, (integers(np, 6, 16), integers(np, 6, 16, seed=1), integers(np, 16, 6)), strict=True))
    x, options = integers(np, 2, 8, 6, seed=2), {"sequence_parallel": sequence_parallel}

    def one_by_one(comm):
        gate, up = (ColumnParallelLinear.from_full(comm, weights[name], **options) for name in names[:2])
        down = RowParallelLinear.from_full(comm, weights[names[2]], **options)
        own = tokens_of(x, comm, sequence_parallel)
        return down.forward(swiglu(gate.forward(own)[0], up.forward(own)[0])[0])[0]

    def as_one(comm):
        return ParallelMLP.from_full(comm, weights, "mlp", **options).forward(tokens_of(x, comm, sequence_parallel))[0]

    apart, together = run(one_by_one, 4), run(as_one, 4)
    assert all((a == b).all() for a, b in zip(apart.results, together.results, strict=True))
    spared = apart.timeline.bytes_sent(0) - together.timeline.bytes_sent(0)
    assert spared == (3 * x.nbytes // 4 if sequence_parallel else 0)


@every_size
@pytest.mark.parametrize("ignored", [0, 5, 16], ids=lambda ignored: f"{ignored} of 16 ignored")
def test_loss_over_a_cut_vocabulary_within_1e_12_of_serial_where_11_logits_do_not_divide(xp, size, ignored):
    draw = np.random.default_rng(0)
    logits, targets = asarray(30 * draw.normal(size=(2, 8, 11)), xp), draw.integers(11, size=(2, 8))
    targets.flat[draw.permutation(16)[:ignored]] = IGNORED
    targets = asarray(targets, xp)
    loss, cache = cross_entropy(logits, targets)
    expected = cross_entropy_backward(0.7, cache)

    def program(comm, own):
        found, cache = vocab_parallel_cross_entropy(comm, own, targets, vocab_size=11)
        return found, vocab_parallel_cross_entropy_backward(0.7, cache)

    pieces = [asarray(piece.copy(), xp) for piece in np.array_split(to_numpy(logits), size, axis=2)]
    done = run(program, size, per_rank(pieces))
    losses, dlogits = zip(*done.results, strict=True)
    assert_parity(losses, [loss] * size)
    assert_parity([joined(dlogits, 2)], [expected])


def test_loss_of_logits_a_thousand_apart_on_different_ranks_is_finite_and_exact():
    """A rank that subtracted its own maximum would add up numbers that were scaled differently."""

    def program(comm, own):
        loss, cache = vocab_parallel_cross_entropy(comm, own, np.array([[0]]))
        return float(loss), vocab_parallel_cross_entropy_backward(1.0, cache)

    pieces = [np.full((1, 1, 2), -1000.0), np.full((1, 1, 2), 1000.0)]
    for loss, dlogits in run(program, 2, per_rank(pieces)).results:
        assert loss == 2000 + np.log(2)
        assert np.isfinite(dlogits).all()


def test_the_loss_of_float16_logits_is_the_serial_one_of_float64_in_float32():
    logits = np.random.default_rng(0).normal(size=(2, 8, 300)).astype(np.float16)
    targets = np.random.default_rng(1).integers(300, size=(2, 8))
    parts = per_rank([np.ascontiguousarray(part) for part in np.split(logits, 2, axis=-1)])
    loss, (probabilities, *_) = run(vocab_parallel_cross_entropy, 2, parts, targets).results[0]
    assert (loss.dtype, probabilities.dtype) == (np.float32, np.float16)
    assert float(loss) == pytest.approx(float(cross_entropy(logits.astype(float), targets)[0]), rel=1e-6)
