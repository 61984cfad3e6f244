"""Train the small Llamas of notebook 03 on the lab's text and store their weights: two minutes on one core.

Every row has the sentences in another order, so that the model predicts a word from its own sentence. One word in ten
is replaced by another, so that the model needs more than the last word: `python tools/train_lab_attention.py`.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW
from parlab.nn.training import train
from parlab.sequence.splitting.lab import SEEDS, WEIGHTS, config_of, lab_text, spelled, vocabulary_of, words_of
from parlab.sequence.splitting.text import unit_ends

DATA = Path(__file__).parents[1] / "parlab/sequence/data"
STEPS, ROWS, NOISE, RATE = 800, 2, 0.1, 1e-2


def main() -> None:
    weights = {f"{seed}/{name}": x for seed in SEEDS for name, x in trained(seed).items()}
    stored = zlib.compress(save(weights), 9)
    (DATA / f"{WEIGHTS}.partial").write_bytes(stored)
    os.replace(DATA / f"{WEIGHTS}.partial", DATA / WEIGHTS)
    print(f"{len(stored)} bytes")


def trained(seed: int) -> dict[str, Any]:
    """The weights of a model, in float16."""
    text = lab_text()
    vocabulary = vocabulary_of(words_of(text))
    parts = [text[start:end] for start, end in pairwise([0, *unit_ends(text)])]
    sentences = [[vocabulary[spelled(word)] for word in words_of(part)] for part in parts]
    config = config_of(vocabulary)
    model = Llama.random(config, seed=seed)
    losses = train(
        model,
        batches(sentences, config.vocab_size, seed),
        AdamW(lr=RATE),
        schedule=lambda step: RATE * (1 + math.cos(math.pi * step / STEPS)) / 2,
    )
    print(f"seed {seed}: loss {losses[-1]:.3f}")
    return {name: np.asarray(x).astype(np.float16) for name, x in model.weights.items()}


def batches(sentences: list[list[int]], vocab_size: int, seed: int) -> Iterator[tuple[Any, Any]]:
    """Tokens and targets, `[ROWS, S]`."""
    draw = np.random.default_rng(seed)
    for _ in range(STEPS):
        orders = [draw.permutation(len(sentences)) for _ in range(ROWS)]
        rows = np.array([[vocab_size - 1, *(token for i in order for token in sentences[i])] for order in orders])
        tokens = rows[:, :-1].copy()
        noisy = draw.random(tokens.shape) < NOISE
        tokens[noisy] = draw.integers(vocab_size - 1, size=noisy.sum())
        yield tokens, rows[:, 1:]


if __name__ == "__main__":
    main()
