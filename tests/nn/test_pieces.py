"""Every piece against finite differences, on NumPy and on array-api-strict, and against what its paper says."""

from __future__ import annotations

import numpy as np
import pytest

from parlab.arrays import to_numpy
from parlab.nn.activation import softmax, swiglu, swiglu_backward
from parlab.nn.cross_entropy import IGNORED, cross_entropy, cross_entropy_backward
from parlab.nn.embedding import embedding, embedding_backward
from parlab.nn.linear import linear, linear_backward_input, linear_backward_weight
from parlab.nn.norm import rms_norm, rms_norm_backward_input, rms_norm_backward_weight
from parlab.nn.rotary import Rotary, inverse_frequencies, rotary_tables, rotary_type, rotate, rotate_backward
from tests.nn.finite_differences import assert_gradient, draw, weighted

EPS = 1e-5


def test_linear_matches_finite_differences(xp):
    x, weight, dy = draw(xp, 2, 3, 4), draw(xp, 4, 5), draw(xp, 2, 3, 5)
    dx, pending = linear_backward_input(dy, linear(x, weight)[1], weight)
    dweight = linear_backward_weight(pending)
    assert_gradient(dx, lambda x: weighted(linear(x, weight)[0], dy), x)
    assert_gradient(dweight, lambda weight: weighted(linear(x, weight)[0], dy), weight)


def test_rms_norm_matches_finite_differences(xp):
    x, weight, dy = draw(xp, 2, 3, 6), draw(xp, 6), draw(xp, 2, 3, 6, seed=1)
    dx, pending = rms_norm_backward_input(dy, rms_norm(x, weight, EPS)[1], weight)
    dweight = rms_norm_backward_weight(pending)
    assert_gradient(dx, lambda x: weighted(rms_norm(x, weight, EPS)[0], dy), x)
    assert_gradient(dweight, lambda weight: weighted(rms_norm(x, weight, EPS)[0], dy), weight)


@pytest.mark.parametrize("positions", [[7, 2, 2], [[7, 2, 2], [0, 1, 9]]], ids=["one_row", "a_row_each"])
def test_rotary_matches_finite_differences(xp, positions):
    x, dy = draw(xp, 2, 2, 3, 4), draw(xp, 2, 2, 3, 4, seed=1)
    tables = rotary_tables(xp.asarray(positions), head_dim=4)
    dx = rotate_backward(dy, rotate(x, tables)[1])
    assert_gradient(dx, lambda x: weighted(rotate(x, tables)[0], dy), x)


def test_swiglu_matches_finite_differences(xp):
    gate, up, dy = draw(xp, 3, 7), draw(xp, 3, 7, seed=1), draw(xp, 3, 7, seed=2)
    dgate, dup = swiglu_backward(dy, swiglu(gate, up)[1])
    assert_gradient(dgate, lambda gate: weighted(swiglu(gate, up)[0], dy), gate)
    assert_gradient(dup, lambda up: weighted(swiglu(gate, up)[0], dy), up)


def test_softmax_of_huge_scores_is_finite(xp):
    assert to_numpy(softmax(xp.asarray([1e4, 1e4, -xp.inf]))).tolist() == [0.5, 0.5, 0.0]


def test_embedding_matches_finite_differences_and_adds_repeated_tokens(xp):
    tokens, weight, dy = xp.asarray([[1, 4, 1], [0, 1, 4]]), draw(xp, 5, 3), draw(xp, 2, 3, 3)
    dweight = embedding_backward(dy, embedding(tokens, weight)[1], 5)
    assert_gradient(dweight, lambda weight: weighted(embedding(tokens, weight)[0], dy), weight)


def test_cross_entropy_matches_finite_differences_with_its_weight_in_the_whole(xp):
    logits, targets = draw(xp, 2, 3, 5), xp.asarray([[1, 4, 1], [0, 1, 4]])
    dlogits = cross_entropy_backward(0.25, cross_entropy(logits, targets)[1])
    assert_gradient(dlogits, lambda logits: 0.25 * float(cross_entropy(logits, targets)[0]), logits)


