"""A text cut where its sentences and paragraphs end."""

from __future__ import annotations

import random

from parlab.sequence import split_by_text, unit_ends
from tests.sequence.splitting.tilings import flaws

TEXT = 'Dr. Aas lit 3.5 lamps. "Who came?" he asked. Nobody!\n\nThe sea was high... and grey. J. Holm slept.\n'


def units(text, unit="sentence"):
    ends = unit_ends(text, unit)
    return [text[start:stop] for start, stop in zip([0, *ends], ends, strict=False)]


def pieces(text, chunks):
    return [text.encode()[chunk.start : chunk.stop].decode() for chunk in chunks]


def test_sentences_end_where_a_reader_would_end_them():
    assert units(TEXT) == [
        "Dr. Aas lit 3.5 lamps. ",
        '"Who came?" he asked. ',
        "Nobody!\n\n",
        "The sea was high... and grey. ",
        "J. Holm slept.\n",
    ]
    assert units("他来了。他走了。") == ["他来了。", "他走了。"]
    assert units("a heading\n\nand a line") == ["a heading\n\n", "and a line"]


def test_paragraphs_end_at_blank_lines():
    assert [unit.strip()[:4] for unit in units(TEXT, "paragraph")] == ["Dr. ", "The "]
    assert units("one\n  \n\ntwo\r\n\r\nthree", "paragraph") == ["one\n  \n\n", "two\r\n\r\n", "three"]


def test_a_sentence_of_26_bytes_is_cut_at_a_word_where_20_fit():
    assert pieces("Short. ", split_by_text("Short. ", 1, 20)) == ["Short. "]
    text = "Short. Five words stand here now."
    assert pieces(text, split_by_text(text, 1, 20)) == ["Short. ", "Five words stand ", "here now."]


def test_300_random_texts_are_tiled_within_the_limit():
    draw = random.Random(14)
    for _ in range(300):
        text = "".join(
            draw.choices(
                ["a", "wörd ", "Word", ". ", "! ", "\n\n", "…", " ", "字", "😀", "e.g. "], k=draw.randint(1, 60)
            )
        )
        limit, ranks = draw.randint(4, 40), draw.randint(1, 6)
        unit = draw.choice(["sentence", "paragraph"])
        chunks = split_by_text(text, ranks, limit, unit)
        assert flaws(chunks, len(text.encode()), ranks, limit) == []
        assert [chunk.rank for chunk in chunks] == [index % ranks for index in range(len(chunks))]
        ends = {len(text[:end].encode()) for end in unit_ends(text, unit)}
        if all(len(part.encode()) <= limit for part in units(text, unit)):
            assert {chunk.stop for chunk in chunks} <= ends
            assert len(chunks) >= min(ranks, len(ends))
