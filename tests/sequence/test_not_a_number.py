"""Keys and values that are NaN or infinite: each query that sees one shows it, and no rank makes a finite wrong number.

The truth is made by brute force: dense attention, row by row, with only the keys that the row sees. Where tiles are one
query times one key, exactly these rows are NaN. With larger tiles others of the same tile may be NaN too, but what is
finite is right.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.nn import tiles
from parlab.nn.attention import attention
from parlab.nn.dense_attention import dense_attention
from parlab.sequence import unshard
from tests.sequence.methods import METHODS, dealt, pair, run_method, visible, whole
from tests.sequence.rings import draw_inputs
from tests.sequence.test_methods import cases

OUT, LSE, DQ, DK, DV = range(5)
BAD_NUMBERS = [np.nan, np.inf, -np.inf]


def mask_of(S, how):
    return visible(S, how.get("causal", False), how.get("documents"), how.get("window"))


def across_ranks(method, size, inputs, how):
    """out, lse, dq, dk, dv of the whole sequence."""
    with np.errstate(invalid="ignore", over="ignore"):
        done = run_method(pair(method), size, inputs, **how)
    return [unshard(list(x), axis=2, **dealt(how)) for x in zip(*done.results, strict=True)]


def row_by_row(q, k, v, mask):
    """out and lse, each row from the keys that it sees and no other."""
    S = q.shape[2]
    out, lse = np.zeros(q.shape), np.full(q.shape[:-1], -np.inf)
    with np.errstate(invalid="ignore", over="ignore"):
        for row in range(S):
            seen = np.flatnonzero(mask[row])
            if len(seen):
                one = dense_attention(q[:, :, row : row + 1], k[:, :, seen], v[:, :, seen])
                out[:, :, row], lse[:, :, row] = one[0][:, :, 0], one[1][:, :, 0]
    return out, lse


def rows_not_finite(x):
    """`[B, H, S, D]` or `[B, H, S]` -> `[S]`."""
    return ~np.isfinite(x).all(axis=tuple(axis for axis in range(x.ndim) if axis != 2))


def spoiled(S, H, G, token, place, bad, seed=0):
    """Random inputs with `bad` in one number of every K/V head of the key or the value of `token`."""
    inputs = draw_inputs(1, H, G, S, 2, seed)
    inputs[2 if place == "k" else 3][:, :, token, 0] = bad
    return inputs


@st.composite
def spoiled_cases(draw, method):
    size, (_, H, G, S, _), how = draw(cases(method))
    del how["scale"]  # the references here have the usual one
    token, place = draw(st.integers(0, S - 1)), draw(st.sampled_from("kv"))
    return size, S, how, spoiled(S, H, G, token, place, draw(st.sampled_from(BAD_NUMBERS))), token, place


def clean(inputs):
    return [np.where(np.isfinite(x), x, 0.0) for x in inputs]


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=10)
@given(data=st.data())
def test_what_is_finite_is_right_and_a_query_that_sees_nan_is_nan(method, data):
    size, S, how, inputs, token, place = data.draw(spoiled_cases(method))
    mask, found = mask_of(S, how), across_ranks(method, size, inputs, how)
    rows = mask[:, token]  # of the queries that see it
    if np.isnan(inputs["_qkv".index(place)]).any():
        assert rows_not_finite(found[OUT])[rows].all()
        assert rows_not_finite(found[DQ])[rows].all()
        assert rows_not_finite(found[LSE])[rows].all() or place == "v"
    for x, expected in zip(found[:2], row_by_row(*inputs[1:], mask), strict=True):
        assert not np.any(np.isfinite(x) & ~np.isfinite(expected) & (expected != -np.inf))
        finite = np.isfinite(x)
        assert np.allclose(x[finite], expected[finite], rtol=1e-10, atol=1e-10)
    reference = whole(clean(inputs), mask)
    keys = mask[rows].any(axis=0)  # what these queries see: their gradients are spoiled through them
    for number, touched in ((DQ, rows), (DK, keys), (DV, keys)):
        x, expected = found[number][:, :, ~touched], reference[number][:, :, ~touched]
        finite = np.isfinite(x)
        assert np.allclose(x[finite], expected[finite], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=10)
@given(data=st.data())
def test_with_tiles_of_one_pair_nan_reaches_the_rows_that_see_it_and_no_other(method, data):
    size, S, how, inputs, token, place = data.draw(spoiled_cases(method))
    inputs = [np.where(np.isfinite(x), x, np.nan) for x in inputs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "SIDE", 1)
        patch.setattr(tiles, "TRIANGLE", 1)
        found = across_ranks(method, size, inputs, how)
    mask = mask_of(S, how)
    rows = mask[:, token]
    expected = [rows, rows if place == "k" else np.zeros(S, dtype=bool), rows]
    assert [rows_not_finite(x).tolist() for x in found[:3]] == [x.tolist() for x in expected]
    if place == "k":  # then all weights of these rows are NaN, and so are the gradients of what they see
        keys = mask[rows].any(axis=0).tolist()
        assert [rows_not_finite(x).tolist() for x in found[3:]] == [keys, keys]
        assert rows_not_finite(whole(inputs, mask)[LSE]).tolist() == rows.tolist()


@pytest.mark.parametrize("sign", [1, -1])
def test_p3_window_2_a_key_of_minus_infinity_leaves_no_finite_wrong_row(sign):
    dout, q, k, v = spoiled(6, 1, 1, 3, "k", -np.inf)
    q[..., 0] = sign * np.abs(q[..., 0])  # the score is −inf or inf
    found, expected = (
        across_ranks("window", 3, [dout, q, k, v], {"window": 2}),
        row_by_row(q, k, v, mask_of(6, {"window": 2})),
    )
    for x, right in zip(found[:2], expected, strict=True):
        finite = np.isfinite(x)
        assert np.allclose(x[finite], right[finite], rtol=1e-12)
        assert finite[:, :, [0, 1, 5]].all()  # the rows of ranks that never meet the key


def test_a_row_that_sees_scores_of_minus_infinity_alone_gets_0_and_minus_infinity():
    x = np.ones((1, 1, 2, 1))
    with np.errstate(invalid="ignore"):
        out, lse = attention(x, -np.inf * x, x)
    assert out.ravel().tolist() == [0, 0]
    assert lse.ravel().tolist() == [-np.inf, -np.inf]
