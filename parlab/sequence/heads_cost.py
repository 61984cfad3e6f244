"""The cost of Ulysses and USP: of the all-to-alls that turn shards into heads and back, and of the ring in between.

Begin at the end, with the two costs; above them stands the all-to-all, level by level.
"""

from __future__ import annotations

from typing import NamedTuple

from parlab.sequence.costs import AttentionShape, RankCost, TokenBytes
from parlab.sequence.heads import RankHeads, heads_of_ranks
from parlab.sequence.ring import plain_ring_cost
from parlab.sequence.two_levels import heads_of_nodes, ranks_inside
from parlab.world.groups import checked_group


class LevelCost(NamedTuple):
    """The cost of one level of an exchange (`head_levels`), in one direction, on one rank."""

    messages: int
    nbytes: int
    made: int  # bytes of its results
    arriving: int  # bytes of the largest message that comes


def token_of(shape: AttentionShape, own: RankHeads, *, backward: bool) -> TokenBytes:
    """Bytes of each token, of these heads."""
    H, G = (heads.stop - heads.start for heads in own)
    return shape.token(backward=backward, H=H, G=G)


def to_heads_cost(tokens: list[TokenBytes], rank: int, length: int) -> LevelCost:
    """`to_heads` of shards of `length` tokens; `tokens[rank]`: bytes of a token, of the heads of each rank."""
    nbytes = [length * (token.rows + token.kv) for token in tokens]
    mine, others = nbytes[rank], len(tokens) - 1
    return LevelCost(others, sum(nbytes) - mine, made=len(tokens) * mine, arriving=mine * min(others, 1))


def to_tokens_cost(all_heads: TokenBytes, tokens: list[TokenBytes], rank: int, length: int) -> LevelCost:
    """The same of `to_tokens`; `all_heads`: bytes of a token, of the heads of all ranks."""
    others = [length * token.result for token in tokens]
    mine = others.pop(rank)
    made = length * all_heads.result
    return LevelCost(len(others), len(others) * mine, made, arriving=max(others, default=0))


def most_held(levels: list[LevelCost], given: int) -> int:
    """The most bytes held while each level makes its results out of those of the level before, the first of `given`."""
    most = 0
    for level in levels:
        most, given = max(most, given + level.made + level.arriving), level.made
    return most


class ExchangeCost(NamedTuple):
    """The cost of turning shards into heads and back, on one rank."""

    token: TokenBytes  # bytes of one token, of the heads of this rank
    messages: int
    nbytes: int
    to_heads: int  # the most bytes held on the way to heads, beside the shards
    to_tokens: int  # on the way back, the heads' results among them


def exchange_cost(
    shape: AttentionShape, ranks: int, rank: int, c: int, ranks_per_node: int | None, *, backward: bool
) -> ExchangeCost:
    """The cost of `to_heads` and `to_tokens` on so many ranks with c tokens each; `ranks_per_node` as `head_levels`."""
    heads, all_heads = heads_of_ranks(shape.H, shape.G, ranks), shape.token(backward=backward)
    tokens = [token_of(shape, own, backward=backward) for own in heads]
    if ranks_per_node is None:
        to_heads = [to_heads_cost(tokens, rank, c)]
        to_tokens = [to_tokens_cost(all_heads, tokens, rank, c)]
    else:
        node, place = divmod(rank, ranks_per_node)
        nodes = [token_of(shape, own, backward=backward) for own in heads_of_nodes(heads, ranks_per_node)]
        of_node = tokens[node * ranks_per_node : (node + 1) * ranks_per_node]
        longer = c * len(nodes)  # the tokens of this place, of all nodes
        to_heads = [to_heads_cost(nodes, node, c), to_heads_cost(of_node, place, longer)]
        to_tokens = [to_tokens_cost(nodes[node], of_node, place, longer), to_tokens_cost(all_heads, nodes, node, c)]
    messages = sum(level.messages for level in to_heads + to_tokens)
    nbytes = sum(level.nbytes for level in to_heads + to_tokens)
    results = c * ranks * tokens[rank].result
    return ExchangeCost(tokens[rank], messages, nbytes, most_held(to_heads, 0), most_held(to_tokens, results))


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
    in_node = ranks_inside(ulysses, ranks_per_node, size)
    exchange = exchange_cost(shape, ulysses, rank % ulysses, c, in_node, backward=backward)
    heads = exchange.token
    ring = plain_ring_cost(heads, C, size // ulysses, backward=backward)

    not_heads = heads.own - heads.rows - heads.kv  # `out`, which a backward has but does not turn into heads
    attending = ring.held - C * not_heads
    own = c * shape.token(backward=backward).own
    held = own + max(exchange.to_heads, attending, exchange.to_tokens)
    return RankCost(exchange.messages + ring.messages, exchange.nbytes + ring.nbytes, held)
