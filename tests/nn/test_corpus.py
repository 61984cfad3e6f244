"""The source against its own counts, and its floors against Shannon's formulas."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from parlab.arrays import to_numpy
from parlab.nn.corpus import MarkovSource
from tests.libraries import LIBRARIES


def test_two_state_source_has_the_entropy_rate_of_the_textbook():
    """P(b|a) = p, P(a|b) = q: π = (q, p) / (p + q), H = π_a h(p) + π_b h(q)."""
    source = MarkovSource("ab", order=1, concentration=1.0, seed=3)
    p, q = source.transitions[0, 1], source.transitions[1, 0]

    def h(x):
        return -x * math.log(x) - (1 - x) * math.log(1 - x)

    assert source.stationary == pytest.approx([q / (p + q), p / (p + q)], rel=1e-12)
    assert source.entropy_rate == pytest.approx((q * h(p) + p * h(q)) / (p + q), rel=1e-12)
    assert source.floor(0) == pytest.approx(h(p / (p + q)), rel=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_floors_equal_the_entropies_summed_over_every_context(order):
    source = MarkovSource("abc", order=order, concentration=0.5, seed=order)
    contexts = list(itertools.product(range(3), repeat=order))
    joint = {
        (*context, c): source.stationary[i] * source.transitions[i, c]
        for i, context in enumerate(contexts)
        for c in range(3)
    }
    for seen in range(order + 2):
        kept = {}
        for text, p in joint.items():
            key = text[max(order - seen, 0) :]
            kept[key] = kept.get(key, 0.0) + p
        before = {}
        for text, p in kept.items():
            before[text[:-1]] = before.get(text[:-1], 0.0) + p
        expected = -sum(p * math.log(p / before[text[:-1]]) for text, p in kept.items())
        assert source.floor(seen) == pytest.approx(expected, rel=1e-10)
    assert source.entropy_rate == source.floor(order)


def test_400_000_characters_have_the_sources_frequencies():
    source = MarkovSource("abcd", order=2, concentration=0.5, seed=1)
    tokens, targets = source.batch(0, batch_size=2000, length=200)
    contexts = tokens[:, :-1] * 4 + tokens[:, 1:]
    counts = np.zeros((16, 4))
    np.add.at(counts, (contexts, targets[:, 1:]), 1)
    total = counts.sum(axis=1, keepdims=True)
    spread = np.sqrt(source.transitions * (1 - source.transitions) / np.maximum(total, 1))
    assert (np.abs(counts / np.maximum(total, 1) - source.transitions) <= 5 * spread + 1e-9)[total[:, 0] > 0].all()
    assert counts.sum(axis=1) / counts.sum() == pytest.approx(source.stationary, abs=0.01)
    first = np.bincount(tokens[:, 0], minlength=4) / 2000  # the first one has the stationary shares too
    assert first == pytest.approx(source.stationary.reshape(4, 4).sum(axis=1), abs=0.05)


def test_a_batch_follows_from_seed_and_step_alone():
    source = MarkovSource()
    tokens, targets = source.batch(3, batch_size=4, length=9, seed=5)
    for xp in LIBRARIES:
        again, _ = MarkovSource().batch(3, batch_size=4, length=9, seed=5, xp=xp)
        assert (to_numpy(again) == tokens).all()
    assert (tokens[:, 1:] == targets[:, :-1]).all()
    others = [source.batch(4, batch_size=4, length=9, seed=5)[0], source.batch(3, batch_size=4, length=9, seed=6)[0]]
    assert not any((tokens == other).all() for other in others)
    assert tokens.min() >= 0
    assert tokens.max() < source.vocab_size


@pytest.mark.parametrize("length", [1, 2, 3])
def test_windows_shorter_than_the_order_are_drawn_too(length):
    tokens, targets = MarkovSource("ab", order=3).batch(0, batch_size=1, length=length)
    assert tokens.shape == targets.shape == (1, length)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: MarkovSource("aa"), "alphabet='aa': two or more characters are needed, each of them once"),
        (lambda: MarkovSource("a"), "alphabet='a': two or more characters are needed"),
        (lambda: MarkovSource(["a", "b"]), r"alphabet=\['a', 'b'\]: two or more characters are needed"),
        (lambda: MarkovSource(order=0), "order=0: must be a whole number, at least 1"),
        (lambda: MarkovSource(concentration=0.0), "concentration=0.0: must be a number greater than 0"),
        (lambda: MarkovSource().floor(-1), "context=-1: must be a whole number, at least 0"),
        (lambda: MarkovSource(seed=-1), "seed=-1: must be a whole number, at least 0"),
        (lambda: MarkovSource(order=4), r"order=4: 9 characters make 9\^4 contexts, and at most 4096 are possible"),
        (lambda: MarkovSource().batch(-1, batch_size=1, length=2), "step=-1: must be a whole number, at least 0"),
        (lambda: MarkovSource().batch(0, batch_size=1, length=2, xp="numpy"), "xp='numpy': an array library such as"),
        (lambda: MarkovSource().batch(0, batch_size=0, length=4), "batch_size=0: must be a whole number, at least 1"),
        (lambda: MarkovSource().batch(0, batch_size=1, length=0), "length=0: must be a whole number, at least 1"),
        (
            lambda: MarkovSource().batch(0, batch_size=1, length=2, seed=-1),
            "seed=-1: must be a whole number, at least 0",
        ),
    ],
)
def test_bad_input_is_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()
