"""The exercise 02.zigzag_tile: which tile of a zigzag mask a rank attends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.counts import ranks_in_words
from parlab.labs.difference import brief, likely
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong
from parlab.nn.attention import CAUSAL, attend_tile, attend_tile_backward, merge
from parlab.nn.dense_attention import dense_attention, dense_attention_backward
from parlab.nn.sums import row_dot
from parlab.sequence import RingSchedule, positions, shard, unmasked_pairs, unshard
from parlab.world.units import several

TOLERANCE = 1e-12  # of the largest gradient


@dataclass(frozen=True)
class RingCase:
    """`size` ranks with zigzag shards of `length` tokens; values are drawn from `seed`."""

    size: int
    length: int
    seed: int = 0

    def __str__(self) -> str:
        return f"{ranks_in_words(self.size)}, {several(self.length, 'token')} on each"

    @property
    def tiles(self) -> list[tuple[int, int, int]]:
        """The arguments of the rule for each tile: (rank, source, length); a rank's own, which is given, comes last."""
        found = [(rank, source, self.length) for rank in range(self.size) for source in range(self.size)]
        return sorted(found, key=lambda tile: tile[0] == tile[1])


Rule = dict[tuple[int, int], tuple[slice, slice, bool]]  # of rank and source: queries, keys, whether causal


def zigzag_rule(rank: int, source: int, length: int) -> tuple[slice, slice, bool]:
    """The tile of zigzag shards of `length` tokens: the library's rule, in the form of the exercise 02.zigzag_tile.

    Args:
        rank: whose queries they are.
        source: whose keys they are.
        length: tokens of a shard, an even number.

    Returns:
        the slice of the queries, the slice of the keys, and whether they have a causal mask.

    >>> zigzag_rule(1, 2, 4)  # our late queries see all keys of a later rank
    (slice(2, 4, None), slice(0, 4, None), False)
    """
    tile = RingSchedule(rank, max(rank, source) + 1).tile(source, length, "zigzag")  # with more ranks the same
    assert tile is not None
    return tile.queries, tile.keys, tile.diagonal is not None


def _try_zigzag_tile(trial: Trial, case: RingCase) -> list[str]:
    results = trial.called_each(case.tiles)
    rule = {given[:2]: _checked_form(given, result) for given, result in zip(case.tiles, results, strict=True)}
    load = [sum(_checked_tile(rule, rank, source, case) for source in range(case.size)) for rank in range(case.size)]
    right = unmasked_pairs(case.size * case.length, case.size, "zigzag")
    error = _gradient_error(rule, case) if case.seed == 0 else 0.0  # in the fixed cases: the pairs say the same
    if not error <= TOLERANCE:
        raise Wrong(f"the pairs are right, but attended by your rule dq, dk and dv are off by {error:.1e}")
    return [
        f"pairs of the slowest rank: {max(load)}; closed form: c(c + 1)/2 + (P − 1)c²/2 = {max(right)}",
        f"attended by your rule: dq, dk and dv equal dense attention's to {TOLERANCE:.0e}: True",
    ]


def _checked_form(given: tuple[int, ...], result: Any) -> tuple[slice, slice, bool]:
    kinds = [type(part) for part in result] if isinstance(result, tuple | list) else []
    call = f"zigzag_tile{given}"
    if kinds[:2] != [slice, slice] or kinds[2:] not in ([bool], [np.bool_]):
        raise Wrong(f"{call} returned {brief(result)}, expected (slice of queries, slice of keys, whether causal)")
    for part in result[:2]:
        if not all(end is None or isinstance(end, int | np.integer) for end in (part.start, part.stop, part.step)):
            raise Wrong(
                f"{call} returned {part}: the ends of a slice are whole numbers",
                "likely cause: `/` gives a float, `//` a whole number",
            )
        if part.step == 0:
            raise Wrong(f"{call} returned {part}: the step of a slice is not 0")
    return result[0], result[1], bool(result[2])


def _checked_tile(rule: Rule, rank: int, source: int, case: RingCase) -> int:
    """The number of pairs that the rule attends in one tile; `Wrong` if a causal mask leaves other pairs."""
    owned = [np.array(tokens) for tokens in positions(case.size * case.length, case.size, "zigzag")]
    wanted = owned[rank][:, None] >= owned[source][None, :]  # [c, c]
    queries, keys, causal = rule[rank, source]
    attended = np.zeros_like(wanted)
    selected = np.ones_like(wanted[queries, keys])
    attended[queries, keys] = np.tril(selected) if causal else selected
    where = f"rank {rank}, K/V of rank {source}"
    for pairs, has, lacks in ((wanted & ~attended, "should see", "does"), (attended & ~wanted, "sees", "should")):
        if pairs.any():
            query, key = map(int, np.argwhere(pairs)[0])
            raise Wrong(
                f"{where}: {int(pairs.sum())} pairs are wrong; token {owned[rank][query]} {has} token "
                f"{owned[source][key]}, but {lacks} not (query {query} and key {key} of the shards)",
                *likely(
                    (cause, (mask == attended).all()) for cause, mask in _known_masks(rank, source, wanted).items()
                ),
            )
    return int(attended.sum())


