"""Equal work: contiguous chunks, head and tail, document by document, longest first."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import numpy as np
import pytest

from parlab.arrays import asarray
from parlab.sequence import (
    Chunk,
    causal_work,
    head_tail,
    imbalance,
    loads_of,
    longest_first,
    packed_work,
    per_document,
    positions,
    split_by_work,
    split_equal,
)
from parlab.sequence.splitting.chunks import even_stops
from tests.libraries import LIBRARIES
from tests.sequence.splitting.tilings import flaws

PACKED = [0, 700, 1500, 1620, 2900, 2901, 3800, 4096]  # of 1 to 1280 tokens


def largest(sizes, stops):
    return max(sum(sizes[start:stop]) for start, stop in pairwise([0, *stops]))


def test_causal_work_of_4_is_1_2_3_4_and_of_documents_starts_anew():
    assert causal_work(4) == [1, 2, 3, 4]
    assert packed_work([0, 3, 4, 6]) == [1, 2, 3, 1, 1, 2]
    assert sum(packed_work(PACKED)) == sum(n * (n + 1) // 2 for n in np.diff(PACKED).tolist())


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize("work", [causal_work(4096), packed_work(PACKED)], ids=["causal", "packed"])
def test_the_work_splits_slowest_rank_is_within_5_percent_of_the_mean(work, ranks):
    assert imbalance(split_by_work(work, ranks), work, ranks) <= 1.05
    assert imbalance(split_equal(4096, 4096 // ranks, ranks=ranks), causal_work(4096), ranks) > 1.4


def test_400_random_works_are_split_as_brute_force_would():
    draw = random.Random(10)
    for _ in range(400):
        S = draw.randint(1, 9)
        n = draw.randint(1, S)
        sizes = [draw.choice([0, 1, 2, 5, 9, draw.random()]) for _ in range(S)]
        best = min(largest(sizes, [*cuts, S]) for cuts in combinations(range(1, S), n - 1))
        assert largest(sizes, even_stops(sizes, n)) == pytest.approx(best, rel=1e-11)


def test_1000_random_work_splits_tile_the_sequence():
    draw = random.Random(11)
    for _ in range(1000):
        S, ranks = draw.randint(1, 200), draw.randint(1, 9)
        work = [draw.choice([0, draw.random(), draw.randint(0, 50)]) for _ in range(S)]
        chunks = split_by_work(work, ranks)
        assert flaws(chunks, S, ranks) == []
        assert [chunk.rank for chunk in chunks] == list(range(min(S, ranks)))


def test_1000_random_packings_are_dealt_without_a_gap_by_all_balancers():
    draw = random.Random(12)
    for _ in range(1000):
        lengths = [draw.randint(1, 60) for _ in range(draw.randint(1, 12))]
        documents, ranks = [0, *np.cumsum(lengths).tolist()], draw.randint(1, 8)
        for balance in (per_document, longest_first):
            assert flaws(balance(documents, ranks), documents[-1], ranks) == []
        assert flaws(head_tail(documents[-1], ranks), documents[-1], ranks) == []
        assert {(c.start, c.stop) for c in longest_first(documents, ranks)} == set(pairwise(documents))


@pytest.mark.parametrize(("S", "ranks"), [(16, 2), (48, 3), (64, 8)])
def test_head_and_tail_are_zigzag_where_it_divides(S, ranks):
    chunks = head_tail(S, ranks)
    for rank, tokens in enumerate(positions(S, ranks, "zigzag")):
        assert [t for c in chunks if c.rank == rank for t in range(c.start, c.stop)] == tokens
    assert imbalance(chunks, causal_work(S), ranks) == 1


def test_per_document_is_exactly_even_where_every_document_divides_by_2p_and_nearly_so_elsewhere():
    even = [0, 16, 80, 96, 160]
    assert imbalance(per_document(even, 8), packed_work(even), 8) == 1
    assert imbalance(per_document(PACKED, 8), packed_work(PACKED), 8) <= 1.05
    assert imbalance(head_tail(4096, 8), packed_work(PACKED), 8) > 1.3  # zigzag over the whole, as if it were one


def test_longest_first_is_within_4_thirds_of_the_best_of_all_assignments():
    draw = random.Random(13)
    for _ in range(100):
        documents = [0, *np.cumsum([draw.randint(1, 20) for _ in range(6)]).tolist()]
        costs = [n * (n + 1) // 2 for n in np.diff(documents).tolist()]
        best = min(
            max(sum(cost for i, cost in enumerate(costs) if code >> i & 1 == side) for side in (0, 1))
            for code in range(2**6)
        )
        assert max(loads_of(longest_first(documents, 2), packed_work(documents), 2)) <= best * (4 / 3 - 1 / 6)


def test_longest_first_gives_the_next_document_to_the_rank_with_the_fewest_pairs_so_far():
    documents = [0, 10, 17, 24, 25]  # 10 tokens have 55 pairs, 7 + 7 have 56; but 10² > 7² + 7²
    assert [chunk.rank for chunk in longest_first(documents, 2)] == [0, 1, 1, 0]
    draw = random.Random(27)
    for _ in range(100):
        lengths = [draw.randint(1, 20) for _ in range(9)]
        documents = [0, *np.cumsum(lengths).tolist()]
        loads = [0, 0, 0]
        for length in sorted(lengths, reverse=True):  # each token looks at itself and those before it
            loads[loads.index(min(loads))] += sum(range(1, length + 1))
        assert loads_of(longest_first(documents, 3), packed_work(documents), 3) == loads


def test_work_may_be_an_array_and_overlaps_are_counted_once():
    for xp in LIBRARIES:
        assert split_by_work(asarray([1.0, 1, 2], xp), 2) == [Chunk(0, 0, 0, 2), Chunk(1, 1, 2, 3)]
    assert loads_of(split_equal(10, 6, 2, ranks=2), [1] * 10, 2) == [6, 4]
    assert imbalance(split_equal(4, 2, ranks=2), [0] * 4, 2) == 1


def test_documents_of_one_token_go_round_the_ranks():
    assert loads_of(per_document(range(9), 4), [1] * 8, 4) == [2, 2, 2, 2]
