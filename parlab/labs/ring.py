"""The exercises of notebook 02, ring attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.difference import difference
from parlab.labs.exercise import Exercise, Wrong
from parlab.labs.functions import brief, called
from parlab.labs.rank_programs import Count, RankProgram, bytes_sent, growing, messages
from parlab.nn.attention import CAUSAL, attend_block, attend_block_backward, merge, row_dot
from parlab.nn.dense_attention import dense_attention, dense_attention_backward
from parlab.sequence import positions, shard, unmasked_pairs, unshard


@dataclass(frozen=True)
class RingCase:
    """`size` ranks with zigzag shards of `length` tokens."""

    size: int
    length: int

    def __str__(self) -> str:
        return f"{self.size} ranks, {self.length} tokens on each"


Rule = Callable[[int, int], tuple[slice, slice, bool]]  # from rank and source: queries, keys, whether causal


def _zigzag(answer: Callable[..., Any], case: RingCase) -> list[str]:
    def rule(rank: int, source: int) -> tuple[slice, slice, bool]:
        result = called(answer, "zigzag_block(rank, source, size, length)", rank, source, case.size, case.length)
        kinds = [type(part) for part in result] if isinstance(result, tuple) else []
        if kinds != [slice, slice, bool]:
            raise Wrong(f"returned {brief(result)}, expected (slice of queries, slice of keys, whether causal)")
        return result

    load = [sum(_checked_block(rule, rank, source, case) for source in range(case.size)) for rank in range(case.size)]
    right = unmasked_pairs(case.size * case.length, case.size, "zigzag")
    return [
        f"pairs of the slowest rank: {max(load)}; closed form: c(c + 1)/2 + (N − 1)c²/2 = {max(right)}",
        _gradients(rule, case),
    ]


def _checked_block(rule: Rule, rank: int, source: int, case: RingCase) -> int:
    """How many pairs the rule attends in one block; `Wrong` if they are not those that a causal mask leaves."""
    owned = [np.array(tokens) for tokens in positions(case.size * case.length, case.size, "zigzag")]
    wanted = owned[rank][:, None] >= owned[source][None, :]  # [c, c]
    queries, keys, causal = rule(rank, source)
    attended = np.zeros_like(wanted)
    block = np.ones_like(wanted[queries, keys])
    attended[queries, keys] = np.tril(block) if causal else block
    where = f"rank {rank}, K/V of rank {source}"
    for pairs, what in ((wanted & ~attended, "should see but does not"), (attended & ~wanted, "sees but should not")):
        if pairs.any():
            query, key = map(int, np.argwhere(pairs)[0])
            raise Wrong(
                f"{where}: {int(pairs.sum())} pairs are wrong; token {owned[rank][query]} {what} token "
                f"{owned[source][key]} (query {query} and key {key} of the shards)"
            )
    return int(attended.sum())


def _gradients(rule: Rule, case: RingCase) -> str:
    """Attend by the rule, forward and backward; the line that compares with dense attention."""
    random = np.random.default_rng([case.size, case.length])
    S = case.size * case.length
    q, dout = random.standard_normal((2, 1, 2, S, 4))  # [B, H, S, D]
    k, v = random.standard_normal((2, 1, 1, S, 4))  # [B, G, S, D]
    out, lse = dense_attention(q, k, v, causal=True)
    right = dense_attention_backward(dout, q, k, v, out, lse, causal=True)
    pieces = [shard(x, case.size, "zigzag") for x in (q, k, v, dout)]
    gradients = [[np.zeros_like(piece) for piece in pieces[number]] for number in (0, 1, 2)]
    for rank in range(case.size):
        _attend(rule, rank, pieces, gradients)
    made = [unshard(shards, "zigzag") for shards in gradients]
    error = max(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in zip(made, right, strict=True))
    return f"attended by your rule: dq, dk and dv equal dense attention's to 1e-12: {error <= 1e-12}"


def _attend(rule: Rule, rank: int, pieces: list[list[Any]], gradients: list[list[Any]]) -> None:
    """One rank's attention over all blocks, forward and backward, added into the gradients of all ranks."""
    (q, dout), size = (pieces[number][rank] for number in (0, 3)), len(pieces[0])
    out, lse = np.zeros_like(q), np.full(q.shape[:-1], -np.inf)
    blocks = [(source, *rule(rank, source)) for source in range(size)]
    for source, rows, columns, causal in blocks:
        k, v = (pieces[number][source][:, :, columns] for number in (1, 2))
        part = attend_block(q[:, :, rows], k, v, diagonal=CAUSAL if causal else None)
        out[:, :, rows], lse[:, :, rows] = merge(out[:, :, rows], lse[:, :, rows], *part)
    delta = row_dot(dout, out)
    for source, rows, columns, causal in blocks:
        k, v = (pieces[number][source][:, :, columns] for number in (1, 2))
        diagonal = CAUSAL if causal else None
        given = dout[:, :, rows], q[:, :, rows], k, v, lse[:, :, rows], delta[:, :, rows]
        dq, dk, dv = attend_block_backward(*given, diagonal=diagonal)
        gradients[0][rank][:, :, rows] += dq
        gradients[1][source][:, :, columns] += dk
        gradients[2][source][:, :, columns] += dv


