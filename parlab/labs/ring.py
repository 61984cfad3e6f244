"""The exercises of notebook 02, ring attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.counts import bytes_sent, messages, ranks_in_words
from parlab.labs.difference import brief, difference, likely
from parlab.labs.exercise import Exercise
from parlab.labs.rank_programs import Case, check_results, check_rightwards, on_arrays
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong
from parlab.nn.attention import CAUSAL, attend_tile, attend_tile_backward, merge
from parlab.nn.dense_attention import dense_attention, dense_attention_backward
from parlab.nn.sums import row_dot
from parlab.sequence import RingSchedule, positions, shard, unmasked_pairs, unshard
from parlab.world import per_rank
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


@dataclass(frozen=True)
class MergeCase:
    """Two partial outputs `[size, D]`, log-sum-exps around `level`; `empty`: how many sides have a row without keys.

    `apart`: by how much the log-sum-exps of every second row are larger.
    """

    size: int
    level: float = 0.0
    empty: str = "no"
    D: int = 3
    seed: int = 0
    apart: float = 0.0

    def __str__(self) -> str:
        of = {"no": "", "one": ", one side without keys", "both": ", both sides without keys"}[self.empty]
        rows = f" and, in every second row, around {self.level + self.apart:g}" if self.apart else ""
        return f"{self.size} rows, lse around {self.level:g}{rows}{of}"


def _try_merge(trial: Trial, case: MergeCase) -> list[str]:
    random = np.random.default_rng([case.seed, case.size, round(abs(case.level))])
    outs = random.standard_normal((2, case.size, case.D))  # [side, rows, D]
    lses = case.level + random.standard_normal((2, case.size)) + case.apart * (np.arange(case.size) % 2)
    empty = {"no": [], "one": [(0, 0), (1, -1)], "both": [(0, 0), (1, 0)]}[case.empty]
    for side, row in empty:
        outs[side, row], lses[side, row] = 0.0, -np.inf
    result = trial.called(outs[0], lses[0], outs[1], lses[1])
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise Wrong(f"returned {brief(result)}, expected (out, lse)")
    mistakes = _mistakes(outs, lses)
    # exp(lse − merged lse) cannot be more exact than lse is: half a unit in its last place
    rtol = 16 * np.finfo(np.float64).eps * max(1.0, abs(case.level), abs(case.level + case.apart))
    for name, mine, right in zip(("out", "lse"), result, _exactly_merged(outs, lses), strict=True):
        wrong = difference(mine, right, rtol, atol=rtol)  # an lse near 0 is the sum of larger ones
        if wrong and isinstance(mine, np.ndarray) and mine.dtype == right.dtype and np.isnan(mine).any():
            raise Wrong(f"{name} holds NaN: {_nan_from(mine, lses)}")
        if wrong:
            same = ((cause, not difference(np.asarray(mine), array, rtol, rtol)) for cause, array in mistakes.items())
            raise Wrong(f"{name}: {wrong}", *likely(same))
    return ["out and lse equal those over all keys at once"]


ONE_MAXIMUM = "one maximum is subtracted in all rows; each row needs its own, the larger lse of its two sides"


def _nan_from(mine: Any, lses: Any) -> str:
    """The cause of NaN in `mine`, an out [rows, D] or an lse [rows]."""
    rows = np.isnan(mine).reshape(len(mine), -1).any(axis=1) & np.isfinite(lses).all(axis=0)
    if rows.any() and lses[:, rows].max() < lses.max() - 700:  # exp of it is 0
        return f"0/0 in a row: {ONE_MAXIMUM}"
    if rows.any():
        return f"exp(lse) is 0 or ∞ at an lse of {lses[0, rows][0]:.0f}; subtract the larger of both first"
    return "−inf − (−inf), 0/0 or ∞/∞; what weight has a side without keys?"


def _mistakes(outs: Any, lses: Any) -> dict[str, Any]:
    """The out or the lse that well-known mistakes give."""
    with np.errstate(all="ignore"):
        lse = np.logaddexp(*lses)  # [rows]
        weights = np.exp(lses - lse)[..., None]  # [side, rows, 1]
        inverted = np.exp(lse - lses)[..., None]  # [side, rows, 1]
        unscaled = np.exp(lses - lses.max(axis=0))[..., None]
        larger = np.where((lses[0] >= lses[1])[:, None], *outs)
        exponents = np.where(np.isneginf(lse), lses, lses - lse)[..., None]  # [side, rows, 1]
        of_other = np.exp(lses - np.where(np.isneginf(lses), 0.0, lses)[::-1])[..., None]  # [side, rows, 1]
        of_sum = np.exp(lses - lses.sum(axis=0))[..., None]  # [side, rows, 1]
        return {
            "the two are added without their weights exp(lse − merged lse)": outs[0] + outs[1],
            "the exponent has the wrong sign: a side has the weight exp(its lse − merged lse), at most 1": (
                (inverted * outs).sum(axis=0)
            ),
            "the weights changed places: exp(lse_a − merged lse) belongs to out_a": (weights[::-1] * outs).sum(axis=0),
            "the weights do not add up to 1: divide by their sum": (unscaled * outs).sum(axis=0),
            "exp is missing: lse − merged lse is the logarithm of a weight": (exponents * outs).sum(axis=0),
            "exp(lse_a − lse_b) is not yet the weight of a: subtract the merged lse": of_other[0] * outs[0] + outs[1],
            "each has the weight exp(its lse − merged lse), not its lse − the other's": (of_other * outs).sum(axis=0),
            "subtract the merged lse, not the other side's: that is −∞ where this has no keys": (
                (of_other[0] * outs[0] + outs[1]) / (1 + of_other[0])
            ),
            "a plain mean: the side with more weight must count more": (outs[0] + outs[1]) / 2,
            ONE_MAXIMUM: np.where((lse > lses.max() - 700)[:, None], (weights * outs).sum(axis=0), 0.0),
            "the side with the larger lse alone: both count, by their weights": larger,
            "log-sum-exps are not added: exp(lse) is": lses[0] + lses[1],
            "the merged lse is not lse_a + lse_b: exp(lse) are added": (of_sum * outs).sum(axis=0),
            "the larger lse alone: add exp(lse) of both": lses.max(axis=0),
            "a row without keys has the lse −∞, the log of an empty sum": np.where(np.isneginf(lse), 0.0, lse),
            "exp(lse) is 0 or ∞ at such an lse: subtract the larger of both first": np.log(np.exp(lses).sum(axis=0)),
        }


def _exactly_merged(outs: Any, lses: Any) -> tuple[Any, Any]:
    """(out, lse), nearly exact: computed in the longest floats, from differences of lse, which are exact."""
    outs, lses = outs.astype(np.longdouble), lses.astype(np.longdouble)
    top = lses.max(axis=0)  # [rows]
    shift = np.where(np.isneginf(top), 0, top)
    weights = np.exp(lses - shift)  # [side, rows]
    total = weights.sum(axis=0)
    out = (weights[..., None] * outs).sum(axis=0) / np.where(total == 0, 1, total)[:, None]
    with np.errstate(divide="ignore"):
        return out.astype(np.float64), (shift + np.log(total)).astype(np.float64)


def _draw_rows(random: np.random.Generator, size: int) -> MergeCase:
    level = float(random.choice([0, 800, -800, 1e4, -1e4]))
    return MergeCase(
        size, level, str(random.choice(["no", "one", "both"])), size, apart=float(random.choice([0, 2000]))
    )


MERGE = Exercise(
    "02.merge",
    "merge_two(out_a, lse_a, out_b, lse_b)",
    [
        MergeCase(2),
        MergeCase(4, empty="one"),
        MergeCase(4, empty="both"),
        MergeCase(8, level=1e4),
        MergeCase(8, level=-1e4, empty="one"),
        MergeCase(8, apart=2000),
    ],
    _try_merge,
    _draw_rows,
    solved_by=("parlab.nn.attention.merge",),
)


def _shares(random: np.random.Generator, size: int, longest: int) -> tuple[int, ...]:
    return size, int(random.integers(longest // 2, longest + 1))


def _try_bring_home(trial: Trial, case: Case) -> list[str]:
    x, P = case.inputs(), case.size
    done = trial.ran(trial.answer, P, per_rank(x))
    shares = [[one[rank] for one in x] for rank in range(P)]
    check_results(done, x, [sum(of_rank) for of_rank in shares], shares)
    check_rightwards(done, "a gradient travels with its K/V, which go around to comm.right")
    return [
        messages(done).check(
            "P",
            P if P > 1 else 0,
            "a gradient starts where its K/V start, at home; after P − 1 hops it is one rank short of home",
            exact=True,
        ),
        bytes_sent(done).check(
            "P · n", case.nbytes if P > 1 else 0, "a rank holds one gradient at a time, and sends that one alone"
        ),
    ]


BRING_HOME = on_arrays("02.bring_home", "bring_home(comm, x)", _try_bring_home, _shares)

EXERCISES = (ZIGZAG_TILE, MERGE, BRING_HOME)
