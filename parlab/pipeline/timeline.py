"""What a simulated schedule shows: idle time and what each slot waits for, the critical path, kept activations."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

from parlab.arguments import checked
from parlab.pipeline.action_costs import Costs
from parlab.pipeline.actions import Action
from parlab.pipeline.arguments import RULES
from parlab.pipeline.dependencies import Program
from parlab.pipeline.steps import receives, step_name, steps_of
from parlab.world.timeline import Columns, Span, Timeline


class Idle(NamedTuple):
    """Rank `rank` stood idle from `start` to `end`.

    `action` is what it did next, `needs` what that waited for, on rank `peer`, and `travel` how long the message was
    under way. A rank that had no action left to do has None, None, None and 0.
    """

    rank: int
    start: float
    end: float
    action: Action | None
    needs: Action | None
    peer: int | None
    travel: float

    def __str__(self) -> str:
        slot = f"rank {self.rank} is idle from {self.start:g} to {self.end:g}"
        if self.action is None:
            return f"{slot}: it has nothing left to do"
        sent = f"{slot}: {self.action} needs {self.needs}, which rank {self.peer} ends at {self.end - self.travel:g}"
        return f"{sent}, and travels for {self.travel:g}" if self.travel else sent


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
        steps: Sequence[tuple[Any, Any]] = (),
    ) -> None:
        makespan = max([end[stop - 1] for stop in program.first[1:] if stop > 0] + [done for _, done in steps])
        super().__init__(  # the tables are made when somebody looks: that costs more than simulating
            program.schedule.num_ranks,
            makespan,
            computes=self._computes,
            transfers=self._transfers,
            waits=self._waits,
            unit="units",
        )
        self.schedule = program.schedule
        self.costs = costs
        self._program = program
        self._duration, self._lag, self._start, self._end = duration, lag, start, end
        self._steps = steps  # the optimizer's, of each rank, if it is not left out

    @cached_property
    def _joined(self) -> frozenset[int]:
        return frozenset(row for row, duration in enumerate(self._duration) if duration is None)

    def _computes(self) -> Columns:
        steps = [step for rank in range(self.size) for step in steps_of(self._program, rank, self._joined)]
        return (
            [self._program.rank[step.start] for step in steps] + list(range(len(self._steps))),
            [self._start[step.start] for step in steps] + [start for start, _ in self._steps],
            [self._end[step.start] for step in steps] + [end for _, end in self._steps],
            [step_name(self._program, step) for step in steps] + ["optimizer"] * len(self._steps),
        )

    def _transfers(self) -> Columns:
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

    def _waits(self) -> Columns:
        idle = [slot for rank in range(self.size) for slot in self.idle(rank) if slot.action is not None]
        return (
            [slot.rank for slot in idle],
            [slot.start for slot in idle],
            [slot.end for slot in idle],
            [slot.peer for slot in idle],
            [f"wait for {slot.needs}" for slot in idle],
            [max(slot.start, slot.end - slot.travel) for slot in idle],
        )

    def _rows(self, rank: int) -> range:
        self._check(rank)
        return range(self._program.first[rank], self._program.first[rank + 1])

    def _awaited(self, step: range) -> int | None:
        """The row of a step whose input kept the step from starting earlier."""
        for row in step:
            source = self._program.source[row]
            if source >= 0 and self._end[source] + self._lag[row] == self._start[row]:
                return row
        return None

    def busy(self, rank: int) -> Any:
        """Time that `rank` computed."""
        actions = sum(self._duration[row] for row in self._rows(rank) if self._duration[row] is not None)
        return actions + sum(end - start for start, end in self._steps[rank : rank + 1])

    # Idle time

    @cached_property
    def longest_stage(self) -> Any:
        """The most time that a rank takes from its first start to its last end.

        Source: Zero Bubble Pipeline Parallelism (Qi et al., 2024), section 2.3.
        """
        owned = [(rank, rows) for rank in range(self.size) if (rows := self._rows(rank))]
        return max(
            (self._steps[rank][1] if self._steps else self._end[rows[-1]]) - self._start[rows[0]]
            for rank, rows in owned
        )

    @checked(RULES)
    def bubble_fraction(self, metric: str = "makespan") -> float:
        """Idle time over the whole time, of all ranks together; 0 if nothing takes time.

        Args:
            metric: what the whole is. `makespan`: from the first start to the last end of all ranks. `longest_stage`:
                the most that one rank takes, without its later start, as the Zero Bubble paper counts.

        Raises:
            ValueError: another metric.
        """
        whole = self.size * (self.makespan if metric == "makespan" else self.longest_stage)
        idle = whole - sum(self.busy(rank) for rank in range(self.size))
        return idle / whole if whole else 0.0

    def idle(self, rank: int) -> list[Idle]:
        """The idle slots of `rank`, and what each waits for."""
        self._check(rank)
        program = self._program
        slots: list[Idle] = []
        free = 0
        for step in steps_of(program, rank, self._joined):
            start = self._start[step.start]
            if start > free:
                row = self._awaited(step)
                assert row is not None, "a rank starts late only when an input comes late"
                source = program.source[row]
                action, needs, peer = program.actions[row], program.actions[source], program.rank[source]
                slots.append(Idle(rank, free, start, action, needs, peer, self._lag[row]))
            free = self._end[step.start]
        for start, end in [*self._steps[rank : rank + 1], (self.makespan, self.makespan)]:
            if free < start:
                slots.append(Idle(rank, free, start, None, None, None, 0))
            free = end
        return slots

    @cached_property
    def critical_path(self) -> list[Span]:
        """The steps, first to last, none of which can take longer without a later end. Between two of them on different
        ranks lies a transfer. Where rank and input are ready at the same time, the path stays on the rank.
        """
        path: list[Span] = []
        row: int | None = max(range(len(self._end)), key=lambda r: self._end[r])
        while row is not None:
            step = self._step(row)
            rank, start = self._program.rank[row], self._start[row]
            path.append(Span(rank, start, self._end[row], "compute", step_name(self._program, step)))
            before = step.start - 1
            if before >= self._program.first[rank] and self._end[before] == start:
                row = before
            else:
                awaited = self._awaited(step)
                row = None if awaited is None else self._program.source[awaited]
        return path[::-1]

    @cached_property
    def slack(self) -> dict[Action, Any]:
        """How much later each action could end without the last one ending later, each rank keeping its order."""
        first, source = self._program.first, self._program.source
        steps = [step for rank in range(self.size) for step in steps_of(self._program, rank, self._joined)]
        steps.sort(key=lambda step: self._end[step.start], reverse=True)
        latest = [max(self._end)] * len(self._end)
        moved = True
        while moved:  # one sweep is enough, but for actions that take no time
            moved = False
            for step in steps:
                begin = min(latest[step.start : step.stop]) - (self._end[step.start] - self._start[step.start])
                before = [] if step.start in first else [(step.start - 1, 0)]
                for row, lag in before + [(source[row], self._lag[row]) for row in step if source[row] >= 0]:
                    if begin - lag < latest[row]:
                        latest[row] = begin - lag
                        moved = True
        return {
            self._program.actions[row]: min(latest[step.start : step.stop]) - self._end[row]
            for step in steps
            for row in step
        }

    def _step(self, row: int) -> range:
        """The step that a row belongs to."""
        first = row - 1 if row - 1 in self._joined else row
        return range(first, first + 2 if first in self._joined else first + 1)

    # Kept activations

    @cached_property
    def peak_activations(self) -> list[int]:
        """For each rank, the most chunks whose activations it kept at once, each from its F to its W or B."""
        return [max((kept for _, kept in self.kept(rank)), default=0) for rank in range(self.size)]

    def kept(self, rank: int) -> list[tuple[Any, int]]:
        """Chunks kept by `rank` over time: (time, chunks from then on), one pair a change."""
        return self.kept_bytes(rank, activation=1, pending=1)

    def kept_bytes(
        self, rank: int, activation: int | Sequence[int], pending: int | Sequence[int], message: int = 0
    ) -> list[tuple[Any, int]]:
        """Bytes kept by `rank` over time: (time, bytes from then on), one pair a change.

        Args:
            activation: bytes that one chunk keeps from its F on (M_B), a number or one a stage.
            pending: bytes that are left of them between its I and its W (M_W), a number or one a stage.
            message: bytes of what passes between stages: counted from when `run_schedule` posts its receive or, within
                the rank, from when it is made, until it is used; what is kept of it then is part of the others. What is
                sent counts besides, while it is under way: how long that is, the links say, not the schedule.

        Source: Zero Bubble Pipeline Parallelism (Qi et al., 2024), section 2.
        """
        program, stages = self._program, self.schedule.num_stages
        whole = activation if isinstance(activation, Sequence) else [activation] * stages
        rest = pending if isinstance(pending, Sequence) else [pending] * stages
        changes: list[tuple[Any, int]] = []  # (time, bytes), in the order of the rank's program
        posted = deque(receives(program, rank, self._joined) if message else ())
        time: Any = 0
        for number, step in enumerate(steps_of(program, rank, self._joined)):
            while posted and posted[0].after == number:
                posted.popleft()
                changes.append((time, message))
            for row in step:
                kind, stage, _ = program.actions[row]
                before = {"F": 0, "W": rest[stage]}.get(kind, whole[stage]) + (
                    message if program.source[row] >= 0 else 0
                )
                after = {"F": whole[stage], "I": rest[stage]}.get(kind, 0)
                changes.append((self._start[row] if kind == "F" else self._end[row], after - before))
            time = self._end[step.start]
            changes += [(time, message) for row in step if row in self._handed_over]
        totals = accumulate(change for _, change in changes)
        return [(time, total) for (time, change), total in zip(changes, totals, strict=True) if change]

    @cached_property
    def _handed_over(self) -> frozenset[int]:
        """The rows whose result is used by the same rank."""
        rank, source = self._program.rank, self._program.source
        return frozenset(
            source[row] for row in range(len(source)) if source[row] >= 0 and rank[source[row]] == rank[row]
        )