def test_cross_entropy_of_two_targets_of_five_tokens_is_that_of_the_two_and_the_others_have_no_gradient(xp):
    logits, targets = draw(xp, 1, 5, 7), xp.asarray([[IGNORED, 3, IGNORED, IGNORED, 6]])
    two = xp.take(logits, xp.asarray([1, 4]), axis=1)
    loss, cache = cross_entropy(logits, targets)
    expected, of_two = cross_entropy(two, xp.asarray([[3, 6]]))
    assert float(loss) == pytest.approx(float(expected), rel=1e-15)
    dlogits, wanted = cross_entropy_backward(1.0, cache), cross_entropy_backward(1.0, of_two)
    assert bool(xp.all(xp.take(dlogits, xp.asarray([1, 4]), axis=1) == wanted))
    assert not bool(xp.any(xp.take(dlogits, xp.asarray([0, 2, 3]), axis=1) != 0))


def test_cross_entropy_of_no_target_is_0_and_has_no_gradient(xp):
    loss, cache = cross_entropy(draw(xp, 1, 2, 7), xp.asarray([[IGNORED, IGNORED]]))
    assert float(loss) == 0
    assert not bool(xp.any(cross_entropy_backward(1.0, cache) != 0))


def test_targets_of_an_unsigned_dtype_all_count(xp):
    logits = draw(xp, 1, 2, 7)
    losses = [float(cross_entropy(logits, xp.asarray([[6, 2]], dtype=dtype))[0]) for dtype in (xp.uint8, xp.int64)]
    assert losses[0] == losses[1]


def test_cross_entropy_of_a_uniform_guess_is_log_v_and_of_huge_logits_is_finite(xp):
    targets = xp.asarray([[0, 3]])
    assert float(cross_entropy(xp.zeros((1, 2, 4)), targets)[0]) == pytest.approx(np.log(4), rel=1e-15)
    huge = xp.asarray([[[1e4, 0.0, 0.0, 0.0], [1e4, 0.0, 0.0, 0.0]]])
    loss, cache = cross_entropy(huge, targets)
    assert float(loss) == 5000.0  # one token certain and right (0), one certain and wrong (10 000)
    assert bool(xp.all(xp.isfinite(cross_entropy_backward(1.0, cache))))


def test_swiglu_of_huge_gates_is_finite(xp):
    gate = xp.asarray([-1e4, -100.0, 0.0, 100.0, 1e4], dtype=xp.float32)
    y, cache = swiglu(gate, xp.ones_like(gate))
    assert bool(xp.all(y == xp.asarray([0.0, 0.0, 0.0, 100.0, 1e4], dtype=xp.float32)))
    assert bool(xp.all(cache[0] == gate))
    assert all(bool(xp.all(xp.isfinite(d))) for d in swiglu_backward(xp.ones_like(gate), cache))


def test_the_loss_of_float16_logits_is_that_of_float64_in_float32():
    logits = np.random.default_rng(0).normal(size=(2, 8, 300)).astype(np.float16)
    targets = np.random.default_rng(1).integers(300, size=(2, 8))
    loss, (probabilities, *_) = cross_entropy(logits, targets)
    assert (loss.dtype, probabilities.dtype) == (np.float32, np.float16)
    assert float(loss) == pytest.approx(float(cross_entropy(logits.astype(float), targets)[0]), rel=1e-6)


def test_rms_norm_of_float16_does_not_overflow():
    x = np.full((2, 4), 1000.0, dtype=np.float16)  # its square is infinite in float16
    y, _ = rms_norm(x, np.ones(4, dtype=np.float16))
    assert y.dtype == np.float16
    assert (y == 1).all()


