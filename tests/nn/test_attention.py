"""Dense attention against finite differences and PyTorch; attention tile by tile, strip by strip, against dense."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from parlab.arrays import asarray, to_numpy
from parlab.nn import attention as tiled
from parlab.nn import tiles
from parlab.nn.attention import (
    CAUSAL,
    STRICT,
    attend_tile,
    attend_tile_backward,
    attention,
    attention_backward,
    merge,
)
from parlab.nn.dense_attention import dense_attention, dense_attention_backward
from parlab.nn.sums import row_dot
from tests.libraries import LIBRARIES
from tests.nn.finite_differences import assert_gradient, draw, weighted
from tests.nn.parity import assert_parity, relative_error

PYTORCH = load_file(Path(__file__).parents[1] / "data" / "attention.safetensors")
PAIRS = {
    "dense": (dense_attention, dense_attention_backward),
    "tiled": (attention, attention_backward),
}


@pytest.fixture
def small_tiles(monkeypatch):
    """Strips of 4 keys for 4 queries, and for 2 on the diagonal, so that short sequences cross their edges."""
    monkeypatch.setattr(tiles, "SIDE", 4)
    monkeypatch.setattr(tiles, "TRIANGLE", 2)
    monkeypatch.setattr(tiles, "DEVICE_SCORES", 0)


def draw_inputs(xp, B, H, G, S, T, D, seed=0):
    q, dout = (draw(xp, B, H, S, D, seed=seed + i) for i in range(2))
    k, v = (draw(xp, B, G, T, D, seed=seed + i) for i in range(2, 4))
    return dout, q, k, v


def mask_of(diagonal, S, T, window=None):
    if diagonal is None:
        return None
    newest = np.arange(S)[:, None] + diagonal
    return (np.arange(T) <= newest) & (np.arange(T) > newest - (window or S + T + abs(diagonal)))


def strips_of_tile(dout, q, k, v, diagonal=None, scale=None, window=None):
    how = {"diagonal": diagonal, "scale": scale, "window": window}
    out, lse = attend_tile(q, k, v, **how)
    return out, lse, *attend_tile_backward(dout, q, k, v, lse, row_dot(dout, out), **how)


def dense_tile(dout, q, k, v, diagonal=None, scale=None, window=None):
    mask = mask_of(diagonal, q.shape[2], k.shape[2], window)
    out, lse = dense_attention(q, k, v, mask=mask, scale=scale)
    return out, lse, *dense_attention_backward(dout, q, k, v, out, lse, mask=mask, scale=scale)


# The reference


@pytest.mark.parametrize("causal", [False, True])
def test_dense_gradients_match_finite_differences(xp, causal):
    dout, q, k, v = draw_inputs(xp, 1, 2, 1, 4, 4, 3)
    out, lse = dense_attention(q, k, v, causal=causal, scale=0.7)
    dq, dk, dv = dense_attention_backward(dout, q, k, v, out, lse, causal=causal, scale=0.7)
    assert_gradient(dq, lambda q: weighted(dense_attention(q, k, v, causal=causal, scale=0.7)[0], dout), q)
    assert_gradient(dk, lambda k: weighted(dense_attention(q, k, v, causal=causal, scale=0.7)[0], dout), k)
    assert_gradient(dv, lambda v: weighted(dense_attention(q, k, v, causal=causal, scale=0.7)[0], dout), v)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("case", ["full", "causal"])
def test_attention_and_gradients_match_pytorch_to_1e_12(xp, pair, case):
    forward, backward = PAIRS[pair]
    q, k, v, dout = (asarray(PYTORCH[name], xp) for name in ("q", "k", "v", "dout"))
    out, lse = forward(q, k, v, causal=case == "causal")
    found = out, lse, *backward(dout, q, k, v, out, lse, causal=case == "causal")
    assert_parity(found, [PYTORCH[f"{case}.{name}"] for name in ("out", "lse", "dq", "dk", "dv")])


# Tiles


@settings(max_examples=60)
@given(
    B=st.integers(1, 2),
    G=st.integers(1, 3),
    group=st.integers(1, 8),
    S=st.integers(1, 11),
    T=st.integers(1, 11),
    D=st.integers(1, 5),
    sees=st.sampled_from(["all keys", "earlier keys", "a window"]),
    diagonal=st.integers(-10, 10),
    window=st.integers(1, 12),
    unshifted=st.booleans(),
    library=st.sampled_from(LIBRARIES),
)
def test_strips_of_tile_matches_dense_to_1e_12(B, G, group, S, T, D, sees, diagonal, window, unshifted, library):
    inputs = draw_inputs(library, B, G * group, G, S, T, D)
    diagonal = None if sees == "all keys" else diagonal
    window = window if sees == "a window" else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "SIDE", 4)
        patch.setattr(tiles, "TRIANGLE", 2)
        patch.setattr(tiles, "DEVICE_SCORES", 0)
        patch.setattr(tiles, "SMALL", 1e9 if unshifted else -1e9)
        expected = dense_tile(*(to_numpy(x) for x in inputs), diagonal, window=window)
        assert_parity(
            strips_of_tile(*inputs, diagonal, window=window), expected, floor=0.1
        )  # with one key dq and dk are 0 and noise


@pytest.mark.parametrize(("S", "diagonal"), [(256, CAUSAL), (257, None), (257, CAUSAL), (257, STRICT), (1100, CAUSAL)])
def test_tiles_of_512_and_256_match_dense_at_their_edges(S, diagonal):
    inputs = draw_inputs(np, 1, 2, 1, S, S, 4)
    assert_parity(strips_of_tile(*inputs, diagonal), dense_tile(*inputs, diagonal))


@pytest.mark.parametrize(("diagonal", "window"), [(0, 1), (0, 63), (0, 64), (0, 257), (-3, 600), (700, 300)])
def test_windows_match_dense_at_the_edges_of_the_tiles(diagonal, window):
    inputs = draw_inputs(np, 1, 1, 1, 700, 1100, 2)
    expected = dense_tile(*inputs, diagonal, window=window)
    assert_parity(strips_of_tile(*inputs, diagonal, window=window), expected, floor=0.1)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("factor", [1e-30, 1e4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_huge_and_tiny_logits_stay_finite_and_right(dtype, factor):
    dout, q, k, v = draw_inputs(np, 1, 2, 1, 9, 9, 4)
    expected = dense_tile(dout, q * factor, k, v, CAUSAL)
    found = strips_of_tile(dout.astype(dtype), (q * factor).astype(dtype), k.astype(dtype), v.astype(dtype), CAUSAL)
    assert all(np.all(np.isfinite(x)) for x in found)
    tolerance = 200 * np.finfo(dtype).eps * max(factor, 1)  # a logit's rounding grows with it
    assert_parity(found[:2], expected[:2], tolerance)
    assert_parity(found[2:], expected[2:], tolerance, floor=factor)  # where one weight is 1, dq and dk are 0 and noise


@pytest.mark.parametrize("logits", [(0, -95), (46, -46)])
def test_the_backward_of_peaked_logits_is_exact_and_makes_no_denormal_numbers(logits):
    """Of 0 and −95: exp(−95) is denormal in float32, and a product with such numbers takes ten times as long."""
    dout, q = (np.ones((1, 1, 1, 1), dtype=np.float32) for _ in range(2))
    k, v = (np.array(x, dtype=np.float32).reshape(1, 1, 2, 1) for x in (logits, [0, 1]))
    found = strips_of_tile(dout, q, k, v, None)
    assert_parity(found, dense_tile(*(x.astype(np.float64) for x in (dout, q, k, v)), None), 1e-7, floor=1.0)
    tiny = np.finfo(np.float32).tiny
    assert all(np.all((x == 0) | (np.abs(x) >= tiny)) for x in found)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("factor", [1.0, 1e3])
def test_queries_without_keys_get_0_and_minus_infinity_and_no_gradient(xp, factor):
    dout, q, k, v = draw_inputs(xp, 1, 1, 1, 5, 5, 3)
    out, lse, dq, dk, dv = map(to_numpy, strips_of_tile(dout, q * factor, k, v, STRICT))
    assert np.array_equal(out[0, 0, 0], np.zeros(3))
    assert lse[0, 0, 0] == -np.inf
    assert np.array_equal(dq[0, 0, 0], np.zeros(3))
    assert all(np.all(np.isfinite(x)) for x in (out, dq, dk, dv))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("factor", [1.0, 1e3])
def test_what_comes_later_changes_no_bit_of_what_came_before(factor):
    dout, q, k, v = draw_inputs(np, 1, 2, 1, 9, 9, 3)
    later = np.arange(9)[:, None] >= 5
    before, _ = attention(q * factor, k, v, causal=True)
    after, _ = attention(q * factor, np.where(later, -k, k), np.where(later, 1e3, v), causal=True)
    assert np.array_equal(before[:, :, :5], after[:, :, :5])


@pytest.mark.parametrize("scale", [1.0, -1.0])
@pytest.mark.parametrize("score", [29.0, 31.0, 94.0, 3000.0])
def test_float32_scores_of_29_to_3000_give_the_mean_of_equal_keys(score, scale):
    """Above 88 exp overflows in float32, unless the largest score is taken off."""
    q = np.full((1, 1, 4, 1), np.sqrt(score), dtype=np.float32)
    k = q * np.float32(scale)
    v = np.arange(4, dtype=np.float32).reshape(1, 1, 4, 1)
    out, lse = attention(q, k, v, scale=scale)
    assert np.allclose(out, 1.5, rtol=1e-6)
    assert np.allclose(lse, score + np.log(4), rtol=1e-6)
    dq, dk, dv = attention_backward(np.ones_like(q), q, k, v, out, lse, scale=scale)
    assert np.allclose(dv, 1, rtol=1e-3 if score == 3000 else 1e-5)  # lse itself is rounded
    assert np.isfinite([dq, dk]).all()


def test_a_weight_of_exp_minus_45_still_counts_in_both_passes():
    q, k = np.full((1, 1, 1, 1), 70.0), np.asarray([70.0, 25.0]).reshape(1, 1, 2, 1) / 70
    v, dout = np.asarray([0.0, np.exp(45.0)]).reshape(1, 1, 2, 1), np.ones((1, 1, 1, 1))
    out, lse = attention(q, k, v, scale=1.0)
    assert out.item() == pytest.approx(1, rel=1e-12)
    _, _, dv = attention_backward(dout, q, k, v, out, lse, scale=1.0)
    assert dv.ravel().tolist() == pytest.approx([1, np.exp(-45.0)], rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("shape", "products"),
    [
        pytest.param((32, 8, 8, 2), 1, id="8 tokens: all"),
        pytest.param((32, 8, 64, 2), 32 // 8, id="64 tokens: 8 sequences have 512 × 512 scores"),
        pytest.param((32, 8, 8, 256), 32 // 4, id="heads of 256: 4 sequences have 256 × 256 numbers in their keys"),
        pytest.param((3, 8, 512, 2), 24, id="512 tokens: one"),
        pytest.param((3, 8, 300, 2), 3 * 4, id="300 tokens: two heads of a sequence"),
    ],
)
def test_as_many_short_sequences_are_attended_at_a_time_as_fill_a_tile(shape, products, monkeypatch):
    made, exp = [], tiled.exp_
    monkeypatch.setattr(tiled, "exp_", lambda x: made.append(1) or exp(x))
    attention(*draw(np, 3, *shape))
    assert len(made) == products


@pytest.mark.usefixtures("small_tiles")
def test_a_nan_in_key_4_reaches_no_query_of_an_earlier_tile():
    _, q, k, v = draw_inputs(np, 1, 1, 1, 8, 8, 4)
    k[0, 0, 4, :] = np.nan
    seen = np.isnan(attention(q, k, v, causal=True)[0]).any(axis=(0, 1, 3))
    assert seen.tolist() == [False] * 4 + [True] * 4


def test_float16_inputs_are_summed_in_float32():
    dout, q, k, v = (x.astype(np.float16) for x in draw_inputs(np, 1, 2, 1, 40, 40, 4))
    out, lse = attention(q, k, v, causal=True)
    gradients = attention_backward(dout, q, k, v, out, lse, causal=True)
    assert lse.dtype == np.float32
    assert [x.dtype for x in (out, *gradients)] == [np.float16] * 4
    wide_out, wide_lse = dense_attention(*(x.astype(np.float64) for x in (q, k, v)), causal=True)
    assert relative_error(out, wide_out) <= 2**-11  # half of the last place of float16
    assert relative_error(lse, wide_lse) <= 1e-6


# Merging


@settings(max_examples=40)
@given(cuts=st.lists(st.integers(1, 9), max_size=4, unique=True), diagonal=st.none() | st.integers(-3, 3))
def test_merging_tiles_matches_attention_over_all_of_them(cuts, diagonal):
    _, q, k, v = draw_inputs(np, 1, 2, 1, 6, 10, 3)
    out, lse = np.zeros(q.shape), np.full(q.shape[:-1], -np.inf)
    edges = [0, *sorted(cuts), 10]
    for first, last in pairwise(edges):
        offset = None if diagonal is None else diagonal - first
        out, lse = merge(out, lse, *attend_tile(q, k[:, :, first:last], v[:, :, first:last], diagonal=offset))
    assert_parity((out, lse), dense_attention(q, k, v, mask=mask_of(diagonal, 6, 10)))


def test_merge_with_a_side_without_keys_is_the_other_side_without_nan(xp):
    out, lse = draw(xp, 1, 1, 2, 3), draw(xp, 1, 1, 2)
    nothing, never = xp.zeros_like(out), xp.full_like(lse, -xp.inf)
    for found in (merge(out, lse, nothing, never), merge(nothing, never, out, lse)):
        assert_parity(found, (out, lse))
    assert_parity(merge(nothing, never, nothing, never), (nothing, never))


def test_merging_far_apart_tiles_does_not_overflow_and_changes_neither():
    low, high = np.array([[1.0]]), np.array([[2.0]])
    out, lse = merge(low, np.array([-1e4]), high, np.array([1e4]))
    assert (out.tolist(), low.tolist(), high.tolist()) == ([[2.0]], [[1.0]], [[2.0]])
    assert lse.tolist() == [1e4]


# Bad input


SHAPE = (1, 2, 4, 3)
BAD = {
    "q has shape (2, 4, 3): [batch, heads": {"q": (2, 4, 3)},
    "k has shape (1, 2, 0, 3): [batch, heads": {"k": (1, 2, 0, 3)},
    "k has shape (1, 2, 4, 3) and v (1, 1, 4, 3): they must be equal": {"v": (1, 1, 4, 3)},
    "k has batch 2 and head size 3, q has 1 and 3": {"k": (2, 2, 4, 3), "v": (2, 2, 4, 3)},
    "k has batch 1 and head size 5, q has 1 and 3": {"k": (1, 2, 4, 5), "v": (1, 2, 4, 5)},
    "2 query heads do not divide among 3 key/value heads": {"k": (1, 3, 4, 3), "v": (1, 3, 4, 3)},
    "q has sequence length 4 and k 5: they must be equal": {"k": (1, 2, 5, 3), "v": (1, 2, 5, 3)},
    "scale=nan: must be a finite number": {"scale": float("nan")},
    "k is float32 and q float64: q, k and v need one floating-point dtype": {"k": np.zeros(SHAPE, np.float32)},
    "q is int64 and q int64: q, k and v need one": {name: np.zeros(SHAPE, np.int64) for name in "qkv"},
}


@pytest.mark.parametrize("text", BAD)
@pytest.mark.parametrize("pair", PAIRS)
def test_bad_input_is_refused_by_name(pair, text):
    forward, backward = PAIRS[pair]
    given = {"q": SHAPE, "k": SHAPE, "v": SHAPE} | BAD[text]
    given = {name: np.zeros(x) if isinstance(x, tuple) else x for name, x in given.items()}
    outputs = {"dout": np.zeros(SHAPE), "out": np.zeros(SHAPE), "lse": np.zeros(SHAPE[:-1])}
    for call in (lambda: forward(**given, causal=True), lambda: backward(**given, **outputs, causal=True)):
        with pytest.raises(ValueError, match=re.escape(text)):
            call()


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(("name", "x"), [("q", None), ("k", 1.0), ("v", [[[[1.0]]]])])
def test_what_is_no_array_is_refused_by_name(pair, name, x):
    given = {name: np.zeros(SHAPE) for name in "qkv"} | {name: x}
    with pytest.raises(TypeError, match=rf"{name} is a {type(x).__name__}: an array \[batch"):
        PAIRS[pair][0](**given)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(("name", "wrong"), [("dout", np.zeros((1, 2, 3, 3))), ("out", None), ("lse", None)])
def test_backward_refuses_another_shape_or_dtype_than_the_forward_returned(pair, name, wrong):
    given = {x: np.zeros(SHAPE) for x in ("dout", "q", "k", "v", "out")} | {"lse": np.zeros(SHAPE[:-1])}
    given[name] = given[name].astype(np.float32) if wrong is None else wrong
    said = f"{name} has shape {given[name].shape} and is {given[name].dtype}: with this q it must have (1, 2, 4"
    with pytest.raises(ValueError, match=re.escape(said)):
        PAIRS[pair][1](**given)
