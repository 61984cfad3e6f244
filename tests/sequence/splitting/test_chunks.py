"""Equal chunks, chunks by memory, and how many ranks a sequence needs."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from parlab import per_rank, run
from parlab.arrays import asarray, to_numpy
from parlab.sequence import Chunk, best_size, split_by_memory, split_equal
from tests.libraries import EACH_LIBRARY
from tests.sequence.splitting.tilings import flaws


def test_length_1800_limit_1000_overlap_100_is_two_chunks_of_effective_1000_and_800():
    first, second = split_equal(1800, 1000, 100)
    assert first == Chunk(0, 0, 0, 1000, 0, 100)
    assert second == Chunk(1, 0, 900, 1800, 100, 0)
    assert (first.effective_length, second.effective_length) == (1000, 800)
    assert (first.length, second.length) == (1000, 900)
    assert first.needs_communication
    assert second.needs_communication


def test_without_overlap_no_chunk_needs_communication():
    assert not any(chunk.needs_communication for chunk in split_equal(10, 3))


def test_7_chunks_go_round_3_ranks():
    assert [chunk.rank for chunk in split_equal(7, 1, ranks=3)] == [0, 1, 2, 0, 1, 2, 0]


def test_a_sequence_within_the_limit_is_one_chunk():
    assert split_equal(5, 100, 99, ranks=4) == [Chunk(0, 0, 0, 5)]


def test_1000_random_equal_splits_tile_the_sequence():
    draw = random.Random(1)
    for _ in range(1000):
        length, limit, ranks = draw.randint(1, 3000), draw.randint(1, 400), draw.randint(1, 9)
        overlap = draw.randrange(limit)
        chunks = split_equal(length, limit, overlap, ranks)
        assert flaws(chunks, length, ranks, limit, overlap) == []
        assert [chunk.rank for chunk in chunks] == [index % ranks for index in range(len(chunks))]
        assert all(chunk.length == limit for chunk in chunks[:-1])  # no more chunks than it takes


def test_1000_random_memory_splits_tile_the_sequence_within_every_budget():
    draw = random.Random(2)
    for _ in range(1000):
        each = draw.choice([1, 3, 0.7, 1024])
        fits = [draw.randint(1, 300) for _ in range(draw.randint(1, 9))]
        length = draw.randint(1, sum(fits))
        budgets = [(tokens + draw.random() * 0.99) * each for tokens in fits]
        chunks = split_by_memory(length, budgets, each)
        assert flaws(chunks, length, len(budgets)) == []
        assert len({chunk.rank for chunk in chunks}) == len(chunks)
        assert all(chunk.length * each <= budgets[chunk.rank] for chunk in chunks)
        assert all(abs(chunk.length - length * fits[chunk.rank] / sum(fits)) <= 1 for chunk in chunks)


def test_budgets_of_2_1_1_hold_a_half_and_two_quarters():
    assert [chunk.length for chunk in split_by_memory(1000, [2e6, 1e6, 1e6], 100)] == [500, 250, 250]


def test_10000_tokens_of_1_kb_fit_on_one_rank_of_8_gb():
    assert best_size(10_000, 1024, 8 * 1024**3, 4) == 1


def test_best_size_is_the_least_that_holds_whole_tokens():
    assert best_size(10, 3, 10, 4) == 4  # three tokens a rank
    assert best_size(9, 3, 10, 4) == 3
    for size in range(1, 9):
        assert best_size(size * 7, 2.5, 7 * 2.5, 8) == size


@pytest.mark.parametrize("library", EACH_LIBRARY)
def test_each_rank_takes_its_own_chunk(library):
    x = np.arange(20.0).reshape(1, 10, 2)
    chunks = split_equal(10, 4, 1, ranks=3)
    taken = run(lambda comm, x, chunk: chunk.take(comm, x), 3, asarray(x, library), per_rank(chunks)).results
    for chunk, piece in zip(chunks, taken, strict=True):
        assert np.array_equal(to_numpy(piece), x[:, chunk.start : chunk.stop])


@pytest.mark.parametrize(
    ("chunk", "text"),
    [
        (Chunk(3, 1, 0, 4), "chunk 3 belongs to rank 1: rank 0 must not take it"),
        (Chunk(3, 2, 0, 4), "chunk 3 belongs to rank 2: the world has 2 ranks"),
        (Chunk(0, 0, 0, 11), "x has 10 tokens: chunk 0 ends at 11"),
    ],
)
def test_a_chunk_of_another_rank_or_another_sequence_is_refused(chunk, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        run(lambda comm, x: comm.rank or chunk.take(comm, x), 2, np.zeros((10, 1)))


def test_a_chunk_of_another_rank_than_the_one_there_is_is_refused():
    with pytest.raises(ValueError, match=r"chunk 3 belongs to rank 2: the world has 1 rank, split"):
        run(lambda comm, x: Chunk(3, 2, 0, 4).take(comm, x), 1, np.zeros((10, 1)))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: split_equal(10, 5, 5), "overlap=5: must be at least 0 and below limit=5"),
        (lambda: split_equal(10, 5, -1), "overlap=-1: must be at least 0"),
        (lambda: split_equal(0, 5), "length=0: must be a whole number, at least 1"),
        (lambda: split_equal(10, 0), "limit=0: must be a whole number, at least 1"),
        (lambda: split_equal(10, 5, ranks=0), "ranks=0: must be a whole number, at least 1"),
        (lambda: split_equal(10.5, 5), "length=10.5: must be a whole number"),
        (lambda: split_by_memory(10, [], 1), "budgets=0: must be a whole number, at least 1"),
        (lambda: split_by_memory(10, [9, 100], 10), "budgets[0]=9: no memory for one token of 10 bytes"),
        (lambda: split_by_memory(11, [40, 65], 10), "budgets=[40, 65]: room for 10 tokens of 10 bytes, 11 are needed"),
        (lambda: split_by_memory(10, [9, float("nan")], 1), "budgets[1]=nan: must be a number"),
        (lambda: split_by_memory(10, [9], 0), "bytes_per_token=0: must be a number greater than 0 and finite"),
        (lambda: best_size(10, 8, 7, 4), "bytes_per_rank=7: no memory for one token of 8 bytes"),
        (lambda: best_size(10, 8, 16, 4), "world=4: 10 tokens of 8 bytes need 5 ranks of 16"),
    ],
)
def test_bad_input_is_refused(call, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        call()
