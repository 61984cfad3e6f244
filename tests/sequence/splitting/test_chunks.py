"""Equal chunks, chunks by memory, and how many ranks a sequence needs."""

from __future__ import annotations

import random

from parlab.sequence import best_size, split_by_memory, split_equal
from tests.sequence.splitting.tilings import flaws


def test_300_random_equal_splits_tile_the_sequence():
    draw = random.Random(1)
    for _ in range(300):
        length, limit, ranks = draw.randint(1, 3000), draw.randint(1, 400), draw.randint(1, 9)
        overlap = draw.randrange(limit)
        chunks = split_equal(length, limit, overlap, ranks)
        assert flaws(chunks, length, ranks, limit, overlap) == []
        assert [chunk.rank for chunk in chunks] == [index % ranks for index in range(len(chunks))]
        assert all(chunk.length == limit for chunk in chunks[:-1])  # no more chunks than it takes


def test_300_random_memory_splits_tile_the_sequence_within_every_budget():
    draw = random.Random(2)
    for _ in range(300):
        each = draw.choice([1, 3, 0.7, 1024])
        fits = [draw.randint(1, 300) for _ in range(draw.randint(1, 9))]
        length = draw.randint(1, sum(fits))
        budgets = [(tokens + draw.random() * 0.99) * each for tokens in fits]
        chunks = split_by_memory(length, budgets, each)
        assert flaws(chunks, length, len(budgets)) == []
        assert len({chunk.rank for chunk in chunks}) == len(chunks)
        assert all(chunk.length * each <= budgets[chunk.rank] for chunk in chunks)
        assert all(abs(chunk.length - length * fits[chunk.rank] / sum(fits)) <= 1 for chunk in chunks)


def test_best_size_is_the_least_that_holds_whole_tokens():
    assert best_size(10, 3, 10, 4) == 4  # three tokens a rank
    assert best_size(9, 3, 10, 4) == 3
    for size in range(1, 9):
        assert best_size(size * 7, 2.5, 7 * 2.5, 8) == size