def _known_masks(rank: int, source: int, wanted: Any) -> dict[str, Any]:
    """The pairs [c, c] of a tile that each well-known mistake attends."""
    half, everything = len(wanted) // 2, np.ones_like(wanted)
    early_keys, late_queries = np.zeros_like(wanted), np.zeros_like(wanted)
    early_keys[:, :half] = late_queries[half:] = True
    masked = np.zeros_like(wanted)
    if rank == source:
        masked[:, :half] = np.tril(early_keys)[:, :half]
        return {
            "a rank's own tile has a causal mask: some of its keys are later than its queries": everything,
            "of a rank's own tile all queries and all keys are selected: the mask does the rest": masked,
        }
    chosen = np.s_[:, :half] if rank > source else np.s_[half:]
    masked[chosen] = np.tril(everything[chosen])
    ask = f"which piece of rank {source} lies before which piece of rank {rank}?"
    return {
        f"the two cases are swapped: {ask}": late_queries if rank > source else early_keys,
        f"the wrong half of the tile: {ask}": ~wanted,
        "half of the tile is later than its queries: nobody sees it": everything,
        "the right half, but it needs no mask: there every query sees every key": masked,
        "a mask by places in the shards: a tile of two ranks needs none, half of it is seen whole": np.tril(everything),
        "a later source is skipped whole, as with contiguous shards: zigzag's has early tokens too": ~everything,
    }


def _gradient_error(rule: Rule, case: RingCase) -> float:
    """The largest relative difference of the rule's gradients from those of dense attention."""
    random = np.random.default_rng([case.seed, case.size, case.length])
    S = case.size * case.length
    q, dout = random.standard_normal((2, 1, 2, S, 4))  # [B, H, S, D]
    k, v = random.standard_normal((2, 1, 1, S, 4))  # [B, G, S, D]
    out, lse = dense_attention(q, k, v, causal=True)
    right = dense_attention_backward(dout, q, k, v, out, lse, causal=True)
    shards = [shard(x, case.size, "zigzag") for x in (q, k, v, dout)]
    gradients = [[np.zeros_like(one) for one in shards[number]] for number in (0, 1, 2)]
    for rank in range(case.size):
        _attend(rule, rank, shards, gradients)
    made = [unshard(of_all, "zigzag") for of_all in gradients]
    return max(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in zip(made, right, strict=True))


def _attend(rule: Rule, rank: int, shards: list[list[Any]], gradients: list[list[Any]]) -> None:
    """Attend with one rank's queries, forward and backward, and add to the gradients of all ranks."""
    (q, dout), size = (shards[number][rank] for number in (0, 3)), len(shards[0])
    out, lse = np.zeros_like(q), np.full(q.shape[:-1], -np.inf)
    tiles = [(source, *rule[rank, source]) for source in range(size)]
    for source, rows, columns, causal in tiles:
        k, v = (shards[number][source][:, :, columns] for number in (1, 2))
        part = attend_tile(q[:, :, rows], k, v, diagonal=CAUSAL if causal else None)
        out[:, :, rows], lse[:, :, rows] = merge(out[:, :, rows], lse[:, :, rows], *part)
    delta = row_dot(dout, out)
    for source, rows, columns, causal in tiles:
        k, v = (shards[number][source][:, :, columns] for number in (1, 2))
        diagonal = CAUSAL if causal else None
        given = dout[:, :, rows], q[:, :, rows], k, v, lse[:, :, rows], delta[:, :, rows]
        dq, dk, dv = attend_tile_backward(*given, diagonal=diagonal)
        gradients[0][rank][:, :, rows] += dq
        gradients[1][source][:, :, columns] += dk
        gradients[2][source][:, :, columns] += dv


ZIGZAG_TILE = Exercise(
    "02.zigzag_tile",
    "zigzag_tile(rank, source, length)",
    [RingCase(size, length) for size in (2, 1, 3, 4, 8) for length in (2, 6)],
    _try_zigzag_tile,
    lambda random, size: RingCase(size, 2 * int(random.integers(1, 16))),
    solved_by=("parlab.labs.zigzag_rule",),
)

EXERCISES = (ZIGZAG_TILE,)
