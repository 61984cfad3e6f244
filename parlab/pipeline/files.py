"""Schedules as files: PyTorch's CSV, one row a rank and one cell a slot.

Source: torch.distributed.pipelining, the formats "compute_only" and "compute_comms" of its schedule files.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable

from parlab.files import write_whole
from parlab.pipeline.actions import Action, Pair, Slot

_NUMBER = "([0-9]{1,9})"
_ACTION = re.compile(f"{_NUMBER}([FBIW]){_NUMBER}")
_PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")
_COMMUNICATION = re.compile(  # sends and receives; gathers, frees and reductions of sharded weights
    f"{_NUMBER}((SEND|RECV)_[FB]{_NUMBER}|(UNSHARD|RESHARD|REDUCE_GRAD|WAIT_REDUCE_GRAD)[0-9]*)"
)


def write_cells(path: str | os.PathLike[str], rows: Iterable[Iterable[str]]) -> None:
    """Write the cells of each rank, all or none of them."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    write_whole(path, file.getvalue())


def read_cells(path: str | os.PathLike[str]) -> list[list[str]]:
    """The cells of each rank, as they stand in the file.

    Raises:
        ValueError: a file that is no CSV, or is empty.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a CSV file: {error}") from error
    if not any(rows):
        raise ValueError(f"{path}: the file is empty; write one row a rank, with cells like 2F0")
    return rows


def slots_of(path: str | os.PathLike[str], rows: Iterable[Iterable[str]]) -> list[list[Slot]]:
    """The slots of each rank, from the cells of the file `path`: those that communicate are passed over.

    Raises:
        ValueError: a cell that is not an action, with its row and column (counted from 1, as in a spreadsheet).
    """
    slots: list[list[Slot]] = []
    for row, texts in enumerate(rows, start=1):
        slots.append([])
        for column, text in enumerate(map(str.strip, texts), start=1):
            if _COMMUNICATION.fullmatch(text):
                continue
            try:
                slots[-1].append(_cell(text))
            except ValueError as error:
                raise ValueError(f"{path}: row {row} (rank {row - 1}), column {column}: {error}") from None
    return slots


def _cell(text: str) -> Slot:
    if not text:
        return None
    if match := _PAIR.fullmatch(text):
        forward, backward = (_action(part.strip()) for part in match.groups())
        if (forward.kind, backward.kind) != ("F", "B"):
            raise ValueError(f"{text!r} overlaps {forward} and {backward}; a pair is a forward, then a full backward")
        return Pair(forward, backward)
    return _action(text)


def _action(text: str) -> Action:
    match = _ACTION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an action; write [stage][F|B|I|W][microbatch], for example 2F0")
    stage, kind, microbatch = match.groups()
    return Action(kind, int(stage), int(microbatch))
