"""A text cut into chunks of whole sentences or paragraphs."""

from __future__ import annotations

import re
from itertools import accumulate, pairwise

from parlab.arguments import one_of, whole
from parlab.sequence.splitting.chunks import Chunk, deal, even_stops

ABBREVIATIONS = ("Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Fig", "vs", "cf", "e.g", "i.e", "[A-HJ-Z]")  # and initials
NO_ABBREVIATION = "".join(rf"(?<!\b{word})" for word in ABBREVIATIONS)
BLANK_LINE = r"\n\s*\n\s*"
ENDS = {  # the end of a unit, spaces included
    "sentence": re.compile(rf"{NO_ABBREVIATION}[.!?…]+[\"'”’»)\]]*\s+|[。！？]+[”」』]?\s*|{BLANK_LINE}"),
    "paragraph": re.compile(BLANK_LINE),
}


def split_by_text(text: str, ranks: int, limit: int, unit: str = "sentence") -> list[Chunk]:
    """Chunks of whole sentences or paragraphs, one a rank or as many as the limit asks, whose longest is as short as
    possible.

    Positions, lengths and the limit are bytes of the UTF-8 text. A unit longer than the limit is cut after a word, a
    word longer than the limit after a character. With more ranks than units the last ranks get no chunk.

    A sentence ends with `.`, `!` or `?` and the quotes or brackets that close it, unless the mark ends an abbreviation
    or a small letter follows. A paragraph ends with a blank line, which always ends a sentence too.

    Raises:
        ValueError: an empty text, another unit, a number below 1, or a character longer than the limit.

    >>> text = "Mr. Holm lit the lamp. Nobody came! Why? It rained."
    >>> [text[chunk.start : chunk.stop] for chunk in split_by_text(text, ranks=2, limit=30)]
    ['Mr. Holm lit the lamp. ', 'Nobody came! Why? It rained.']
    """
    whole("ranks", ranks, least=1)
    whole("limit", limit, least=1)
    ends = unit_ends(text, unit)
    sizes = [size for start, stop in pairwise([0, *ends]) for size in _segments(text[start:stop], limit)]
    number = max(len(_filled(sizes, limit)), min(ranks, len(sizes)))
    before = list(accumulate(sizes, initial=0))
    return deal([before[stop] for stop in even_stops(sizes, number)], ranks)


def unit_ends(text: str, unit: str = "sentence") -> list[int]:
    """The ends of the sentences or paragraphs, in characters, with the spaces behind them. The last is the text's end.

    >>> unit_ends("One. Two, e.g. three. Four")
    [5, 22, 26]
    """
    one_of("unit", unit, tuple(ENDS))
    if not isinstance(text, str) or not text:
        raise ValueError(f"text={text!r:.60}: a string with at least one character is needed")
    ends = []
    for found in ENDS[unit].finditer(text):
        goes_on = text[found.end() : found.end() + 1].islower() and found[0].count("\n") < 2
        if not goes_on and text[: found.end()].strip():
            ends.append(found.end())
    return ends if ends and ends[-1] == len(text) else [*ends, len(text)]


def _segments(unit: str, limit: int) -> list[int]:
    """The bytes of the unit; of runs of its words, where it is longer than the limit.

    >>> _segments("One two three.", limit=8)  # "One two ", "three."
    [8, 6]
    """
    if _size(unit) <= limit:
        return [_size(unit)]
    sizes: list[int] = []
    for word in re.findall(r"\S+\s*|\s+", unit):
        if _size(word) <= limit:
            sizes.append(_size(word))
        else:
            sizes.extend(map(_size, word))  # its characters
    if max(sizes) > limit:
        raise ValueError(f"limit={limit}: the text has a character of {max(sizes)} bytes")
    return _filled(sizes, limit)


def _filled(sizes: list[int], limit: int) -> list[int]:
    """The sizes of runs of neighbours, each as long as the limit allows."""
    runs = [0]
    for size in sizes:
        if runs[-1] + size > limit:
            runs.append(0)
        runs[-1] += size
    return runs


def _size(text: str) -> int:
    return len(text.encode())
