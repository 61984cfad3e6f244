"""The numbers of an array on every rank: whole, or a partial sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parlab.arguments import checked
from parlab.arrays import is_array, to_numpy
from parlab.views.engine import theme
from parlab.views.engine.arguments import RULES, mapping, within
from parlab.views.engine.picture import Picture, key, panel, sheet, write

WHOLE, PARTIAL, NEITHER = "whole", "partial sum", "neither"
CLOSE = 1e-10  # of the largest entry
MOST_RANKS, MOST_ARRAYS = 8, 6
NUMBERS = "PuOr"  # violet below 0, white at 0, orange above
LEFT, TOP, BELOW, GAP, APART = 1.25, 1.0, 0.3, 0.1, 0.22  # inches
HIGH = 0.62  # inches of an array


def by_rank(name: str, value: Any) -> None:
    """The rule of arrays by rank and name: the same arrays on each rank."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"{name}={value!r:.60}: must be a list, with {{array: numbers}} for each rank")
    within(f"len({name})", len(value), MOST_RANKS)
    for rank, arrays in enumerate(value):
        by_name(f"{name}[{rank}]", arrays)


def by_name(name: str, value: Any) -> None:
    """The rule of arrays by name."""
    mapping(name, value)
    within(f"len({name})", len(value), MOST_ARRAYS)
    for array, numbers in value.items():
        if not is_array(numbers) or numbers.ndim < 2 or not numbers.size:
            raise ValueError(f"{name}[{array!r}]={numbers!r:.60}: must be an array with 2 axes or more")


@checked(RULES | {"of_ranks": by_rank, "alone": by_name})
def whole_or_partial(of_ranks: Sequence[Mapping[str, Any]], alone: Mapping[str, Any]) -> Picture:
    """Draw the numbers of each array on each rank, above those of one rank alone: is it whole, or a partial sum?

    Args:
        of_ranks: for each rank {array: numbers `[..., E]`}.
        alone: the same arrays of one rank that has everything.

    Raises:
        ValueError: nothing to draw, too much, or an array that a rank lacks or has in another shape.
    """
    for rank, arrays in enumerate(of_ranks):
        for name, numbers in alone.items():
            if name not in arrays or arrays[name].shape != numbers.shape:
                raise ValueError(f"of_ranks[{rank}]: needs {name} of shape {tuple(numbers.shape)}")
    shown = {name: [_rows(arrays[name]) for arrays in (*of_ranks, alone)] for name in alone}
    verdicts = {name: _verdict(rows[:-1], rows[-1]) for name, rows in shown.items()}
    partial = [name for name, verdict in verdicts.items() if verdict == PARTIAL]
    headline = f"{len(partial)} of {len(shown)} arrays are partial sums"
    if partial:
        headline += f", and need a message: {', '.join(partial)}"
    height = TOP + (HIGH + GAP) * (len(of_ranks) + 1) + GAP + BELOW
    figure = sheet([headline, *(f"{name:>3}  {verdict}" for name, verdict in verdicts.items())], height, headline)
    wide = (theme.WIDTH - LEFT - APART * len(shown)) / len(shown)
    tops = [TOP + (HIGH + GAP) * row + GAP * (row == len(of_ranks)) for row in range(len(of_ranks) + 1)]
    for rank, top in enumerate(tops[:-1]):
        key(figure, 0.15, top + HIGH / 2, theme.rank_color(rank), f"rank {rank}")
    write(figure, 0.15, tops[-1] + HIGH / 2, "one rank alone", va="center")
    for column, (name, rows) in enumerate(shown.items()):
        left = LEFT + (wide + APART) * column
        verdict = verdicts[name]
        color = {WHOLE: theme.INK, PARTIAL: theme.KINDS["send"].color}.get(verdict, theme.ALARM)
        write(figure, left + wide / 2, TOP - 0.42, name, theme.TITLE, ha="center", va="baseline", weight="bold")
        write(figure, left + wide / 2, TOP - 0.15, verdict, ha="center", va="baseline", color=color)
        largest = max(float(np.max(np.abs(numbers))) for numbers in rows) or 1.0
        for row, (top, numbers) in enumerate(zip(tops, rows, strict=True)):
            axes = panel(figure, left, top, wide, HIGH)
            look = {"cmap": NUMBERS, "vmin": -largest, "vmax": largest, "interpolation": "none"}
            axes.imshow(-numbers, aspect="auto", gid=f"{name} {row}", **look)
    return figure


def _rows(numbers: Any) -> np.ndarray:
    numbers = to_numpy(numbers)
    return numbers.reshape(-1, numbers.shape[-1])


def _verdict(of_ranks: list[np.ndarray], alone: np.ndarray) -> str:
    limit = CLOSE * float(np.max(np.abs(alone)))
    if all(np.max(np.abs(numbers - alone)) <= limit for numbers in of_ranks):
        return WHOLE
    return PARTIAL if np.max(np.abs(sum(of_ranks) - alone)) <= limit else NEITHER
