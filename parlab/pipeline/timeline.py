"""What a simulated schedule shows: idle time and what each slot waits for, the critical path, kept activations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from parlab.pipeline.actions import Action
from parlab.pipeline.dependencies import Program
from parlab.world.timeline import Columns, Span, Timeline

if TYPE_CHECKING:
    from parlab.pipeline.simulate import Costs


class Idle(NamedTuple):
    """Rank `rank` stood idle from `start` to `end`.

    `action` is what it did next, `needs` what that waited for, on rank `peer`, and `travel` how long the message was
    under way. A rank that had nothing left to do has None, None, None and 0.
    """

    rank: int
    start: float
    end: float
    action: Action | None
    needs: Action | None
    peer: int | None
    travel: float

    def __str__(self) -> str:
        slot = f"rank {self.rank} is idle from {self.start:g} to {self.end:g}: "
        if self.action is None:
            return slot + "it has nothing left to do"
        on_its_way = f", and travels for {self.travel:g}" if self.travel else ""
        return (
            slot
            + f"{self.action} needs {self.needs}, which rank {self.peer} ends at {self.end - self.travel:g}{on_its_way}"
        )


class ScheduleTimeline(Timeline):
    """The timeline of a simulated schedule, in the unit of its costs.

    Attributes:
        schedule: what was simulated.
        costs: with which costs.
        makespan: when the last rank is done.
    """

    def __init__(
        self,
        program: Program,
        costs: Costs,
        duration: Sequence[Any],
        lag: Sequence[Any],
        start: Sequence[Any],
        end: Sequence[Any],
    ) -> None:
        super().__init__(
            program.schedule.num_ranks, makespan=max(end[stop - 1] for stop in program.first[1:] if stop), unit="units"
        )
        del self._computes, self._transfers, self._waits  # made when somebody looks: they cost more than simulating
        self.schedule = program.schedule
        self.costs = costs
        self._program = program
        self._duration, self._lag, self._start, self._end = duration, lag, start, end

    @cached_property
    def _computes(self) -> Columns:  # type: ignore[override]
        return self._program.rank, self._start, self._end, [str(action) for action in self._program.actions]

    @cached_property
    def _transfers(self) -> Columns:  # type: ignore[override]
        program, end, lag = self._program, self._end, self._lag
        rows = [
            (source, row)
            for row, source in enumerate(program.source)
            if source >= 0 and program.rank[source] != program.rank[row]
        ]
        sent = [end[source] for source, _ in rows]
        return (
            [program.rank[source] for source, _ in rows],
            [program.rank[row] for _, row in rows],
            [0] * len(rows),
            sent,
            sent,
            [end[source] + lag[row] for source, row in rows],
            ["message"] * len(rows),
            [str(program.actions[source]) for source, _ in rows],
        )

    @cached_property
    def _waits(self) -> Columns:  # type: ignore[override]
        idle = [slot for rank in range(self.size) for slot in self.idle(rank) if slot.action is not None]
        return (
            [slot.rank for slot in idle],
            [slot.start for slot in idle],
            [slot.end for slot in idle],
            [slot.peer for slot in idle],
            [f"wait for {slot.needs}" for slot in idle],
        )

    def _rows(self, rank: int) -> range:
        self._check(rank)
        return range(self._program.first[rank], self._program.first[rank + 1])

    def _together(self, row: int) -> range:
        """The rows that start with `row`: both of an atomic pair, else itself."""
        first = row - 1 if row > 0 and self._duration[row - 1] is None else row
        return range(first, first + 2) if self._duration[first] is None else range(first, first + 1)

    def _awaited(self, row: int) -> int | None:
        """Which of the rows that start with `row` could not start earlier, because of its input."""
        for candidate in self._together(row):
            source = self._program.source[candidate]
            if source >= 0 and self._end[source] + self._lag[candidate] == self._start[candidate]:
                return candidate
        return None

    def busy(self, rank: int) -> Any:
        """Time that `rank` computed."""
        return sum(self._duration[row] for row in self._rows(rank) if self._duration[row] is not None)

    # Idle time

    @cached_property
    def longest_stage(self) -> Any:
        """The most time that a rank takes from its first start to its last end.

        Source: Zero Bubble Pipeline Parallelism (Qi et al., 2024), section 2.3.
        """
        owned = filter(None, (self._rows(rank) for rank in range(self.size)))
        return max(self._end[rows[-1]] - self._start[rows[0]] for rows in owned)

    def bubble_fraction(self, metric: str = "makespan") -> float:
        """Idle time over the whole time, of all ranks together.

        Args:
            metric: what the whole is. `makespan`: from the first start to the last end of all ranks. `longest_stage`:
                the most that one rank takes, without its later start, as the Zero Bubble paper counts.

        Raises:
            ValueError: another metric.
        """
        if metric not in ("makespan", "longest_stage"):
            raise ValueError(f"metric={metric!r}: use makespan or longest_stage")
        whole = self.size * (self.makespan if metric == "makespan" else self.longest_stage)
        return (whole - sum(self.busy(rank) for rank in range(self.size))) / whole

    def idle(self, rank: int) -> list[Idle]:
        """The idle slots of `rank`, and what each waits for."""
        program = self._program
        slots: list[Idle] = []
        free = 0
        for row in self._rows(rank):
            start = self._start[row]
            if start > free:
                awaited = self._awaited(row)
                assert awaited is not None, "a rank starts late only when an input comes late"
                source = program.source[awaited]
                slots.append(
                    Idle(
                        rank,
                        free,
                        start,
                        program.actions[awaited],
                        program.actions[source],
                        program.rank[source],
                        self._lag[awaited],
                    )
                )
            free = self._end[row]
        if free < self.makespan:
            slots.append(Idle(rank, free, self.makespan, None, None, None, 0))
        return slots

    @cached_property
    def critical_path(self) -> list[Span]:
        """The actions, first to last, none of which can take longer without a later end. Between two of them on
        different ranks lies a transfer. Where rank and input are ready at the same time, the path stays on the rank.
        """
        path: list[int] = []
        row: int | None = max(range(len(self._end)), key=lambda r: self._end[r])
        while row is not None:
            path.append(row)
            before = self._together(row)[0] - 1
            if (
                before >= 0
                and self._program.rank[before] == self._program.rank[row]
                and self._end[before] == self._start[row]
            ):
                row = before
            elif (awaited := self._awaited(row)) is not None:
                path[-1] = awaited
                row = self._program.source[awaited]
            else:
                row = None
        return [self.computes[row] for row in reversed(path)]

    # Kept activations

    @cached_property
    def peak_activations(self) -> list[int]:
        """For each rank, the most chunks whose activations it kept at once, each from its F to its W or B."""
        return [max((kept for _, kept in self.kept(rank)), default=0) for rank in range(self.size)]

    def kept(self, rank: int) -> list[tuple[Any, int]]:
        """Chunks kept by `rank` over time: (time, chunks from then on), one pair a change."""
        return self.kept_bytes(rank, activation=1, pending=1)

    def kept_bytes(
        self, rank: int, activation: int | Sequence[int], pending: int | Sequence[int]
    ) -> list[tuple[Any, int]]:
        """Bytes kept by `rank` over time: (time, bytes from then on), one pair a change.

        Args:
            activation: bytes that one chunk keeps from its F on (M_B), a number or one a stage.
            pending: bytes that are left of them between its I and its W (M_W), a number or one a stage.

        Source: Zero Bubble Pipeline Parallelism (Qi et al., 2024), section 2.
        """
        stages = self.schedule.num_stages
        whole = activation if isinstance(activation, Sequence) else [activation] * stages
        rest = pending if isinstance(pending, Sequence) else [pending] * stages
        total, steps = 0, []
        for row in self._rows(rank):
            kind, stage, _ = self._program.actions[row]
            change = {"F": whole[stage], "I": rest[stage] - whole[stage], "W": -rest[stage], "B": -whole[stage]}[kind]
            if change:
                total += change
                steps.append((self._start[row] if kind == "F" else self._end[row], total))
        return steps
