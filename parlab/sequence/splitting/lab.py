"""The lab's own text, and small Llamas that were trained on it: their attention maps.

`tools/train_lab_attention.py` trained five of them, which differ in their seed alone, and wrote their weights into a
file. Maps are computed from these.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import accumulate
from typing import NamedTuple

import parlab.arrays
from parlab.arguments import whole
from parlab.arrays import Array, namespace
from parlab.nn.config import EMBEDDING, LlamaConfig
from parlab.nn.llama import Llama
from parlab.sequence.splitting.text import unit_ends

TEXT, WEIGHTS = "scribes.txt", "scribes_weights.safetensors.z"
SEEDS = (1, 2, 3, 4, 5)


class LabAttention(NamedTuple):
    """A text of 2 kB and the attention maps of a model that read it."""

    words: list[str]  # S words and punctuation marks, with the spaces behind them; joined they are the text
    text: str
    weights: Array  # [H, S, S], head, query, key; causal, rows of sum 1, float32
    sentences: list[int]  # where each sentence ends, in words


def lab_attention(*, seed: int = 1) -> LabAttention:
    """The lab's text, and the four attention maps in the second layer of a Llama with two, of one of five seeds.

    >>> lab_attention().words[:4]
    ['The ', 'abbot ', 'of ', 'Orrin ']
    """
    whole("seed", seed)
    text = lab_text()
    words = words_of(text)
    xp = parlab.arrays.default_namespace()
    weights = parlab.arrays.asarray(_maps(checked_seed(seed)), xp, xp.float32)
    word_at = dict(zip(accumulate(map(len, words)), range(1, len(words) + 1), strict=True))  # by its last character
    return LabAttention(words, text, weights, [word_at[end] for end in unit_ends(text)])


def checked_seed(seed: int) -> int:
    """`seed`, if a model was trained with it; else a ValueError."""
    if seed not in SEEDS:
        raise ValueError(f"seed={seed!r}: models were trained with the seeds {', '.join(map(str, SEEDS))}")
    return seed


def lab_text() -> str:
    """The lab's text."""
    return (files("parlab.sequence") / "data" / TEXT).read_text(encoding="utf-8")


def words_of(text: str) -> list[str]:
    """Words and punctuation marks, each with the spaces behind it.

    >>> words_of("The well, Ilse!")
    ['The ', 'well', ', ', 'Ilse', '!']
    """
    return re.findall(r"(?:[\w'’]+|[^\w\s])\s*", text)


def vocabulary_of(words: Sequence[str]) -> dict[str, int]:
    """The number of each word, without case and spaces."""
    return {word: number for number, word in enumerate(sorted({spelled(word) for word in words}))}


def spelled(word: str) -> str:
    """A word as the model reads it."""
    return word.strip().lower()


def config_of(vocabulary: dict[str, int]) -> LlamaConfig:
    """The sizes of the lab's model. Its last token starts a row."""
    return LlamaConfig(
        vocab_size=len(vocabulary) + 1,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )


def _tokens(model: Llama) -> Array:
    """The text, `[1, S]`."""
    words, table = words_of(lab_text()), model.weights[EMBEDDING]
    vocabulary = vocabulary_of(words)
    return namespace(table).asarray([[vocabulary[spelled(word)] for word in words]])


@cache
def _model(seed: int) -> Llama:
    """The model of a seed, in float64."""
    from safetensors.numpy import load

    stored = load(zlib.decompress((files("parlab.sequence") / "data" / WEIGHTS).read_bytes()))
    own = {name.partition("/")[2]: x for name, x in stored.items() if name.startswith(f"{seed}/")}
    weights = {name: namespace(x).astype(x, namespace(x).float64) for name, x in own.items()}
    return Llama(config_of(vocabulary_of(words_of(lab_text()))), weights)


@cache
def _maps(seed: int) -> Array:
    """`[H, S, S]` of the second layer, from the q, k and lse that its attention kept."""
    model = _model(seed)
    _, (_embedding, _first, second, _head) = model.chain.forward(_tokens(model))
    kept = second["attention"]
    q, k, lse = kept.q[0, ...], kept.k[0, ...], kept.lse[0, ...]
    xp = namespace(q)
    scores = q @ xp.matrix_transpose(k) / math.sqrt(q.shape[-1])  # [H, S, S]
    return xp.tril(xp.exp(xp.clip(scores - lse[..., None], max=0.0)))
