"""Timelines: the spans, the messages and the held bytes of every rank, on one clock.

Records of one kind are stored in columns, because a long run has hundreds of thousands of them. `computes`,
`transfers`, `waits` and `spans` build the records when they are first read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from parlab.arguments import whole
from parlab.files import write_whole
from parlab.world.chrome_trace import chrome_trace
from parlab.world.units import format_bytes, format_time, several


class Span(NamedTuple):
    """Something that rank `rank` did from `start` to `end`; `kind` is compute, send, receive or wait."""

    rank: int
    start: int
    end: int
    kind: str
    name: str


class Transfer(NamedTuple):
    """A message: both ends had posted it at `ready`, and it held their ports from `start` to `end`."""

    src: int
    dst: int
    nbytes: int
    ready: int
    start: int
    end: int
    name: str
    label: Any


class Wait(NamedTuple):
    """Rank `rank` waited from `start` to `end` for something from rank `peer`.

    From `start` to `came` the peer had not posted its end. From `came` to `end` the transfer was under way: on the
    wire, or in a queue at a port. `came` is `start` if the peer posted first. It is `end` if the peer never posted, or
    if nothing was to be transferred.

    `name` is "receive"; "send" (the rank waited for its message to be taken); "request" (it waited for a background
    collective of its own, and `peer` is the rank itself); or a collective that not all members had entered.
    """

    rank: int
    start: int
    end: int
    peer: int
    name: str
    came: int


Columns = tuple[Sequence[Any], ...]


def columns_of(rows: Sequence[tuple[Any, ...]], width: int) -> Columns:
    """A table of `width` columns from its rows."""
    return tuple(zip(*rows, strict=True)) or ((),) * width


class Timeline:
    """The ranks of one run, or of one simulated schedule, on one clock.

    Times are in `unit`: integer picoseconds for a run, the unit of its costs for a simulated schedule.

    Args:
        size: number of ranks.
        computes: columns (rank, start, end, name), or a function that makes them at the first read.
        transfers: columns (src, dst, nbytes, ready, start, end, name, label) of the delivered messages, or a function.
        waits: columns (rank, start, end, peer, name, came), or a function.
        held: for each rank its changes of held memory, (time, bytes, name), in order.
        makespan: the time when the last rank is done.
        unit: the name of one tick.
        cluster: the name of the simulated hardware.
    """

    def __init__(
        self,
        size: int,
        makespan: int,
        *,
        computes: Columns | Callable[[], Columns] = ((),) * 4,
        transfers: Columns | Callable[[], Columns] = ((),) * 8,
        waits: Columns | Callable[[], Columns] = ((),) * 6,
        held: Sequence[Sequence[tuple[int, int, str]]] | None = None,
        unit: str = "ps",
        cluster: str = "",
    ):
        self.size = size
        self.makespan = makespan
        self.unit = unit
        self.cluster = cluster
        self._tables = {"computes": computes, "transfers": transfers, "waits": waits}
        self._held = held if held is not None else [()] * size

    def _columns(self, table: str) -> Columns:
        columns = self._tables[table]
        if callable(columns):
            columns = self._tables[table] = columns()
        return columns

    @cached_property
    def computes(self) -> list[Span]:
        """Every computation, in the order in which they started."""
        ranks, starts, ends, names = self._columns("computes")
        return [
            Span(rank, start, end, "compute", name)
            for rank, start, end, name in zip(ranks, starts, ends, names, strict=True)
        ]

    @cached_property
    def transfers(self) -> list[Transfer]:
        """Every delivered message, sorted by start, then by sender."""
        return sorted(
            map(Transfer._make, zip(*self._columns("transfers"), strict=True)), key=lambda t: (t.start, t.src, t.end)
        )

    @cached_property
    def waits(self) -> list[Wait]:
        """Every wait, in the order in which they ended."""
        return [Wait._make(row) for row in zip(*self._columns("waits"), strict=True)]

    @cached_property
    def spans(self) -> list[Span]:
        """Computes, sends, receives and waits, sorted by rank, then by start. A message of no duration is left out."""
        spans = list(self.computes)
        for t in self.transfers:
            if t.end > t.start:
                spans.append(Span(t.src, t.start, t.end, "send", t.name))
                spans.append(Span(t.dst, t.start, t.end, "receive", t.name))
        spans.extend(Span(w.rank, w.start, w.end, "wait", w.name) for w in self.waits)
        return sorted(spans, key=lambda span: (span.rank, span.start, span.end))

    def _check(self, rank: int) -> int:
        if not 0 <= whole("rank", rank) < self.size:
            raise ValueError(f"rank={rank!r}: the timeline has ranks 0 to {self.size - 1}")
        return rank

    def messages(self, rank: int) -> int:
        """How many messages `rank` sent to other ranks."""
        return self._sent[0][self._check(rank)]

    def bytes_sent(self, rank: int) -> int:
        """Bytes that `rank` sent to other ranks."""
        return self._sent[1][self._check(rank)]

    @cached_property
    def _sent(self) -> tuple[list[int], list[int]]:
        """How many messages, and how many bytes, each rank sent to others."""
        messages, total = [0] * self.size, [0] * self.size
        for src, dst, nbytes in zip(*self._columns("transfers")[:3], strict=True):
            if src != dst:
                messages[src] += 1
                total[src] += nbytes
        return messages, total

    def held(self, rank: int) -> list[tuple[int, int]]:
        """Held bytes of `rank` over time: (time, bytes from then on), one pair a change.

        Received memory counts from the receive until it is freed. Sent memory counts from the send until the message
        has passed, unless it counts already. Other memory counts if the program calls `Comm.hold`.
        """
        total, steps = 0, []
        for time, nbytes, _ in self._held[self._check(rank)]:
            total += nbytes
            steps.append((time, total))
        return steps

    def held_by_name(self, rank: int) -> dict[str, list[tuple[int, int]]]:
        """The same as `held`, for each name under which bytes are held."""
        totals: dict[str, int] = {}
        steps: dict[str, list[tuple[int, int]]] = {}
        for time, nbytes, name in self._held[self._check(rank)]:
            totals[name] = totals.get(name, 0) + nbytes
            steps.setdefault(name, []).append((time, totals[name]))
        return steps

    def peak_bytes(self, rank: int) -> int:
        """The most bytes that `rank` held at once."""
        return max((total for _, total in self.held(rank)), default=0)

    def busy(self, rank: int) -> int:
        """Time that `rank` computed."""
        return self._spent("computes")[self._check(rank)]

    def waited(self, rank: int) -> int:
        """Time that `rank` waited."""
        return self._spent("waits")[self._check(rank)]

    def _spent(self, table: str) -> list[int]:
        """Time that each rank spent in the spans of `table`."""
        spent = [0] * self.size
        for rank, start, end in zip(*self._columns(table)[:3], strict=True):
            spent[rank] += end - start
        return spent

    def format(self, time: int) -> str:
        """`time` as text, in its unit."""
        return format_time(time) if self.unit == "ps" else f"{time:g} {self.unit}"

    def __repr__(self) -> str:
        title = f"Timeline: {several(self.size, 'rank')}, makespan {self.format(self.makespan)}"
        if self.cluster:
            title += f" on {self.cluster}"
        header = f"{'rank':>4} {'compute':>10} {'wait':>10} {'messages':>8} {'sent':>10} {'peak held':>10}"
        busy, waited = self._spent("computes"), self._spent("waits")
        rows = [
            f"{rank:>4} {self.format(busy[rank]):>10} {self.format(waited[rank]):>10} {self.messages(rank):>8} "
            f"{format_bytes(self.bytes_sent(rank)):>10} {format_bytes(self.peak_bytes(rank)):>10}"
            for rank in range(min(self.size, MOST_ROWS))
        ]
        if self.size > MOST_ROWS:
            rows.append(f"... and {self.size - MOST_ROWS} more ranks")
        return "\n".join([title, header, *rows])

    def save_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline as a Chrome trace (JSON), which Perfetto and chrome://tracing open.

        Each rank has a track of slices for its computes and waits, and tracks below for its sends and receives. An
        arrow joins the two ends of a message. A counter shows the held bytes. The file is written under a temporary
        name, and then renamed.

        Raises:
            ValueError: `path` is not a path.

        Source: Trace Event Format (Google, 2016).
        """
        if not isinstance(path, str | os.PathLike):
            raise ValueError(f"path={path!r:.60}: must be a path")
        ticks = 1e6 if self.unit == "ps" else 1e-6  # a microsecond; one unit of cost is drawn as a second
        held = [self.held(rank) for rank in range(self.size)]
        write_whole(path, chrome_trace(self.spans, self.transfers, held, ticks))


MOST_ROWS = 16  # ranks that `repr` lists
