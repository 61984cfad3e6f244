"""Cuts where attention crosses least: optimal by the objective of the docstring."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from parlab.arrays import asarray
from parlab.sequence import split_by_attention, split_equal, weight_cut
from tests.libraries import EACH_LIBRARY
from tests.sequence.splitting.maps import blocks, random_maps
from tests.sequence.splitting.tilings import flaws


def stops_of(chunks):
    return [chunk.stop for chunk in chunks]


def objective(weights, stops, n):
    """Written from the docstring, pair by pair."""
    S = weights.shape[-1]
    total = 0.0
    for start, stop in pairwise([0, *stops]):
        own = (np.arange(S) >= start) & (np.arange(S) < stop)
        crossing = weights[:, own][:, :, ~own].sum() + weights[:, ~own][:, :, own].sum()
        total += crossing / 2 * max(1, S // n / (stop - start)) ** 1.5
        total += 1e-6 * weights.sum() * ((stop - start) / S) ** 2
    return total


def held(stops, overlap):
    return [stop - max(0, start - overlap) for start, stop in pairwise([0, *stops])]


def brute_force(weights, n, limit, overlap):
    S = weights.shape[-1]
    ways = ([*cuts, S] for cuts in combinations(range(1, S), n - 1))
    return min((objective(weights, way, n), way) for way in ways if max(held(way, overlap)) <= limit)


def test_200_random_maps_are_tiled_within_the_limit_and_cut_as_brute_force_would():
    draw = np.random.default_rng(3)
    for _ in range(200):
        S, H, causal = int(draw.integers(1, 10)), int(draw.integers(1, 4)), bool(draw.integers(2))
        weights = random_maps(draw, H, S, causal)
        ranks, limit = int(draw.integers(1, 6)), int(draw.integers(1, 10))
        overlap = int(draw.integers(limit))
        chunks = split_by_attention(weights, ranks, limit, overlap)
        n = max(min(ranks, S), len(split_equal(S, limit, overlap)))
        assert len(chunks) == n
        assert flaws(chunks, S, ranks, limit, overlap) == []
        best, way = brute_force(weights, n, limit, overlap)
        assert objective(weights, stops_of(chunks), n) == pytest.approx(best, rel=1e-12), way


def test_planted_blocks_are_cut_exactly_between_them_whatever_their_lengths():
    draw = np.random.default_rng(5)
    for case in range(200):
        lengths = draw.integers(2, 40, size=draw.integers(2, 7))  # a block of 1 token is no block but an island
        weights = blocks(lengths, causal=case % 2 == 0)
        assert stops_of(split_by_attention(weights, len(lengths))) == np.cumsum(lengths).tolist()


def test_where_nothing_crosses_the_even_cut_wins():
    assert stops_of(split_by_attention(np.eye(8)[None], 4)) == [2, 4, 6, 8]


@pytest.mark.parametrize("xp", EACH_LIBRARY[1:])
def test_other_libraries_cut_where_numpy_cuts(xp):
    weights = random_maps(np.random.default_rng(7), 2, 20, True)
    for dtype in ("float32", "float64"):
        other = asarray(weights, xp, getattr(xp, dtype))
        assert split_by_attention(other, 4, 9, 2) == split_by_attention(weights.astype(dtype), 4, 9, 2)


def test_the_weight_cut_is_the_sum_over_pairs_in_the_mean_over_heads_whatever_the_overlap():
    draw = np.random.default_rng(8)
    for _ in range(50):
        S, H = int(draw.integers(2, 12)), int(draw.integers(1, 4))
        weights = random_maps(draw, H, S, bool(draw.integers(2)))
        chunks = split_equal(S, limit=3, overlap=int(draw.integers(2)))
        number = np.searchsorted(stops_of(chunks), np.arange(S), side="right")
        apart = number[:, None] != number
        assert weight_cut(weights, chunks) == pytest.approx(weights[:, apart].sum() / H, abs=1e-12)
