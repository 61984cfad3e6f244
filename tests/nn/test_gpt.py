"""The GPT block: gradients, PyTorch's numbers, and the bytes that it keeps."""

from __future__ import annotations

import importlib.util

import array_api_strict
import numpy as np
import pytest

from parlab.arrays import asarray, to_numpy
from parlab.nn.activation import softmax
from parlab.nn.counting import itemize
from parlab.nn.formulas import gpt_kept_bytes
from parlab.nn.gpt import Dropout, gpt_block, gpt_weight_shapes
from tests.libraries import EACH_LIBRARY
from tests.nn.finite_differences import assert_gradient, draw, weighted


def make_weights(xp, hidden_size, dtype="float64"):
    shapes = gpt_weight_shapes("h", hidden_size)
    drawn = {name: np.random.default_rng([1, i]).normal(size=shape) for i, (name, shape) in enumerate(shapes.items())}
    return {name: asarray(0.3 * x, xp, getattr(xp, dtype)) for name, x in drawn.items()}


@pytest.mark.parametrize("rate", [0.0, 0.25])
@pytest.mark.parametrize("xp", EACH_LIBRARY)
def test_every_gradient_of_the_block_matches_finite_differences(xp, rate):
    x, dy, weights = draw(xp, 2, 3, 4), draw(xp, 2, 3, 4, seed=1), make_weights(xp, 4)

    def loss(x, weights):
        block = gpt_block(weights, "h", 2, dropout_rate=rate, seed=5)  # the seed's first masks each time
        return weighted(block.forward(x)[0], dy)

    block = gpt_block(weights, "h", 2, dropout_rate=rate, seed=5)
    dx, gradients = block.backward(dy, block.forward(x)[1])
    assert gradients.keys() == weights.keys() == set(block.weight_names)
    assert_gradient(dx, lambda x: loss(x, weights), x, 1e-7)
    for name, weight in weights.items():
        assert_gradient(gradients[name], lambda moved, name=name: loss(x, weights | {name: moved}), weight, 1e-7)


def test_parts_later_are_bitwise_the_joint_backward():
    x, dy, weights = draw(np, 2, 3, 4), draw(np, 2, 3, 4, seed=1), make_weights(np, 4)
    block = gpt_block(weights, "h", 2, dropout_rate=0.25)
    _, cache = block.forward(x)
    dx, gradients = block.backward(dy, cache)
    later_dx, pending = block.backward_input(dy, cache)
    later = block.backward_weight(pending)
    assert (later_dx == dx).all()
    assert all((later[name] == gradients[name]).all() for name in gradients)


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="not installed: torch (pip install -e '.[peers]')"
)
def test_the_block_equals_pytorchs_pre_norm_encoder_layer():
    import torch

    def turned(x):
        return x.T if x.ndim == 2 else x

    weights, x = make_weights(np, 8), draw(np, 2, 5, 8)
    layer = torch.nn.TransformerEncoderLayer(
        8, nhead=2, dim_feedforward=32, dropout=0.0, batch_first=True, norm_first=True, dtype=torch.float64,
        activation=torch.nn.GELU(approximate="tanh"),
    )  # fmt: skip
    ours = {name: torch.tensor(w) for name, w in weights.items()}
    names = {"norm1": "attention_norm", "norm2": "mlp_norm", "self_attn.out_proj": "attention.o_proj"}
    names |= {"linear1": "mlp.up_proj", "linear2": "mlp.down_proj"}
    state = {}
    for kind in ("weight", "bias"):
        for theirs, name in names.items():
            state[f"{theirs}.{kind}"] = turned(ours[f"h.{name}.{kind}"])
        joined = torch.cat([ours[f"h.attention.{name}_proj.{kind}"] for name in "qkv"], dim=-1)
        state[f"self_attn.in_proj_{kind}"] = turned(joined)
    layer.load_state_dict(state)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    expected = layer(torch.tensor(x), src_mask=mask, is_causal=True).detach().numpy()
    found, _ = gpt_block(weights, "h", 4).forward(x)
    assert np.max(np.abs(found - expected)) <= 1e-14 * np.max(np.abs(expected)) * 10


@pytest.mark.parametrize("xp", EACH_LIBRARY)
def test_softmax_of_huge_scores_is_finite(xp):
    assert to_numpy(softmax(xp.asarray([1e4, 1e4, -xp.inf]))).tolist() == [0.5, 0.5, 0.0]


STATISTICS = ("attention_norm.mean", "attention_norm.inverse", "mlp_norm.mean", "mlp_norm.inverse")


@pytest.mark.parametrize(("s", "b", "h", "a"), [(8, 2, 16, 4), (5, 1, 8, 2), (16, 3, 4, 1)])
@pytest.mark.parametrize("dropout", [True, False])
def test_kept_bytes_in_16_bit_are_34sbh_5as2b_with_dropout_and_32sbh_2as2b_without(s, b, h, a, dropout):
    block = gpt_block(make_weights(np, h, "float16"), "h", h // a, dropout_rate=0.1 if dropout else 0.0)
    y, cache = block.forward(draw(np, b, s, h).astype(np.float16))
    assert y.dtype == np.float16
    items = itemize(cache)
    assert [items.pop(name) for name in STATISTICS] == [4 * s * b] * 4  # float32
    assert sum(items.values()) == (
        34 * s * b * h + 5 * a * s * s * b if dropout else 32 * s * b * h + 2 * a * s * s * b
    )
    expected = gpt_kept_bytes(s, b, h, a, dropout=dropout)
    assert sorted(items.values()) == sorted(expected.values())


def test_backward_in_16_bit_stays_16_bit_and_finite():
    block = gpt_block(make_weights(np, 16, "float16"), "h", 4, dropout_rate=0.1)
    y, cache = block.forward(draw(np, 2, 8, 16).astype(np.float16))
    dx, gradients = block.backward(np.ones_like(y), cache)
    assert all(x.dtype == np.float16 and np.isfinite(x).all() for x in (dx, *gradients.values()))


def test_dropout_keeps_3_of_4_and_the_mean_and_repeats_by_seed():
    x = np.ones((100, 1000))
    y, keep = Dropout(0.25, seed=1).forward(x)
    assert keep.dtype == np.bool_
    assert keep.mean() == pytest.approx(0.75, abs=0.01)
    assert set(np.unique(y)) == {0.0, 1 / 0.75}
    again, _ = Dropout(0.25, seed=1).forward(asarray(x, array_api_strict))
    assert (to_numpy(again) == y).all()
    assert (Dropout(0.25).forward(x)[1] == Dropout(0.25, seed=0).forward(x)[1]).all()
    dropout = Dropout(0.25, seed=1)
    assert (dropout.forward(x)[1] != dropout.forward(x)[1]).any()  # the next mask is another one


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_rate_out_of_range_is_refused(rate):
    with pytest.raises(ValueError, match="at least 0 and less than 1"):
        Dropout(rate)


def test_the_9_dropouts_of_3_blocks_with_neighbouring_seeds_draw_9_masks():
    weights = make_weights(np, 8, "float64")
    blocks = [gpt_block(weights, "h", 2, dropout_rate=0.5, seed=seed) for seed in range(3)]
    inside = [block.attention.stages[0].dropout for block in blocks]  # of the softmax
    after = [part.stages[1] for block in blocks for part in (block.attention, block.mlp)]
    assert len({dropout.mask((64,)).tobytes() for dropout in (*inside, *after)}) == 9