def test_rotary_products_depend_on_the_distance_alone(xp):
    q, k = draw(xp, 1, 1, 1, 8), draw(xp, 1, 1, 1, 8, seed=1)

    def product(at: int, other: int) -> float:
        turned = [rotate(x, rotary_tables(xp.asarray([p]), head_dim=8))[0] for x, p in ((q, at), (k, other))]
        return float(xp.sum(turned[0] * turned[1]))

    assert product(3, 1) == pytest.approx(product(1003, 1001), rel=1e-10)
    assert abs(product(3, 1) - product(3, 2)) > 1e-3


def test_llama3_rope_keeps_fast_pairs_divides_slow_ones_by_8_and_blends_between(xp):
    """Llama 3.1's own numbers: head size 128, base 500 000, factor 8, 1 and 4 turns in 8192 tokens."""
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    plain = to_numpy(inverse_frequencies(xp, 128, 500000.0))
    scaled = to_numpy(inverse_frequencies(xp, 128, 500000.0, scaling))
    wavelength = 2 * np.pi / plain
    assert (scaled[wavelength < 8192 / 4] == plain[wavelength < 8192 / 4]).all()
    assert np.allclose(scaled[wavelength > 8192], plain[wavelength > 8192] / 8, rtol=1e-15)
    between = (wavelength > 8192 / 4) & (wavelength < 8192)
    assert np.flatnonzero(between).tolist() == [29, 30, 31, 32, 33, 34]
    smooth = (8192 / wavelength[between] - 1) / (4 - 1)
    assert np.allclose(scaled[between], (1 - smooth) * plain[between] / 8 + smooth * plain[between], rtol=1e-12)


def test_rotary_tables_are_float64_unless_asked_otherwise(xp):
    assert [table.dtype for table in rotary_tables(xp.arange(2), head_dim=4)] == [xp.float64] * 2
    single = rotary_tables(xp.arange(2), head_dim=4, dtype=xp.float32)
    assert [table.dtype for table in single] == [xp.float32] * 2


def test_linear_rope_scaling_stretches_positions(xp):
    stretched = inverse_frequencies(xp, 8, 10000.0, {"type": "linear", "factor": 4.0})
    assert np.allclose(to_numpy(stretched) * 4, to_numpy(inverse_frequencies(xp, 8, 10000.0)), rtol=1e-15)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: embedding(np.asarray([[0, 5]]), np.ones((5, 2))), r"tokens hold 0..5: the vocabulary has 0..4"),
        (lambda: embedding(np.asarray([[-1, 1]]), np.ones((5, 2))), r"tokens hold -1..1: the vocabulary has 0..4"),
        (lambda: embedding(np.ones((1, 2)), np.ones((5, 2))), r"tokens have dtype float64: integers are needed"),
        (lambda: cross_entropy(np.ones((1, 2, 5)), np.asarray([[0, 5]])), r"targets hold 0..5"),
        (lambda: cross_entropy(np.ones((1, 2, 5)), np.asarray([0, 1])), r"one target a token is needed, \(1, 2\)"),
        (lambda: rotary_type({"rope_type": "yarn"}), r"type='yarn': use one of default, linear, llama3"),
        (lambda: rotary_type({"rope_type": "linear", "factor": 0}), "factor=0: must be a number greater than 0"),
        (
            lambda: rotary_type(
                dict.fromkeys(
                    ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), 4.0
                )
                | {"rope_type": "llama3"}
            ),
            r"the first must be smaller",
        ),
    ],
)
def test_bad_input_is_refused_with_what_would_be_right(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_a_models_tables_are_kept_and_made_again_for_another_length_or_dtype(xp):
    rotary, x = Rotary(4), xp.zeros((1, 3, 8), dtype=xp.float64)
    first = rotary.tables(x)
    assert rotary.tables(x)[0] is first[0]
    assert rotary.tables(xp.zeros((1, 3, 8), dtype=xp.float32))[0].dtype == xp.float32
    assert rotary.tables(xp.zeros((1, 5, 8), dtype=xp.float32))[0].shape == (5, 4)
    assert rotary.tables(x)[0].dtype == xp.float64
