"""The text that a run trains on, character by character: from a file, or drawn from a source."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from parlab.nn import MarkovSource
from parlab.training_run.settings import Settings


class Text(NamedTuple):
    """A text in tokens."""

    tokens: np.ndarray  # [N]
    vocab_size: int
    checksum: str  # the SHA-256 of the file's text, or of the drawn tokens


def read_text(settings: Settings) -> Text:
    """The text in the file, or the one that the seed draws.

    Raises:
        ValueError: a file that is no text in UTF-8.
    """
    return drawn_text(settings) if settings.text is None else text_of_file(settings.text)


def drawn_text(settings: Settings) -> Text:
    """The characters that a Markov source of the seed draws."""
    source = MarkovSource(seed=settings.seed)
    drawn, _ = source.batch(0, batch_size=1, length=settings.characters, seed=settings.seed, xp=np)
    return Text(drawn[0], source.vocab_size, hashlib.sha256(drawn.tobytes()).hexdigest())


def text_of_file(path: str) -> Text:
    """The characters of a file; a character's token is its place in the sorted alphabet of the file."""
    try:
        read = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"text={path!r}: {error}; a text in UTF-8 is needed") from error
    characters = np.frombuffer(read.encode("utf-32-le"), dtype=np.uint32)
    alphabet, tokens = np.unique(characters, return_inverse=True)
    return Text(tokens, len(alphabet), hashlib.sha256(read.encode()).hexdigest())


def entropy_of_text(settings: Settings) -> float | None:
    """The entropy rate of the text's source, in nats: no model has a smaller mean loss on text that it has not seen.
    None for a text from a file.
    """
    return MarkovSource(seed=settings.seed).entropy_rate if settings.text is None else None
