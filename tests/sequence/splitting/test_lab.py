"""The lab's text, and the maps of the models that read it."""

from __future__ import annotations

import numpy as np
import pytest

from parlab.sequence import (
    analyse_attention,
    lab_attention,
    split_by_attention,
    split_by_text,
    split_equal,
    stem,
    weight_cut,
)


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
    equal, found = split_equal(S, -(-S // ranks)), split_by_attention(weights, ranks)
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
