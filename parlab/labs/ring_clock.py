"""The clock of lesson 02: small arrays on a laptop that take the time of a large model's attention on H100s.

A row of 8 numbers stands for 64 tokens of one layer, with 32 heads of 128 numbers in bf16: a pair of rows takes as long
as 64² pairs of tokens, and the K/V of a row travel as long as those of 64 tokens. The attention kernel reaches 65 % of
the peak (Shah et al. 2024, "FlashAttention-3", figure 5). Latency is left out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from parlab.arguments import flag, whole
from parlab.arrays import Array, default_namespace, namespace
from parlab.sequence import FLASH_ATTENTION_3, AttentionShape, pair_flops, shard, unshard
from parlab.world import DGX_H100, Cluster, Comm, Link, Run, per_rank, run

MODEL = AttentionShape(S=2**20, H=32, G=32, D=128, itemsize=2)
ROW, NUMBERS, ITEMSIZE = 64, 8, 8  # the tokens that a row stands for; its numbers, in float64
PAIR = 4 * NUMBERS  # operations of a pair of rows
NO_MASK, CAUSAL_ZIGZAG = "ring", "ring, causal=True, layout=zigzag"  # by this name the film knows the mask
RING_GUESSES = {  # the usual wrong guesses of lesson 02, and the reasoning that leads there
    "mask": (2.0, "half of the pairs are work"),
    "tokens": (12.9, "there a tile takes as long as a hop"),
    "repair": (2, "the double ring waits for no message"),
}


def h100s(ranks_per_node: int = 1, *, free: bool = False) -> Cluster:
    """H100s on whose clock a row of the small arrays takes the time of 64 tokens.

    Args:
        ranks_per_node: how many of them NVLink joins; between the nodes there is InfiniBand.
        free: messages take no time.

    Raises:
        ValueError: no rank in a node, or `free` is no bool.

    >>> h100s().link(0, 1).picoseconds(2 * NUMBERS * ITEMSIZE * 256) / 1e9  # ms, of the K/V of 16384 tokens
    5.36870967
    """
    whole("ranks_per_node", ranks_per_node, 1)
    flag("free", free)
    real = DGX_H100.reaching(FLASH_ATTENTION_3)
    flops = real.device.flops * PAIR / pair_flops(ROW**2, 1, MODEL.H, MODEL.D)
    bytes_of_a_row = ROW * MODEL.token(backward=False).kv
    intra, inter = (
        Link(0.0, math.inf if free else link.bandwidth * 2 * NUMBERS * ITEMSIZE / bytes_of_a_row)
        for link in (real.intra, real.inter)
    )
    device = replace(real.device, flops=flops)
    return Cluster("H100s, one layer", device, ranks_per_node, intra, inter, ports=real.ports)


def tokens_on(gpus: int, each: int, layout: str = "contiguous") -> Any:
    """q, k or v of `each` tokens on each of `gpus` ranks: [1, 1, each/64, 8] zeros, since the clock looks at no values.

    Raises:
        ValueError: no ranks, or tokens that are no multiple of 64.
    """
    whole("gpus", gpus, 1)
    if whole("each", each, 1) % ROW:
        raise ValueError(f"each={each}: must be a multiple of {ROW}, the tokens that a row stands for")
    return per_rank(shard(default_namespace().zeros((1, 1, gpus * each // ROW, NUMBERS)), gpus, layout))


def ring_of(
    ring: Callable[..., Any],
    merge: Callable[..., Any],
    attend: Callable[..., Any],
    rule: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """The program of a rank, composed of the parts that a learner writes in lesson 02.

    Args:
        ring: `ring(comm, kv, attend_to, merge)`, of the exercise 02.ring.
        merge: of the exercise 02.merge.
        attend: `attend(q, k, v, causal)` returns (out, lse) of queries, keys and values `[rows, numbers]`.
        rule: `rule(rank, source, length)`, of the exercise 02.zigzag_tile: causal attention of zigzag shards. None: no
            mask.

    Returns:
        the program: `program(comm, q, k, v)` returns (out, lse) of its shards `[rows, numbers]`.
    """

    selects, name = (rule, CAUSAL_ZIGZAG) if rule else (_everything, NO_MASK)

    def program(comm: Comm, q: Array, k: Array, v: Array) -> Any:
        xp = namespace(q)

        def attend_to(source: int, kv: tuple[Array, Array]) -> tuple[Array, Array]:
            rows, keys, causal = selects(comm.rank, source, len(q))
            mine, theirs, values = q[rows], kv[0][keys], kv[1][keys]
            n = len(mine)
            out, lse = xp.zeros_like(q), xp.full(len(q), -xp.inf, dtype=q.dtype)  # of rows that the tile skips
            with comm.compute(name, flops=PAIR * (n * (n + 1) // 2 if causal else n * len(theirs))):
                out[rows], lse[rows] = attend(mine, theirs, values, causal)
            return out, lse

        return ring(comm, (k, v), attend_to, merge)

    return program


def _everything(rank: int, source: int, length: int) -> tuple[slice, slice, bool]:
    return slice(None), slice(None), False


def dealt(x: Array, gpus: int = 4, layout: str = "contiguous") -> Any:
    """The rows of `x` `[rows, numbers]`, dealt out to ranks: an argument of `run`.

    Raises:
        ValueError: rows that the layout cannot divide.
    """
    return per_rank(shard(x, gpus, layout, axis=0))


def same_as_one(done: Run, out: Array, layout: str = "contiguous") -> bool:
    """Whether the ranks' (out, lse) hold one device's `out` `[rows, numbers]`, to 1e-12 of its largest number."""
    made = unshard([found for found, _ in done.results], layout, axis=0)
    xp = namespace(out)
    return bool(xp.max(xp.abs(made - out)) <= 1e-12 * xp.max(xp.abs(out)))


def tokens_that_hide(program: Callable[..., Any]) -> int:
    """The fewest tokens on each of four H100s with which a zigzag ring of `ring_of` waits nowhere, in steps of 128.

    Raises:
        ValueError: it waits with 65 536 tokens on each, too.
    """

    def hidden(rows: int) -> bool:
        shards = dealt(default_namespace().zeros((4 * rows, NUMBERS)), layout="zigzag")
        shown = run(program, 4, shards, shards, shards, cluster=h100s()).timeline
        return all(shown.makespan == shown.busy(rank) for rank in range(4))

    tried = range(64, 1025, 2)  # zigzag halves the rows of a shard
    found = bisect_left(tried, True, key=hidden)
    if found == len(tried):
        raise ValueError(f"program={program!r:.60}: waits for messages with {tried[-1] * ROW} tokens on each rank")
    return tried[found] * ROW
