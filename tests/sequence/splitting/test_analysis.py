"""What a map says, against sums written out pair by pair, and on heads that were planted."""

from __future__ import annotations

import numpy as np
import pytest

from parlab.arrays import asarray, to_numpy
from parlab.sequence import analyse_attention
from tests.libraries import EACH_LIBRARY
from tests.sequence.splitting.maps import blocks, random_maps, softmaxed

S = 96
DISTANCE = np.arange(S)[:, None] - np.arange(S)[None, :]
LENGTHS = [5, 9, 7, 12, 4, 10, 8, 11, 6, 9, 8, 7]  # of sentences
ENDS = np.cumsum(LENGTHS).tolist()

HEADS = {
    "local": softmaxed(DISTANCE < 4),
    "global": softmaxed(np.ones((S, S))),
    "global, at the first token": softmaxed(np.arange(S)[None, :] == np.zeros((S, 1))),
    "local, nearly between": softmaxed(np.exp(-np.abs(DISTANCE) / 9)),  # 0.30 of the span of uniform attention
    "between, nearly local": softmaxed(np.exp(-np.abs(DISTANCE) / 11)),  # 0.36
    "between, nearly global": softmaxed(np.exp(-np.abs(DISTANCE) / 28)),  # 0.65
    "global, nearly between": softmaxed(np.exp(-np.abs(DISTANCE) / 34)),  # 0.70
    "syntactic": blocks(LENGTHS)[0],
    "syntactic, by half": 0.5 * blocks(LENGTHS)[0] + 0.5 * softmaxed(np.ones((S, S))),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_planted_head_comes_out_as_such(name):
    head = analyse_attention(HEADS[name][None], ENDS).heads[0]
    assert head.kind == name.partition(",")[0]


def test_a_head_that_never_leaves_its_sentence_has_a_syntactic_share_of_1_and_one_of_distance_0():
    syntactic, near = analyse_attention(np.stack([HEADS["syntactic"], HEADS["local"]]), ENDS).heads
    assert syntactic.syntactic == pytest.approx(1, abs=1e-12)
    assert abs(near.syntactic) < 0.1


def test_without_sentences_heads_are_named_by_distance_alone():
    found = analyse_attention(np.stack(list(HEADS.values())))
    assert {head.kind for head in found.heads} <= {"local", "global", "between"}
    assert {head.syntactic for head in found.heads} == {None}


@pytest.mark.parametrize("causal", [True, False])
def test_span_strength_crossing_importance_and_shares_are_the_sums_of_their_definitions(causal):
    weights = random_maps(np.random.default_rng(9), 3, 13, causal)
    found = analyse_attention(weights, [4, 9])
    pairs = [(i, j) for i in range(13) for j in range(13)]
    assert np.allclose(
        found.importance, [sum(weights[h, i, j] for h in range(3) for i in range(13)) / 3 for j in range(13)]
    )
    assert np.allclose(found.crossing, np.mean([head.crossing for head in found.heads], axis=0), rtol=1e-12)
    inside = [(i, j) for i, j in pairs if (i >= 4) + (i >= 9) == (j >= 4) + (j >= 9)]  # of one sentence
    for head, w in zip(found.heads, weights, strict=True):
        assert head.span == pytest.approx(sum(w[i, j] * abs(i - j) for i, j in pairs) / 13)
        assert head.strength == pytest.approx(sum(max(row) for row in w) / 13)
        for b in range(14):
            assert float(head.crossing[b]) == pytest.approx(
                sum(w[i, j] for i, j in pairs if (i < b) != (j < b)), abs=1e-12
            )
        share = sum(w[i, j] for i, j in inside) / 13
        by_offset = {d: np.mean([w[i, j] for i, j in pairs if i - j == d]) for d in range(-12, 13)}
        expected = sum(by_offset[i - j] for i, j in inside) / 13
        assert head.syntactic == pytest.approx((share - expected) / (1 - expected))


def test_after_the_call_a_heads_crossing_keeps_its_own_s_plus_1_numbers_alive_and_not_those_of_all_chunks():
    crossing = analyse_attention(blocks([3, 5, 4])).heads[0].crossing
    assert crossing.base is None or crossing.base.nbytes == crossing.nbytes


def test_a_map_of_one_token_and_one_of_zeros_have_finite_numbers():
    for weights in (np.ones((1, 1, 1)), np.zeros((1, 4, 4))):
        head = analyse_attention(weights, [1]).heads[0]
        assert (head.span, head.syntactic) == (0.0, 0.0)


@pytest.mark.parametrize("xp", EACH_LIBRARY[1:])
def test_other_libraries_give_what_numpy_gives(xp):
    weights = np.stack(list(HEADS.values()))
    found, other = (analyse_attention(asarray(weights, library), ENDS) for library in (np, xp))
    assert np.allclose(to_numpy(other.crossing), found.crossing, rtol=1e-12)
    assert np.allclose(to_numpy(other.importance), found.importance, rtol=1e-12)
    for a, b in zip(found.heads, other.heads, strict=True):
        assert (a.kind, a.span) == (b.kind, pytest.approx(b.span, rel=1e-12))
