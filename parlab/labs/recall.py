"""The smallest training that shows a wrong position: one layer of ring attention, on zigzag shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parlab.arguments import whole
from parlab.arrays import default_namespace
from parlab.nn.optimizer import AdamW
from parlab.nn.rotary import rotary_tables, rotate, rotate_backward
from parlab.sequence import ring_attention, ring_attention_backward, shard
from parlab.world import Comm, per_rank, run

LETTERS, LENGTH, BACK, STEPS = 16, 128, 6, 60
ZIGZAG: Any = {"causal": True, "layout": "zigzag"}


def recall_losses(positions: Sequence[Sequence[int]], steps: int = STEPS, seed: int = 1) -> list[float]:
    """The losses of a layer that reads random texts and must say which letter stood six places earlier.

    A text has 128 letters out of 16, and each step a new one, drawn from `seed`. For the first six letters of a text
    the answer stood before it: the loss cannot fall below 6/128 · ln 16 = 0.13.

    Args:
        positions: that the ranks give to the tokens of their zigzag shards, [P, 128/P].
        steps: how many.
        seed: of the texts.

    Raises:
        ValueError: no step, or positions of more or fewer than 128 tokens.

    >>> f"{recall_losses([range(128)], steps=1)[0]:.6f}"
    '2.764532'
    """
    whole("steps", steps, 1)
    whole("seed", seed, 0)
    if (tokens := sum(map(len, positions))) != LENGTH:
        raise ValueError(f"positions: of {tokens} tokens, must be of {LENGTH}")
    xp = default_namespace()
    letters = xp.asarray(np.random.default_rng(seed).integers(0, LETTERS, (steps, BACK + LENGTH)))
    dealt = [per_rank(shard(x, len(positions), "zigzag", axis=1)) for x in (letters[:, BACK:], letters[:, :-BACK])]
    places = per_rank([xp.asarray(list(of_rank)) for of_rank in positions])
    return run(_train, len(positions), *dealt, places).results[0]


def _train(comm: Comm, texts: Any, wanted: Any, places: Any) -> list[float]:
    xp, draw, losses = default_namespace(), np.random.default_rng(0), []
    weights = {name: xp.asarray(0.1 * draw.normal(size=(LETTERS, LETTERS))) + (name != "v") for name in "qkv"}
    optimizer = AdamW(lr=0.2, betas=(0.9, 0.95), weight_decay=0.0)
    for text, letters in zip(texts, wanted, strict=True):
        loss, gradients = _loss_and_gradients(comm, weights, text, letters, places)
        optimizer.step(weights, gradients)
        losses.append(float(loss))
    return losses


def _loss_and_gradients(comm: Comm, weights: Any, text: Any, wanted: Any, places: Any) -> tuple[Any, Any]:
    xp = default_namespace()
    x, y = xp.eye(LETTERS)[text], xp.eye(LETTERS)[wanted]  # [S/P, 16], one-hot
    tables = rotary_tables(places, LETTERS, theta=100)
    q, k, v = ((x @ weights[name])[None, None] for name in "qkv")  # [1, 1, S/P, 16]
    q, k = rotate(q, tables)[0], rotate(k, tables)[0]
    out, lse = ring_attention(comm, q, k, v, **ZIGZAG)  # out: the logits
    p = xp.exp(out[0, 0]) / xp.exp(out[0, 0]).sum(axis=1, keepdims=True)
    dq, dk, dv = ring_attention_backward(comm, (p - y)[None, None], q, k, v, out, lse, **ZIGZAG)  # cross-entropy's
    dq, dk = rotate_backward(dq, tables), rotate_backward(dk, tables)
    of_rank = [-xp.log(p[y == 1]).sum(), *(x.T @ d[0, 0] for d in (dq, dk, dv))]
    loss, *gradients = (comm.all_reduce(xp.asarray(one)) / LENGTH for one in of_rank)
    return loss, dict(zip("qkv", gradients, strict=True))