ZIGZAG_BLOCK = Exercise(
    name="02.zigzag_block",
    cases=[RingCase(size, length) for size in (2, 1, 3, 4, 8) for length in (2, 6)],
    attempt=_zigzag,
)


@dataclass(frozen=True)
class Rows:
    """Two partial outputs of `size` rows, with log-sum-exps around `level`; `empty` sides have a row without keys."""

    size: int
    level: float = 0.0
    empty: str = "no"

    def __str__(self) -> str:
        of = {"no": "", "one": ", one side without keys", "both": ", both sides without keys"}[self.empty]
        return f"{self.size} rows, lse around {self.level:g}{of}"


def _merged(answer: Callable[..., Any], case: Rows) -> list[str]:
    random = np.random.default_rng([case.size, round(abs(case.level))])
    outs = random.standard_normal((2, case.size, 3))  # [side, rows, D]
    lses = case.level + random.standard_normal((2, case.size))
    empty = {"no": [], "one": [(0, 0), (1, -1)], "both": [(0, 0), (1, 0)]}[case.empty]
    for side, row in empty:
        outs[side, row], lses[side, row] = 0.0, -np.inf
    with np.errstate(all="ignore"):  # a wrong answer is explained, not warned about
        result = called(answer, "merge(out_a, lse_a, out_b, lse_b)", outs[0], lses[0], outs[1], lses[1])
    if not isinstance(result, tuple) or len(result) != 2:
        raise Wrong(f"returned {brief(result)}, expected (out, lse)")
    for name, mine, right in zip(("out", "lse"), result, merge(outs[0], lses[0], outs[1], lses[1]), strict=True):
        if np.isnan(mine).any():
            raise Wrong(f"{name} holds NaN: −inf − (−inf), or ∞/∞; what weight has a side without keys?")
        if found := difference(np.asarray(mine), right):
            raise Wrong(f"{name}: {found}", *_likely(name, np.asarray(mine), outs, lses))
    return ["out and lse equal those over all keys at once"]


def _likely(name: str, mine: Any, outs: Any, lses: Any) -> list[str]:
    """The first well-known mistake that gives `mine`."""
    with np.errstate(all="ignore"):
        mistakes = {
            "the two are added without their weights exp(lse − merged lse)": outs[0] + outs[1],
            "a plain mean: the side with more weight must count more": (outs[0] + outs[1]) / 2,
            "log-sum-exps are not added: exp(lse) is": lses[0] + lses[1],
        }
    same = (text for text, array in mistakes.items() if mine.shape == array.shape and not difference(mine, array))
    return [f"likely cause: {text}" for text in list(same)[:1]]


MERGE = Exercise(
    name="02.merge",
    cases=[
        Rows(2),
        Rows(4, empty="one"),
        Rows(4, empty="both"),
        Rows(8, level=1e4),
        Rows(8, level=-1e4, empty="one"),
    ],
    attempt=_merged,
)


def _shares(random: np.random.Generator, size: int, longest: int) -> tuple[int, ...]:
    return size, int(random.integers(longest // 2, longest + 1))


BRING_HOME = Exercise(
    name="02.bring_home",
    cases=growing((2, 1, *range(3, 9)), _shares),
    attempt=RankProgram(
        call="bring_home(comm, x)",
        expected=lambda case, inputs: list(sum(inputs)),
        parts=lambda case, inputs, rank: [x[rank] for x in inputs],
        counts=(
            Count(
                "messages a rank sends",
                "N",
                messages,
                lambda case: case.size if case.size > 1 else 0,
                "a gradient starts where its K/V start, at home; after N − 1 hops it is one rank short of home",
                exact=True,
            ),
            Count(
                "bytes a rank sends",
                "N · n",
                bytes_sent,
                lambda case: case.nbytes if case.size > 1 else 0,
                "only one gradient is with a rank at a time",
            ),
        ),
    ),
)

EXERCISES = (ZIGZAG_BLOCK, MERGE, BRING_HOME)
