"""Which rank attends which heads, and the all-to-all between shards of the sequence and heads of all tokens.

Invariant: each query head belongs to one rank; a K/V head to every rank that has a query head which reads it.

Source: Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from parlab.arrays import Array, namespace
from parlab.sequence.attend import ALL, Heads, add_to
from parlab.sequence.costs import AttentionShape, Token
from parlab.sequence.exchange import swap_with_all
from parlab.sequence.layouts import positions
from parlab.world import Comm
from parlab.world.collectives import piece_sizes, pieces_of
from parlab.world.units import several


class HeadShare(NamedTuple):
    """The heads of one rank: its query heads, and the K/V heads that they read."""

    query_heads: slice
    kv_heads: slice
    reads: Heads  # which of these query heads read which of these K/V heads, counted from the first of each


def head_shares(H: int, G: int, size: int) -> list[HeadShare]:
    """Each rank's heads: H/P query heads, the first (H mod P) ranks one more; ValueError: more ranks than heads."""
    if size > H:
        most = several(H, "rank")
        raise ValueError(
            f"{size} ranks share {several(H, 'query head')}: a rank needs at least one, so use at most {most}"
        )
    shares, group = [], H // G
    for query_heads in pieces_of(piece_sizes(H, size)):
        first, last = query_heads.start, query_heads.stop
        kv_heads = slice(first // group, (last - 1) // group + 1)
        within = range((kv_heads.start + 1) * group, last, group)
        edges = [first, *within, last]  # of the readers of each K/V head
        readers = [slice(start - first, stop - first) for start, stop in pairwise(edges)]
        even = len({part.stop - part.start for part in readers}) == 1
        reads = ALL if even else [(part, slice(number, number + 1)) for number, part in enumerate(readers)]
        shares.append(HeadShare(query_heads, kv_heads, reads))
    return shares


Runs = list[tuple[slice, slice]]  # of a rank's runs of tokens: where in its shard, and where in the whole sequence


class HeadExchange:
    """The all-to-all between shards of the sequence and heads of all tokens, among the ranks of `comm`.

    `shares` says which heads each rank gets, and `runs` where its shard's tokens stand (`token_runs`).
    """

    def __init__(self, comm: Comm, shares: list[HeadShare], runs: list[Runs], label: str) -> None:
        self.comm, self.shares, self.runs, self.label = comm, shares, runs, label
        self.heads = shares[comm.rank].reads  # for `attend`

    def to_heads(self, queries: Sequence[Array], keys: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """All heads of this rank's tokens -> its heads of all tokens, in their order: `[B, H, S/P, ...]` -> `[B, H/P,
        S, ...]`, and for keys G.
        """
        comm, runs, arrays = self.comm, self.runs, [*queries, *keys]
        heads, length = self._heads_of_ranks(len(queries), len(keys)), queries[0].shape[2]
        made = [
            _zeros(x, own.stop - own.start, length * comm.size) for x, own in zip(arrays, heads[comm.rank], strict=True)
        ]
        comm.hold("heads", *made)
        gives = [_of_shard(arrays, heads[rank], runs[comm.rank]) for rank in range(comm.size)]
        self._deliver(gives, [_of_whole(made, of_rank) for of_rank in runs])
        return made[: len(queries)], made[len(queries) :]

    def to_tokens(self, queries: Sequence[Array], keys: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """The inverse of `to_heads`. The values that several ranks have for one K/V head are summed."""
        comm, runs, arrays = self.comm, self.runs, [*queries, *keys]
        heads, length = self._heads_of_ranks(len(queries), len(keys)), queries[0].shape[2] // comm.size
        made = [_zeros(x, last.stop, length) for x, last in zip(arrays, heads[-1], strict=True)]
        comm.hold("heads", *made)
        targets = [_of_shard(made, heads[rank], runs[comm.rank]) for rank in range(comm.size)]
        self._deliver([_of_whole(arrays, of_rank) for of_rank in runs], targets)
        return made[: len(queries)], made[len(queries) :]

    def _heads_of_ranks(self, queries: int, keys: int) -> list[list[slice]]:
        """Of each rank, its heads in each of so many arrays of query heads and of K/V heads."""
        return [[share.query_heads] * queries + [share.kv_heads] * keys for share in self.shares]

    def _deliver(self, gives: list[list[Array]], targets: list[list[Array]]) -> None:
        """The all-to-all: `gives[rank]` goes to each rank; what comes is added to `targets[source]`, 0 at first."""
        for src, pieces in swap_with_all(self.comm, gives, targets, self.label):
            add_to(targets[src], pieces)
            del pieces  # no longer held when the next ones come


def token_runs(size: int, length: int, layout: str) -> list[Runs]:
    """Where the tokens of each rank stand in its shard, and where in the whole sequence, in its order."""
    chunks = 2 if layout == "zigzag" else 1  # a rank
    where = pieces_of([length // chunks] * chunks * size)
    chunks_of_ranks = positions(chunks * size, size, layout)
    return [[(where[number], where[chunk]) for number, chunk in enumerate(owned)] for owned in chunks_of_ranks]


def _zeros(like: Array, heads: int, rows: int) -> Array:
    shape = like.shape[0], heads, rows, *like.shape[3:]
    return namespace(like).zeros(shape, dtype=like.dtype, device=like.device)


def _of_shard(shards: Sequence[Array], heads: Sequence[slice], runs: Runs) -> list[Array]:
    """Views of these heads of a rank's tokens, one for each run of tokens."""
    return [x[:, h, here, ...] for x, h in zip(shards, heads, strict=True) for here, _ in runs]


def _of_whole(wholes: Sequence[Array], runs: Runs) -> list[Array]:
    """Views of a rank's tokens in arrays of all tokens, one for each run of them."""
    return [x[:, :, there, ...] for x in wholes for _, there in runs]


class LevelCost(NamedTuple):
    """The cost of one `HeadExchange`, in one direction, on one rank."""

    messages: int
    nbytes: int
    made: int  # bytes of its results
    arriving: int  # bytes of the largest message that comes


def share_token(shape: AttentionShape, share: HeadShare, *, backward: bool) -> Token:
    """Bytes of each token, of these heads."""
    H, G = (heads.stop - heads.start for heads in (share.query_heads, share.kv_heads))
    return shape.token(backward=backward, H=H, G=G)


def to_heads_cost(tokens: list[Token], rank: int, length: int) -> LevelCost:
    """`to_heads` of shards of `length` tokens; `tokens[rank]`: bytes of a token, of the heads of each rank."""
    nbytes = [length * (token.rows + token.kv) for token in tokens]
    mine, others = nbytes[rank], len(tokens) - 1
    return LevelCost(others, sum(nbytes) - mine, made=len(tokens) * mine, arriving=mine * min(others, 1))


def to_tokens_cost(all_heads: Token, tokens: list[Token], rank: int, length: int) -> LevelCost:
    """The same of `to_tokens`; `all_heads`: bytes of a token, of the heads of all ranks."""
    others = [length * token.result for token in tokens]
    mine = others.pop(rank)
    made = length * all_heads.result
    return LevelCost(len(others), len(others) * mine, made, arriving=max(others, default=0))


def most_held(levels: list[LevelCost]) -> int:
    """The most bytes held while the results of one level become those of the next, beside the first one's inputs."""
    made = accumulate(level.made for level in levels)
    return max(so_far + level.arriving for so_far, level in zip(made, levels, strict=True))
