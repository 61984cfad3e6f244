"""The lab's own text, and the attention maps of a small Llama that was trained on it.

`tools/train_lab_attention.py` wrote the maps into a file, so that they are the same on every machine: the lower
triangle of each, one byte a weight, its square root in 127 parts.
"""

from __future__ import annotations

import re
import zlib
from functools import cache
from importlib.resources import files
from itertools import accumulate
from typing import Any, NamedTuple

import parlab.arrays
from parlab.arguments import checked
from parlab.arrays import Array, namespace
from parlab.sequence.arguments import RULES
from parlab.sequence.text_split import unit_ends

TEXT, MAPS = "scribes.txt", "scribes_attention.safetensors.z"
PARTS = 127


class LabAttention(NamedTuple):
    """A text of 2 kB and the attention maps of a model that read it."""

    words: list[str]  # S words and punctuation marks, with the spaces behind them; joined they are the text
    text: str
    weights: Array  # [H, S, S], head, query, key; causal, rows of sum 1, float32
    sentences: list[int]  # where each sentence ends, in words


@checked(RULES)
def lab_attention(layer: int = 1, *, xp: Any = None) -> LabAttention:
    """The lab's text, and its four attention maps in `layer` 0 or 1 of a Llama with two layers.

    >>> lab_attention().words[:4]
    ['The ', 'abbot ', 'of ', 'Orrin ']
    """
    if layer not in (0, 1):
        raise ValueError(f"layer={layer!r}: the model has the layers 0 and 1")
    text = (files("parlab.sequence") / "data" / TEXT).read_text(encoding="utf-8")
    words = words_of(text)
    xp = xp or parlab.arrays.default_namespace()
    weights = parlab.arrays.asarray(_stored(len(words))[layer], xp, xp.float32)
    word_at = dict(zip(accumulate(map(len, words)), range(1, len(words) + 1), strict=True))  # by its last character
    return LabAttention(words, text, weights, [word_at[end] for end in unit_ends(text)])


def words_of(text: str) -> list[str]:
    """Words and punctuation marks, each with the spaces behind it.

    >>> words_of("The well, Ilse!")
    ['The ', 'well', ', ', 'Ilse', '!']
    """
    return re.findall(r"(?:[\w'’]+|[^\w\s])\s*", text)


@cache
def _stored(S: int) -> list[Array]:
    """The maps `[H, S, S]` of each layer, as NumPy arrays."""
    from safetensors.numpy import load

    stored = load(zlib.decompress((files("parlab.sequence") / "data" / MAPS).read_bytes()))
    maps = []
    for layer in sorted(stored):
        triangle = stored[layer]  # [H, S(S+1)/2]
        xp = namespace(triangle)
        weights = xp.zeros((triangle.shape[0], S, S))
        weights[:, xp.tril(xp.ones((S, S))) > 0] = (triangle / PARTS) ** 2
        maps.append(weights / xp.sum(weights, axis=-1, keepdims=True))
    return maps
