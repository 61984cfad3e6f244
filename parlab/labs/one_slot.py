"""The small Llama of lesson 04, which learns to say the token before, also with a change in its stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parlab import arrays
from parlab.arrays import Array
from parlab.nn import AdamW, Llama, LlamaConfig
from parlab.pipeline import Schedule, losses_of_steps

TOKENS, LETTERS = 8, 8  # of a sequence; and in all
STEPS, RATE = 40, 0.02


def four_layers(seed: int = 1) -> Llama:
    """A Llama of four layers in float64, whose weights are 39 arrays.

    >>> len(four_layers().weights)
    39
    """
    config = LlamaConfig(
        vocab_size=LETTERS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        initializer_range=0.3,
    )
    return Llama.random(config, seed=seed, dtype="float64")


def token_before(*seed: int, sequences: int = 8) -> tuple[Array, Array]:
    """Tokens and targets of a batch, `[sequences, 8]` each: a target is the token before, the first one's itself.

    >>> tokens, targets = token_before(2, sequences=1)
    >>> bool((targets[0, 2:] == tokens[0, 1:-1]).all())
    True
    """
    drawn = arrays.generator(*seed).integers(LETTERS, size=(sequences, TOKENS))
    tokens = arrays.default_namespace().asarray(drawn)  # [B, S]
    return tokens, tokens[:, [0, *range(TOKENS - 1)]]


def forty_losses(schedule: Schedule, seed: int, change: Callable[[Any], Any] | None = None) -> list[float]:
    """The losses of 40 steps of `four_layers(seed)`, with AdamW, each on a batch of its own of 16 sequences.

    Args:
        change: is given each stage, and returns what takes its place.
    """
    batches = [token_before(seed, number, sequences=16) for number in range(STEPS)]
    return losses_of_steps(schedule, four_layers(seed), batches, AdamW(lr=RATE), change)
