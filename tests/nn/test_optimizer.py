"""AdamW against its paper's algorithm, and shard against whole."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from parlab.arrays import asarray, to_numpy
from parlab.nn.optimizer import PIECE, AdamW, clip_factor, clip_gradients, gradient_norm, warmup_cosine


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def algorithm_2(w, gradients, lr, betas, eps, decay):
    """Loshchilov and Hutter's algorithm 2, number by number; their decay is not scaled by lr, PyTorch's is."""
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        m_hat, v_hat = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
        w = w - lr * (m_hat / (math.sqrt(v_hat) + eps) + decay * w)
    return w


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-15), ("float32", 1e-6)])
def test_adamw_is_algorithm_2_of_its_paper(xp, dtype, tolerance):
    hyper = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.3}
    start, gradients = draw(0, 5), [draw(i, 5) for i in range(1, 8)]

    def by_name(x):
        return {"a": asarray(x[:3].copy(), xp, getattr(xp, dtype)), "b": asarray(x[3:].copy(), xp, getattr(xp, dtype))}

    weights, optimizer = by_name(start), AdamW(**hyper)
    for gradient in gradients:
        optimizer.step(weights, by_name(gradient))
    expected = [algorithm_2(start[i], [g[i] for g in gradients], 0.01, (0.8, 0.95), 1e-6, 0.3) for i in range(5)]
    assert np.max(np.abs(np.concatenate([to_numpy(w) for w in weights.values()]) - expected)) < tolerance


def test_what_adamw_is_not_told_is_what_pytorch_documents():
    assert AdamW() == AdamW(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("cuts", [(0, 100_003), (0, 1, 7, 70_000, 100_003), (0, 33_334, 66_668, 100_003)])
def test_shards_get_bitwise_what_the_whole_gets(cuts, dtype):
    """ZeRO's ground: 100 003 numbers, an odd count larger than a piece, cut anywhere."""
    assert cuts[-1] > PIECE
    whole = {"w": draw(0, cuts[-1]).astype(dtype)}
    shards = [{"w": whole["w"][a:b].copy()} for a, b in itertools.pairwise(cuts)]
    optimizers = [AdamW(lr=0.1) for _ in shards]
    optimizer = AdamW(lr=0.1)
    for step in range(3):
        gradient = draw(1 + step, cuts[-1]).astype(dtype)
        optimizer.step(whole, {"w": gradient})
        for one, shard, a, b in zip(optimizers, shards, cuts, cuts[1:], strict=False):
            one.step(shard, {"w": gradient[a:b]})
    assert (np.concatenate([shard["w"] for shard in shards]) == whole["w"]).all()
    assert whole["w"].dtype == dtype


def test_weights_change_in_place_and_gradients_do_not():
    weight, gradient = draw(0, 3, 4), draw(1, 3, 4)
    before, seen = weight.copy(), gradient.copy()
    AdamW(lr=0.1).step({"w": weight}, {"w": gradient})
    assert (weight != before).all()
    assert (gradient == seen).all()


def test_clipping_gives_norm_1_and_leaves_small_gradients_alone():
    gradients = {"a": draw(0, 40), "b": draw(1, 3, 4)}
    norm = math.sqrt(sum(float(np.sum(g**2)) for g in gradients.values()))
    assert gradient_norm(gradients) == pytest.approx(norm, rel=1e-15)
    clipped, before = clip_gradients(gradients, 1.0)
    assert before == pytest.approx(norm, rel=1e-15)
    assert gradient_norm(clipped) == pytest.approx(1.0, rel=1e-14)
    untouched, _ = clip_gradients(gradients, 1000.0)
    assert all(untouched[name] is gradients[name] for name in gradients)
    assert clip_gradients({"a": np.zeros(3)}, 1.0)[0]["a"].tolist() == [0.0, 0.0, 0.0]


def test_a_clip_factor_is_at_most_1_and_1_without_gradients():
    assert [clip_factor(norm, 2.0) for norm in (0.0, 1.0, 2.0, 8.0)] == [1.0, 1.0, 1.0, 0.25]


def test_zeros_are_allowed_and_change_nothing():
    weight = np.array([1.0, 2.0])
    AdamW(lr=0.0, betas=(0.0, 0.0), eps=0.0, weight_decay=0.0).step({"w": weight}, {"w": np.array([3.0, -4.0])})
    assert weight.tolist() == [1.0, 2.0]
    assert warmup_cosine(0, peak=2.0, warmup_steps=0, total_steps=1) == 2.0


def test_norm_of_float16_gradients_does_not_overflow():
    assert gradient_norm({"g": np.full(4, 300.0, dtype=np.float16)}) == 600.0


def test_warmup_reaches_the_peak_after_10_steps_and_the_cosine_its_floor_after_100():
    def rate(step):
        return warmup_cosine(step, peak=2.0, warmup_steps=10, total_steps=100, floor=0.2)

    assert [rate(0), rate(4), rate(9), rate(10)] == pytest.approx([0.2, 1.0, 2.0, 2.0])
    assert rate(55) == pytest.approx(1.1)  # half way: the mean of peak and floor
    assert rate(100) == rate(1000) == pytest.approx(0.2)
    assert all(rate(step) >= rate(step + 1) for step in range(10, 120))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: AdamW(weight_decay=-0.1), "weight_decay=-0.1"),
        (lambda: AdamW(betas=(0.9, 1.0)), r"betas=1.0: must be a number, at least 0 and less than 1"),
        (lambda: AdamW(betas=(0.9,)), r"betas=\(0.9,\): two numbers"),
        (lambda: AdamW().step({"a": np.ones(2)}, {}), "different names: a on one side only"),
        (lambda: AdamW().step({"a": np.ones(2)}, {"a": np.ones(3)}), r"a: the weight has shape \(2,\), its gradient"),
        (lambda: AdamW().update(*(np.ones(2),) * 4, step=0), "step=0: must be a whole number, at least 1"),
        (lambda: clip_factor(1.0, 0.0), "max_norm=0.0: must be a number greater than 0"),
        (lambda: warmup_cosine(0, peak=1.0, warmup_steps=5, total_steps=5), "warmup_steps=5"),
        *[
            (
                lambda bad=bad: warmup_cosine(**{"step": 0, "peak": 1.0, "warmup_steps": 0, "total_steps": 5, **bad}),
                text,
            )
            for bad, text in (
                ({"step": -1}, "step=-1: must be a whole number, at least 0"),
                ({"peak": -1.0}, "peak=-1.0: must be a number, at least 0"),
                ({"warmup_steps": -1}, "warmup_steps=-1: must be a whole number, at least 0"),
                ({"total_steps": 0}, "total_steps=0: must be a whole number, at least 1"),
                ({"floor": -1.0}, "floor=-1.0: must be a number, at least 0"),
            )
        ],
    ],
)
def test_bad_input_is_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()
