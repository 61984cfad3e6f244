"""The order of the samples. It follows from a seed alone, so every mesh trains on the same batches."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from parlab.arguments import whole
from parlab.arrays import Array, asarray, default_namespace, generator
from parlab.train.arguments import is_integral


class Samples:
    """Windows of `length` tokens of a text; the order of each epoch follows from `seed`.

    Samples are numbered through all epochs. So a run can go on with the next number: in the middle of an epoch, with
    another batch size, on another mesh.

    Args:
        tokens: `[N]`, whole numbers.
        length: of a sample.
        seed: of the orders.

    Raises:
        ValueError: an argument that is not as said, or a text with no more than `length` tokens.

    >>> samples = Samples(np.arange(13), length=4, seed=1)
    >>> tokens, targets = samples.batch(0, 3)
    >>> sorted(tokens[:, 0].tolist()), (targets - tokens).tolist()[0]
    ([0, 4, 8], [1, 1, 1, 1])
    """

    def __init__(self, tokens: Any, length: int, seed: int = 0) -> None:
        self.tokens, self.length, self.seed = np.asarray(tokens), length, seed
        if self.tokens.ndim != 1 or not is_integral(self.tokens):
            raise ValueError(f"tokens={tokens!r:.60}: an array [N] of whole numbers is needed")
        whole("length", length, 1)
        whole("seed", seed, 0)
        self.epoch_size = (len(self.tokens) - 1) // length  # a window's last target is the next one's first token
        if self.epoch_size < 1:
            raise ValueError(
                f"length={length}: a window and its last target need more than {len(tokens)} tokens of text"
            )
        self._order = lru_cache(maxsize=2)(lambda epoch: generator(seed, epoch).permutation(self.epoch_size))

    def batch(self, first: int, size: int, *, xp: Any = None) -> tuple[Array, Array]:
        """`(tokens, targets)`, `[size, length]` each: `size` samples from number `first` on."""
        whole("first", first, 0)
        whole("size", size, 1)
        numbers = [divmod(number, self.epoch_size) for number in range(first, first + size)]
        starts = np.asarray([self._order(epoch)[place] * self.length for epoch, place in numbers])
        xp = xp or default_namespace()
        windows = asarray(self.tokens[starts[:, None] + np.arange(self.length + 1)], xp, xp.int64)  # [size, length + 1]
        return windows[:, :-1], windows[:, 1:]
