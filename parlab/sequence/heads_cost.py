"""The cost of Ulysses and USP: of the all-to-alls that turn shards into heads and back, and of the ring in between.

The two costs stand first; below them the exchange, which is both all-to-alls, then each level of one (`head_levels`).
"""

from __future__ import annotations

from typing import NamedTuple

from parlab.sequence.costs import AttentionShape, RankCost, TokenBytes
from parlab.sequence.heads import RankHeads, heads_of_ranks
from parlab.sequence.ring import plain_ring_cost
from parlab.sequence.two_levels import heads_of_nodes, ranks_inside
from parlab.world.groups import checked_group


def ulysses_cost(
    shape: AttentionShape, size: int, rank: int = 0, *, ranks_per_node: int | None = None, backward: bool = False
) -> RankCost:
    """The messages, bytes and held bytes of `rank`: two all-to-alls of P − 1 messages each, or in two levels k + g − 2.
    It is USP with all ranks in one group.

    Forward, where P divides H = G: q, k, v and out, 4·S·E·(P − 1)/P² elements (E = H·D), and lse. Backward q, dout,
    lse, delta, k and v become heads, and dq, dk and dv come home.
    """
    return usp_cost(shape, size, rank, ulysses=size, ranks_per_node=ranks_per_node, backward=backward)


def usp_cost(
    shape: AttentionShape,
    size: int,
    rank: int = 0,
    *,
    ulysses: int,
    ranks_per_node: int | None = None,
    backward: bool = False,
) -> RankCost:
    """The messages, bytes and held bytes of `rank`: Ulysses on U ranks with their part of the sequence, and a ring of
    P/U with its heads. `ranks_per_node` as `usp_attention`.

    >>> shape = AttentionShape(S=1024, H=8, G=8, D=64, itemsize=4)
    >>> usp_cost(shape, 4, ulysses=1)[:2], usp_cost(shape, 4, ulysses=2)[:2]
    ((3, 3145728), (3, 2101248))
    """
    c = shape.shard_length(size, rank)
    C = c * checked_group("ulysses", ulysses, size)  # the tokens of a group
    per_node = ranks_inside(ulysses, ranks_per_node, size)
    exchange = exchange_cost(shape, ulysses, rank % ulysses, c, per_node, backward=backward)
    heads = exchange.token
    ring = plain_ring_cost(heads, C, size // ulysses, backward=backward)

    out = heads.own - heads.queries - heads.kv  # which a backward has, but does not turn into heads
    attending = ring.held - C * out
    own = c * shape.token(backward=backward).own
    held = own + max(exchange.held_there, attending, exchange.held_back)
    return RankCost(exchange.messages + ring.messages, exchange.nbytes + ring.nbytes, held)


class ExchangeCost(NamedTuple):
    """The cost of turning shards into heads and back, on one rank."""

    token: TokenBytes  # bytes of one token, of the heads of this rank
    messages: int
    nbytes: int
    held_there: int  # the most bytes held in `to_heads`, beside the shards
    held_back: int  # in `to_tokens`, the heads' results among them


def exchange_cost(
    shape: AttentionShape, ranks: int, rank: int, c: int, ranks_per_node: int | None, *, backward: bool
) -> ExchangeCost:
    """The cost of `to_heads` and `to_tokens` on so many ranks with c tokens each; `ranks_per_node` as `head_levels`."""
    heads = heads_of_ranks(shape.H, shape.G, ranks)
    of_all = shape.token(backward=backward)  # bytes of a token, of all heads
    of_ranks = [token_of(shape, own, backward=backward) for own in heads]
    if ranks_per_node is None:
        there = [to_heads_cost(of_ranks, rank, c)]
        back = [to_tokens_cost(of_all, of_ranks, rank, c)]
    else:
        node, place = divmod(rank, ranks_per_node)
        of_nodes = [token_of(shape, own, backward=backward) for own in heads_of_nodes(heads, ranks_per_node)]
        of_neighbours = of_ranks[node * ranks_per_node : (node + 1) * ranks_per_node]
        longer = c * len(of_nodes)  # the tokens of this place, of all nodes
        there = [to_heads_cost(of_nodes, node, c), to_heads_cost(of_neighbours, place, longer)]
        back = [to_tokens_cost(of_nodes[node], of_neighbours, place, longer), to_tokens_cost(of_all, of_nodes, node, c)]
    messages = sum(level.messages for level in there + back)
    nbytes = sum(level.nbytes for level in there + back)
    results = c * ranks * of_ranks[rank].result
    return ExchangeCost(of_ranks[rank], messages, nbytes, most_held(there, 0), most_held(back, results))


class LevelCost(NamedTuple):
    """The cost of one level of an exchange (`head_levels`), in one direction, on one rank."""

    messages: int
    nbytes: int
    made: int  # bytes of its results
    arriving: int  # bytes of the largest message that comes


def to_heads_cost(of_ranks: list[TokenBytes], rank: int, length: int) -> LevelCost:
    """`to_heads` of shards of `length` tokens; `of_ranks[rank]`: bytes of a token, of the heads of each rank."""
    nbytes = [length * (token.queries + token.kv) for token in of_ranks]
    mine, others = nbytes[rank], len(of_ranks) - 1
    return LevelCost(others, sum(nbytes) - mine, made=len(of_ranks) * mine, arriving=mine * min(others, 1))


def to_tokens_cost(of_all: TokenBytes, of_ranks: list[TokenBytes], rank: int, length: int) -> LevelCost:
    """The same of `to_tokens`; `of_all`: bytes of a token, of the heads of all ranks."""
    others = [length * token.result for token in of_ranks]
    mine = others.pop(rank)
    made = length * of_all.result
    return LevelCost(len(others), len(others) * mine, made, arriving=max(others, default=0))


def most_held(levels: list[LevelCost], given: int) -> int:
    """The most bytes held while each level makes its results, out of `given` bytes or those of the level before.

    >>> levels = [LevelCost(1, 0, made=8, arriving=2), LevelCost(1, 0, made=8, arriving=4)]
    >>> most_held(levels, given=6)  # 6 + 8 + 2 in the first, 8 + 8 + 4 in the second
    20
    """
    most = 0
    for level in levels:
        most, given = max(most, given + level.made + level.arriving), level.made
    return most


def token_of(shape: AttentionShape, own: RankHeads, *, backward: bool) -> TokenBytes:
    """Bytes of each token, of these heads."""
    H, G = (heads.stop - heads.start for heads in own)
    return shape.token(backward=backward, H=H, G=G)
