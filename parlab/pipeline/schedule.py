"""A pipeline schedule as data: for each rank, the list of actions that it runs, in order."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import Any

from parlab.arguments import whole
from parlab.pipeline import files
from parlab.pipeline.actions import KINDS, Action, Pair, Slot


@dataclass(frozen=True, init=False)
class Schedule:
    """The actions of each rank of a pipeline, in order.

    Args:
        ranks: one row a rank: actions, pairs, and None for a slot left idle. Idle slots are only for the eye: an action
            starts as soon as its rank is free and its inputs have arrived.
        name: shown in titles; schedules with the same rows are equal, whatever their names and cells.
        cells: of a schedule that was read from a file, the texts of its cells, which `to_csv` writes again.

    Raises:
        ValueError: something that is not an action, an action of unknown kind, or a negative stage or microbatch.
            Whether the schedule can run is a question for `validate`.

    >>> schedule = Schedule([[Action("F", 0, 0), Action("B", 0, 0)]])
    >>> schedule.num_stages, schedule.num_microbatches, schedule.rank_of(stage=0, microbatch=0)
    (1, 1, 0)
    """

    ranks: tuple[tuple[Slot, ...], ...]
    name: str = field(compare=False)
    cells: Sequence[Sequence[str]] = field(compare=False, repr=False)

    def __init__(self, ranks: Iterable[Iterable[Slot]], name: str = "", cells: Sequence[Sequence[str]] = ()) -> None:
        try:
            object.__setattr__(self, "ranks", tuple(tuple(row) for row in ranks))
        except TypeError:
            raise ValueError(f"ranks={ranks!r:.60}: give a list of actions for each rank") from None
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "cells", cells)
        for rank, row in enumerate(self.ranks):
            for position, slot in enumerate(row):
                if slot is not None:
                    _check_slot(slot, rank, position)
        if not any(self.actions):
            raise ValueError("ranks: a schedule needs at least one action")

    @cached_property
    def actions(self) -> tuple[tuple[Action, ...], ...]:
        """The actions of each rank: idle slots left out, a pair as its forward and then its backward."""
        return tuple(tuple(_flat(row)) for row in self.ranks)

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    @cached_property
    def num_stages(self) -> int:
        """One more than the highest stage."""
        return 1 + max(map(operator.attrgetter("stage"), chain.from_iterable(self.actions)))

    @cached_property
    def num_microbatches(self) -> int:
        """One more than the highest microbatch."""
        return 1 + max(map(operator.attrgetter("microbatch"), chain.from_iterable(self.actions)))

    @cached_property
    def _rank_of(self) -> dict[tuple[int, int], int]:
        return {(a.stage, a.microbatch): rank for rank, row in enumerate(self.actions) for a in row if a.kind == "F"}

    def rank_of(self, stage: int, microbatch: int) -> int:
        """The rank that runs this microbatch on this stage (a stage of DualPipe lives on two ranks).

        Raises:
            ValueError: no rank runs its forward.
        """
        if (stage, microbatch) not in self._rank_of:
            raise ValueError(f"no rank of this schedule runs {Action('F', stage, microbatch)}")
        return self._rank_of[stage, microbatch]

    def holders(self, stage: int) -> tuple[int, ...]:
        """The ranks that need this stage's weights."""
        return tuple(rank for rank, row in enumerate(self.actions) if any(action.stage == stage for action in row))

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write PyTorch's format: a row a rank, a cell a slot, an idle slot as an empty cell. A schedule that was read
        from a file is written as it stood there, with its communication."""
        slots = [["" if slot is None else str(slot) for slot in row] for row in self.ranks]
        files.write_cells(path, self.cells or slots)

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> Schedule:
        """Read PyTorch's format, with or without its communication: sends and receives (`1RECV_F0`) and cells of
        sharded weights (`0UNSHARD`). Nothing here executes these, but `to_csv` writes them again.

        Raises:
            ValueError: a cell that is not an action, with its row and column.
        """
        cells = files.read_cells(path)
        return cls(files.slots_of(path, cells), Path(path).stem, cells)

    def __str__(self) -> str:
        """One line a rank, one column a slot."""
        cells = [["." if slot is None else str(slot) for slot in row] for row in self.ranks]
        width = max(len(cell) for row in cells for cell in row)
        lines = (" ".join(cell.ljust(width) for cell in row) for row in cells)
        return "\n".join(f"rank {rank}: {line}".rstrip() for rank, line in enumerate(lines))


def _flat(row: Iterable[Slot]) -> Iterator[Action]:
    for slot in row:
        if type(slot) is Action:
            yield slot
        elif type(slot) is Pair:
            yield from slot


def _check_slot(slot: Slot, rank: int, position: int) -> None:
    right = False
    if type(slot) is Action:
        kind, stage, microbatch = slot
        right = isinstance(kind, str) and kind in KINDS and _from_0(stage) and _from_0(microbatch)
    elif type(slot) is Pair and all(type(part) is Action for part in slot) and slot.F[1:] != slot.B[1:]:
        _check_slot(slot.F, rank, position)
        _check_slot(slot.B, rank, position)
        right = slot.F.kind == "F" and slot.B.kind == "B"
    if not right:
        raise ValueError(
            f"ranks[{rank}][{position}]={slot!r}: give an Action of kind {', '.join(KINDS)} with stage and microbatch "
            "from 0, a Pair of an F and a B that is not its own backward, or None for an idle slot"
        )


def _from_0(number: Any) -> bool:
    return (type(number) is int or (isinstance(number, Integral) and not isinstance(number, bool))) and int(number) >= 0


def check_sizes(**sizes: Any) -> None:
    """Refuse numbers of ranks, microbatches or chunks that are not whole, or less than 1."""
    for name, value in sizes.items():
        whole(name, value, least=1)


def title(kind: str, p: int, m: int) -> str:
    """The name of a schedule of this kind, with its sizes.

    >>> title("ZB-V", 4, 1)
    'ZB-V, 4 ranks, 1 microbatch'
    """
    ranks, microbatches = "rank" if p == 1 else "ranks", "microbatch" if m == 1 else "microbatches"
    return f"{kind}, {p} {ranks}, {m} {microbatches}"
