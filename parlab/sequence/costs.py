"""The cost of attention on paper: work, and the bytes of a token.

`S` tokens, `size` ranks (P), shards of c = S/P tokens, `H` query heads, `G` key/value heads, `D` head size, `B` batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from parlab.arguments import checked_rank, flag, whole
from parlab.sequence.layouts import checked_sequence


class TokenBytes(NamedTuple):
    """Bytes of one token's arrays, all its heads, in one pass."""

    queries: int  # q, and backward dout, lse and delta: the arrays of queries that the attending rank needs
    kv: int  # K and V
    own: int  # the inputs of the pass: queries, K and V; backward also out
    sums: int  # the queries' results while they are summed: out and lse; backward dq
    dkv: int  # dK and dV while they are summed; forward 0
    result: int  # the results of the pass, dK and dV still as they are summed


@dataclass(frozen=True)
class AttentionShape:
    """The sizes of one attention. `itemsize` is the size of an element of q, k and v, in bytes."""

    S: int
    H: int
    G: int
    D: int
    itemsize: int
    B: int = 1

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            whole(name, size, least=1)
        if self.H % self.G:
            raise ValueError(f"H={self.H}: must be a multiple of G={self.G}, as many query heads for each K/V head")

    def shard_length(self, size: int, rank: int = 0) -> int:
        """S/P, the tokens of `rank`, one of `size` ranks; ValueError: it is none of them, or P does not divide S."""
        checked_sequence(self.S, whole("size", size, 1))
        checked_rank(rank, "rank", size)
        return self.S // size

    def token(self, *, backward: bool, H: int | None = None, G: int | None = None) -> TokenBytes:
        """Bytes of each token, of all heads or of so many query and K/V heads. Sums, lse and gradients on their way
        take 4 bytes an element or more.

        >>> AttentionShape(S=64, H=4, G=2, D=8, itemsize=2).token(backward=False)  # q has 32 elements, lse 4
        TokenBytes(queries=64, kv=64, own=128, sums=144, dkv=0, result=80)
        """
        flag("backward", backward)
        H, G = H or self.H, G or self.G
        wide = max(self.itemsize, 4)
        of_q, of_kv = self.B * H * self.D, 2 * self.B * G * self.D  # elements
        q, kv, lse = of_q * self.itemsize, of_kv * self.itemsize, self.B * H * wide  # bytes
        if backward:
            queries = 2 * q + 2 * lse  # q, dout, lse, delta
            dkv = of_kv * wide
            return TokenBytes(queries, kv, own=queries + kv + q, sums=of_q * wide, dkv=dkv, result=q + dkv)
        return TokenBytes(q, kv, own=q + kv, sums=of_q * wide + lse, dkv=0, result=q + lse)


class RankCost(NamedTuple):
    """The messages and bytes that one rank sends, and the most bytes that it holds beside the results of one tile."""

    messages: int
    nbytes: int
    held: int


def unmasked_pairs(S: int, size: int, layout: str = "contiguous", *, causal: bool = True) -> list[int]:
    """The (query, key) pairs that each rank attends, which are its work: a pair costs 4·D flops a head.

    >>> unmasked_pairs(16, 4, "contiguous"), unmasked_pairs(16, 4, "zigzag"), unmasked_pairs(16, 4, "striped")
    ([10, 26, 42, 58], [34, 34, 34, 34], [28, 32, 36, 40])
    """
    flag("causal", causal)
    checked_sequence(whole("S", S), whole("size", size), layout)
    c, ranks = S // size, range(size)
    if not causal:
        return [c * S for _ in ranks]
    own = c * (c + 1) // 2
    if layout == "contiguous":
        return [own + rank * c * c for rank in ranks]  # all keys of the ranks before
    if layout == "zigzag":
        return [own + (size - 1) * c * c // 2 for _ in ranks]  # half of the keys of each other rank
    return [(rank + 1) * own + (size - 1 - rank) * (own - c) for rank in ranks]  # later ranks': without their diagonal


def score_memory_savings(P: int) -> float:
    """The share of plain attention's rows of scores that a ring of P ranks saves each of them, 1 − 1/P: a rank has the
    rows of S/P queries, S/P × S scores a head in all its steps, and one rank alone has S × S. A kernel that forms its
    scores in tiles, such as FlashAttention, stores none of them, on one rank or on many.

    With P at least 1, or it is a ValueError. Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers for
    Near-Infinite Context", section 3.

    >>> [score_memory_savings(P) for P in (1, 2, 4, 8)]
    [0.0, 0.5, 0.75, 0.875]
    """
    return 1 - 1 / whole("P", P, least=1)


def pair_flops(pairs: int, B: int, H: int, D: int, *, backward: bool = False) -> int:
    """The flops of `pairs` unmasked pairs: two products forward, q kᵀ and p v; five of the same size backward."""
    whole("B", B, least=1)
    whole("H", H, least=1)
    whole("D", D, least=1)
    flag("backward", backward)
    return (10 if backward else 4) * pairs * B * H * D
