"""Schedules as files: PyTorch's CSV, one row a rank and one cell a slot.

Source: torch.distributed.pipelining, the formats "compute_only" and "compute_comms" of its schedule files.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from parlab.files import write_whole
from parlab.pipeline.actions import Action, Pair, Slot

OLD_LETTERS = {"F": "F", "B": "I", "BW": "B", "W": "W"}

_NUMBER = "([0-9]{1,9})"
_COMPUTE = re.compile(f"{_NUMBER}(F|B|I|W|BW){_NUMBER}")
_PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")
_MESSAGE = re.compile(f"{_NUMBER}(SEND_F|RECV_F|SEND_B|RECV_B){_NUMBER}")
_WEIGHTS = re.compile(f"{_NUMBER}(UNSHARD|RESHARD|REDUCE_GRAD|WAIT_REDUCE_GRAD)[0-9]*")  # a number says nothing


class Communication(NamedTuple):
    """A cell that computes nothing: `SEND_F`, `RECV_F`, `SEND_B` or `RECV_B` of a microbatch, or what gathers or
    frees a stage's sharded weights, reduces their gradient or waits for that, which has no microbatch."""

    kind: str
    stage: int
    microbatch: int | None

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{'' if self.microbatch is None else self.microbatch}"


Cell = Slot | Communication


def write_rows(path: str | os.PathLike[str], rows: Iterable[Iterable[Slot]]) -> None:
    """Write `rows`, all or none of them."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows(["" if slot is None else str(slot) for slot in row] for row in rows)
    write_whole(path, file.getvalue())


def read_rows(path: str | os.PathLike[str], *, old_letters: bool = False) -> list[list[Cell]]:
    """The cells of a file.

    Raises:
        ValueError: a cell that is not an action, with its row and column (counted from 1, as in a spreadsheet); a file
            that is no CSV, or is empty.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a CSV file: {error}") from error
    if not any(rows):
        raise ValueError(f"{path}: the file is empty; write one row a rank, with cells like 2F0")
    cells: list[list[Cell]] = []
    for row, texts in enumerate(rows, start=1):
        cells.append([])
        for column, text in enumerate(texts, start=1):
            try:
                cells[-1].append(_parse(text.strip(), old_letters))
            except ValueError as error:
                raise ValueError(f"{path}: row {row} (rank {row - 1}), column {column}: {error}") from None
    return cells


def _parse(text: str, old_letters: bool) -> Cell:
    if not text:
        return None
    if match := _PAIR.fullmatch(text):
        forward, backward = (_parse_action(part.strip(), old_letters) for part in match.groups())
        if (forward.kind, backward.kind) != ("F", "B"):
            raise ValueError(f"{text!r} overlaps {forward} and {backward}; a pair is a forward, then a full backward")
        return Pair(forward, backward)
    if match := _MESSAGE.fullmatch(text):
        stage, kind, microbatch = match.groups()
        return Communication(kind, int(stage), int(microbatch))
    if match := _WEIGHTS.fullmatch(text):
        stage, kind = match.groups()
        return Communication(kind, int(stage), None)
    return _parse_action(text, old_letters)


def _parse_action(text: str, old_letters: bool) -> Action:
    letters = OLD_LETTERS if old_letters else {"F": "F", "B": "B", "I": "I", "W": "W"}
    match = _COMPUTE.fullmatch(text)
    if match is None or match[2] not in letters:
        hint = " (old_letters=True reads BW and I's old name B)" if match and match[2] == "BW" else ""
        raise ValueError(
            f"{text!r} is not an action; write [stage][{'|'.join(letters)}][microbatch], for example 2F0{hint}"
        )
    return Action(letters[match[2]], int(match[1]), int(match[3]))


def check_communication(rows: Sequence[Sequence[Cell]]) -> None:
    """Hold a file's sends and receives against what its computation needs.

    Raises:
        ValueError: the first that is missing, superfluous, repeated, before what it sends or after what it feeds; or
            two ranks whose sends and receives are not in the same order.
    """
    computed, listed = _positions(rows)
    sends: dict[tuple[int, int], list[tuple[int, str]]] = {}
    receives: dict[tuple[int, int], list[tuple[int, str]]] = {}
    for producer, consumer in _crossings(computed):
        letter = "F" if producer.kind == "F" else "B"
        src, made = computed[producer]
        dst, used = computed[consumer]
        send = Communication(f"SEND_{letter}", producer.stage, producer.microbatch)
        receive = Communication(f"RECV_{letter}", consumer.stage, consumer.microbatch)
        sent, received = _take(listed, send, src), _take(listed, receive, dst)
        if sent < made:
            raise ValueError(f"rank {src}: {send} stands before {producer}, whose result it sends")
        if received > used:
            raise ValueError(f"rank {dst}: {receive} stands after {consumer}, which needs it")
        sends.setdefault((src, dst), []).append((sent, str(receive)))
        receives.setdefault((src, dst), []).append((received, str(receive)))
    if listed:
        message, (rank, _) = next(iter(listed.items()))
        raise ValueError(
            f"rank {rank}: nothing has to travel for {message}: there is no such neighbour on another rank"
        )
    for (src, dst), in_sending_order in sends.items():
        for (_, first), (_, second) in zip(sorted(in_sending_order), sorted(receives[src, dst]), strict=True):
            if first != second:
                raise ValueError(
                    f"rank {src} sends what {first} awaits where rank {dst} awaits {second}: "
                    "messages between two ranks arrive in the order in which they were sent"
                )


Positions = dict[Any, tuple[int, int]]  # of an action or a message: (rank, column)


def _positions(rows: Sequence[Sequence[Cell]]) -> tuple[Positions, Positions]:
    computed: Positions = {}
    listed: Positions = {}
    for rank, row in enumerate(rows):
        for column, cell in enumerate(row):
            if isinstance(cell, Pair):
                computed.update({cell.F: (rank, column), cell.B: (rank, column)})
            elif isinstance(cell, Action):
                computed[cell] = (rank, column)
            elif isinstance(cell, Communication) and cell.microbatch is not None:
                if cell in listed:
                    raise ValueError(f"rank {rank}: {cell} is listed twice")
                listed[cell] = (rank, column)
    return computed, listed


def _crossings(computed: Positions) -> Iterator[tuple[Action, Action]]:
    """(producer, consumer) of every value that passes from one rank to another."""
    for producer, (rank, _) in computed.items():
        kind, stage, microbatch = producer
        forward, backward = Action("F", stage + 1, microbatch), (Action(k, stage - 1, microbatch) for k in "IB")
        for consumer in {"F": [forward], "W": []}.get(kind, backward):
            if consumer in computed and computed[consumer][0] != rank:
                yield producer, consumer


def _take(listed: Positions, message: Communication, rank: int) -> int:
    found, column = listed.pop(message, (None, -1))
    if found != rank:
        where = "is missing" if found is None else f"stands on rank {found}"
        raise ValueError(f"{message} {where}: it belongs on rank {rank}")
    return column
