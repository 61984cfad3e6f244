"""The lab's text, the maps of the models that read it, and what cuts cost them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from parlab.nn.layers import Core
from parlab.nn.llama import Llama
from parlab.sequence import (
    Chunk,
    analyse_attention,
    lab_attention,
    lab_loss,
    split_by_attention,
    split_by_text,
    split_equal,
    stem,
)
from parlab.sequence.splitting import lab
from tests.sequence.splitting.maps import weight_cut


def test_the_maps_are_four_causal_ones_of_rows_that_sum_to_1():
    read = lab_attention()
    S = len(read.words)
    assert read.weights.shape == (4, S, S)
    assert np.abs(read.weights.sum(axis=-1) - 1).max() < 1e-6
    assert not np.triu(read.weights, k=1).any()


def test_words_join_to_the_text_and_sentences_end_with_their_marks():
    read = lab_attention()
    assert "".join(read.words) == read.text
    assert read.sentences[-1] == len(read.words)
    assert {read.words[end - 1].strip() for end in read.sentences} <= {".", "?", '"'}
    assert 1500 < len(read.text) < 5000  # a page or two


def test_names_and_things_come_again_in_other_paragraphs():
    paragraphs = [{stem(word) for word in part.split()} for part in lab_attention().text.split("\n\n")]
    for word in ("maren", "scroll", "bridge", "king", "abbot", "song", "well"):
        assert sum(word in paragraph for paragraph in paragraphs) >= 2, word


@pytest.mark.parametrize(("ranks", "factor"), [(2, 1.25), (3, 1.5), (4, 1.3), (5, 1.6), (6, 1.4), (7, 1.6), (8, 1.3)])
def test_the_attention_split_cuts_less_weight_than_equal_chunks_by_a_factor_of_1_25_to_1_6(ranks, factor):
    weights = lab_attention().weights
    S = weights.shape[-1]
    equal = [chunk.stop for chunk in split_equal(S, -(-S // ranks))]
    found = [chunk.stop for chunk in split_by_attention(weights, ranks)]
    assert weight_cut(weights, equal) >= factor * weight_cut(weights, found)


def test_four_chunks_are_cut_one_mark_before_a_sentence_ends():
    """A full stop looks at its sentence no more, and the next sentence looks at it."""
    read = lab_attention()
    cuts = [chunk.stop for chunk in split_by_attention(read.weights, 4)][:-1]
    assert {cut + 1 for cut in cuts} <= set(read.sentences)


def test_the_second_layer_looks_near():
    assert [head.kind for head in analyse_attention(lab_attention().weights).heads] == ["local"] * 4


def test_text_cuts_are_word_cuts():
    read = lab_attention()
    ends = np.cumsum([len(word.encode()) for word in read.words]).tolist()
    assert {chunk.stop for chunk in split_by_text(read.text, 4, 1000)} <= {ends[end - 1] for end in read.sentences}


WHOLE = [Chunk(0, 0, 0, 475)]
RANKS = (2, 3, 4, 5, 6, 8)


def in_words(read, chunks):
    """Chunks of bytes, as `split_by_text` counts, in words."""
    ends = np.cumsum([len(word.encode()) for word in read.words])
    edges = [0, *(int(np.searchsorted(ends, chunk.stop)) + 1 for chunk in chunks)]
    return [Chunk(i, i, start, stop) for i, (start, stop) in enumerate(pairwise(edges))]


def costs(seed, ranks):
    """The loss that equal chunks, whole sentences and the attention split add to all 474 words, in nats."""
    read = lab_attention(seed=seed)
    S = len(read.words)
    ways = (
        split_equal(S, -(-S // ranks), ranks=ranks),
        in_words(read, split_by_text(read.text, ranks, limit=len(read.text.encode()))),
        split_by_attention(read.weights, ranks),
    )
    return [(S - 1) * (lab_loss(chunks, seed=seed) - lab_loss(WHOLE, seed=seed)) for chunks in ways]


def test_with_seed_1_in_4_chunks_the_attention_split_costs_less_than_sentences_and_these_less_than_equal_chunks():
    equal, sentences, attention = costs(1, 4)
    assert 0 < attention < sentences < equal


@pytest.mark.slow
def test_over_5_seeds_and_6_rank_counts_the_attention_split_costs_less_than_equal_chunks_in_29_and_sentences_in_21():
    found = [costs(seed, ranks) for seed in range(1, 6) for ranks in RANKS]
    assert len(found) == 30
    assert sum(attention < equal for equal, _, attention in found) == 29
    assert sum(sentences < equal for equal, sentences, _ in found) == 21
    assert sum(attention < sentences for _, sentences, attention in found) == 28
    assert min(min(cost) for cost in found) > 0


def test_a_cut_costs_what_a_mask_without_the_keys_before_it_costs_in_all_layers():
    """Each chunk read alone, against one dense attention over the whole text whose mask is cut at word 237."""
    halves, mask = [Chunk(0, 0, 0, 237), Chunk(1, 1, 237, 475)], np.tril(np.ones((475, 475), bool))
    mask[237:, :237] = False

    def forward(q, k, v):
        scores = np.where(mask, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)
        lse = np.log(np.exp(scores).sum(axis=-1))
        return np.exp(scores - lse[..., None]) @ v, lse

    model = lab._model(1)
    tokens = lab._tokens(model)
    cut = Llama(model.config, model.weights, core=Core(forward, None))
    loss = lab._losses(cut, tokens, 0, 475).mean()
    assert loss == pytest.approx(lab_loss(halves), abs=1e-12)
    assert round(474 * (loss - lab_loss(WHOLE)), 1) == 18.0
