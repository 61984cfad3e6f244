"""Train the small Llama of notebook 03 on the lab's text and store its attention maps: a few minutes on one core.

Every row has the sentences in another order, so that the model predicts a word from its own sentence. One word in ten
is replaced by another, so that the model needs more than the last word: `python tools/train_lab_attention.py`.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from parlab.nn.config import LlamaConfig
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW
from parlab.nn.training import train
from parlab.sequence.lab import MAPS, PARTS, TEXT, words_of
from parlab.sequence.text_split import unit_ends

DATA = Path(__file__).parents[1] / "parlab/sequence/data"
STEPS, ROWS, NOISE, RATE = 800, 2, 0.1, 1e-2


def main() -> None:
    text = (DATA / TEXT).read_text(encoding="utf-8")
    vocabulary = {word: number for number, word in enumerate(sorted({_spelled(word) for word in words_of(text)}))}
    ends = unit_ends(text)
    parts = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    sentences = [[vocabulary[_spelled(word)] for word in words_of(part)] for part in parts]
    config = LlamaConfig(
        vocab_size=len(vocabulary) + 1,  # the last one starts a row
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    model = Llama.random(config, seed=1)
    losses = train(
        model,
        batches(sentences, config.vocab_size),
        AdamW(lr=RATE),
        schedule=lambda step: RATE * (1 + math.cos(math.pi * step / STEPS)) / 2,
        on_step=lambda step, loss: print(step, round(loss, 3)) if step % 100 == 0 else None,
    )
    maps = attention_maps(model, np.array([[token for sentence in sentences for token in sentence]]))
    packed = {f"layer.{layer}": _packed(weights) for layer, weights in enumerate(maps)}
    stored = zlib.compress(save(packed), 9)
    (DATA / f"{MAPS}.partial").write_bytes(stored)
    os.replace(DATA / f"{MAPS}.partial", DATA / MAPS)
    print(f"loss {losses[-1]:.3f}; {len(stored)} bytes")


def batches(sentences: list[list[int]], vocab_size: int) -> Iterator[tuple[Any, Any]]:
    """Tokens and targets, `[ROWS, S]`."""
    draw = np.random.default_rng(1)
    for _ in range(STEPS):
        orders = [draw.permutation(len(sentences)) for _ in range(ROWS)]
        rows = np.array([[vocab_size - 1, *(token for i in order for token in sentences[i])] for order in orders])
        tokens = rows[:, :-1].copy()
        noisy = draw.random(tokens.shape) < NOISE
        tokens[noisy] = draw.integers(vocab_size - 1, size=noisy.sum())
        yield tokens, rows[:, 1:]


def attention_maps(model: Llama, tokens: Any) -> list[Any]:
    """`[H, S, S]` of each layer, from the q, k and lse that its attention kept."""
    maps = []
    for cache in model.chain.forward(tokens)[1][1:-1]:
        q, k, lse = (x[0] for x in (cache["attention"].q, cache["attention"].k, cache["attention"].lse))
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])  # [H, S, S]
        maps.append(np.tril(np.exp(np.minimum(scores - lse[..., None], 0))))
    return maps


def _packed(weights: Any) -> Any:
    rows, columns = np.tril_indices(weights.shape[-1])
    codes = np.round(PARTS * np.sqrt(weights[:, rows, columns])).astype(np.uint8)
    return np.ascontiguousarray(codes)  # safetensors writes memory as it lies


def _spelled(word: str) -> str:
    return word.strip().lower()


if __name__ == "__main__":
    main()
