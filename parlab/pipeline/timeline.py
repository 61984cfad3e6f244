"""The timeline of a simulated schedule: idle time and its causes, the critical path, kept activations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

from parlab.arguments import one_of
from parlab.pipeline.actions import Action
from parlab.pipeline.costs import Costs, change_of_kept
from parlab.pipeline.dependencies import ActionTable
from parlab.pipeline.steps import Step, step_name, steps_of
from parlab.world.timeline import Columns, Span, Timeline, Transfer, Wait, columns_of

METRICS = ("makespan", "longest_stage")


class TimedStep(NamedTuple):
    """Rank `rank` computed from `start` to `end`: one action, or the two of an atomic pair."""

    rank: int
    start: Any
    end: Any
    actions: Step


class TimedAction(NamedTuple):
    """Rank `rank` did an action from `start` to `end`. It needed `source`, an action of the neighbouring stage (None:
    nothing), whose message was under way for `travel`: 0 on one rank."""

    rank: int
    start: Any
    end: Any
    source: Action | None
    travel: Any


class Idle(NamedTuple):
    """Rank `rank` stood idle from `start` to `end`.

    It did `action` next. That waited for `needs` of rank `peer`, whose message was under way for `travel`. A rank that
    had no action left to do has None, None, None and 0.
    """

    rank: int
    start: Any
    end: Any
    action: Action | None
    needs: Action | None
    peer: int | None
    travel: Any

    def __str__(self) -> str:
        idle = f"rank {self.rank} is idle from {self.start:g} to {self.end:g}"
        if self.action is None:
            return f"{idle}: it has nothing left to do"
        sent = f"{idle}: {self.action} needs {self.needs}, which rank {self.peer} ends at {self.end - self.travel:g}"
        return f"{sent}, and travels for {self.travel:g}" if self.travel else sent


class ScheduleTimeline(Timeline):
    """The timeline of a simulated schedule, in the unit of its costs.

    Attributes:
        schedule: the schedule that was simulated.
        costs: the costs of its actions.
        makespan: when the last rank is done.
    """

    def __init__(
        self,
        table: ActionTable,
        costs: Costs,
        duration: Sequence[Any],
        travel: Sequence[Any],
        start: Sequence[Any],
        end: Sequence[Any],
    ) -> None:
        """Of each line of the table: how long it takes, how long its input travels, when it starts and ends."""
        makespan = max(end[stop - 1] for stop in table.first[1:] if stop > 0)
        super().__init__(  # the tables are made when somebody looks: that costs more than simulating
            table.schedule.num_ranks,
            makespan,
            computes=self._computes,
            transfers=self._transfers,
            waits=self._waits,
            unit="units",
        )
        self.schedule = table.schedule
        self.costs = costs
        self._table = table
        self._duration, self._travel, self._start, self._end = duration, travel, start, end

    # The actions and the steps, with their times

    @cached_property
    def _timed(self) -> dict[Action, TimedAction]:
        table = self._table
        sources = [None if line < 0 else table.actions[line] for line in table.source]
        facts = zip(table.rank_of_line, self._start, self._end, sources, self._travel, strict=True)
        return dict(zip(table.actions, map(TimedAction._make, facts), strict=True))

    @cached_property
    def _steps(self) -> list[list[TimedStep]]:
        atomic, timed = self.costs.pair is not None, self._timed
        return [
            [TimedStep(rank, timed[step[0]].start, timed[step[0]].end, step) for step in steps_of(row, atomic)]
            for rank, row in enumerate(self.schedule.ranks)
        ]

    def steps(self, rank: int) -> list[TimedStep]:
        """The actions of `rank` in order, with their times; those of an atomic pair together."""
        self._check(rank)
        return self._steps[rank]

    # The tables of every timeline

    def _computes(self) -> Columns:
        steps = list(chain.from_iterable(self._steps))
        return (
            [step.rank for step in steps],
            [step.start for step in steps],
            [step.end for step in steps],
            [step_name(step.actions) for step in steps],
        )

    def _transfers(self) -> Columns:
        transfers = []
        for receiver in self._timed.values():
            sender = None if receiver.source is None else self._timed[receiver.source]
            if sender is not None and sender.rank != receiver.rank:
                sent, arrives = sender.end, sender.end + receiver.travel
                label = str(receiver.source)
                transfers.append(Transfer(sender.rank, receiver.rank, 0, sent, sent, arrives, "message", label))
        return columns_of(transfers, 8)

    def _waits(self) -> Columns:
        waits = []
        for idle in chain.from_iterable(map(self.idle, range(self.size))):
            if idle.peer is not None:
                came = max(idle.start, idle.end - idle.travel)
                waits.append(Wait(idle.rank, idle.start, idle.end, idle.peer, f"wait for {idle.needs}", came))
        return columns_of(waits, 6)

    # Idle time

    def _lines(self, rank: int) -> slice:
        self._check(rank)
        return slice(self._table.first[rank], self._table.first[rank + 1])

    def busy(self, rank: int) -> Any:
        """Time that `rank` computed."""
        return sum(self._duration[self._lines(rank)])

    @cached_property
    def longest_stage(self) -> Any:
        """The most time that a rank takes from its first start to its last end.

        Source: Zero Bubble Pipeline Parallelism (Qi et al., 2024), section 2.3.
        """
        taken = []
        for rank in range(self.size):
            starts, ends = self._start[self._lines(rank)], self._end[self._lines(rank)]
            if starts:
                taken.append(ends[-1] - starts[0])
        return max(taken)

    def bubble_fraction(self, metric: str = "makespan") -> float:
        """Idle time over the whole time, of all ranks together; 0 if nothing takes time.

        Args:
            metric: the whole time. `makespan`: from the first start to the last end of all ranks. `longest_stage`: the
                most that one rank takes, without its later start, as the Zero Bubble paper counts.

        Raises:
            ValueError: another metric.
        """
        one_of("metric", metric, METRICS)
        total = self.size * (self.makespan if metric == "makespan" else self.longest_stage)
        idle = total - sum(self.busy(rank) for rank in range(self.size))
        return idle / total if total else 0.0

    def idle(self, rank: int) -> list[Idle]:
        """The times in which `rank` is idle, and the action for which each waits."""
        found: list[Idle] = []
        free: Any = 0
        for step in self.steps(rank):
            if step.start > free:
                awaited = self._awaited(step)
                assert awaited is not None, "a rank starts late only when an input comes late"
                action, needs = awaited
                peer, travel = self._timed[needs].rank, self._timed[action].travel
                found.append(Idle(rank, free, step.start, action, needs, peer, travel))
            free = step.end
        if self.makespan > free:
            found.append(Idle(rank, free, self.makespan, None, None, None, 0))
        return found

    def _awaited(self, step: TimedStep) -> tuple[Action, Action] | None:
        """The action of a step whose input kept the step from starting earlier, and that input's action, if one did."""
        for action in step.actions:
            source, travel = self._timed[action].source, self._timed[action].travel
            if source is not None and self._timed[source].end + travel == step.start:
                return action, source
        return None

    # The chain of work and messages that sets the makespan

    @cached_property
    def critical_path(self) -> list[Span]:
        """The steps, first to last, none of which can take longer without a later end. Between two of them on different
        ranks lies a transfer. Where rank and input are ready at the same time, the path stays on the rank.
        """
        place = {
            action: (rank, number)
            for rank, steps in enumerate(self._steps)
            for number, step in enumerate(steps)
            for action in step.actions
        }
        last = max(chain.from_iterable(self._steps), key=lambda step: step.end)
        path: list[Span] = []
        at: tuple[int, int] | None = place[last.actions[0]]
        while at is not None:
            rank, number = at
            step = self._steps[rank][number]
            path.append(Span(rank, step.start, step.end, "compute", step_name(step.actions)))
            if number > 0 and self._steps[rank][number - 1].end == step.start:
                at = rank, number - 1
            else:
                awaited = self._awaited(step)
                at = None if awaited is None else place[awaited[1]]
        return path[::-1]

    @cached_property
    def slack(self) -> dict[Action, Any]:
        """How much later each action could end without the last one ending later, each rank keeping its order."""
        before: dict[Action, TimedStep] = {}  # a step's first action -> the step before it on its rank
        for steps in self._steps:
            before |= {step.actions[0]: earlier for earlier, step in pairwise(steps)}
        by_end = sorted(chain.from_iterable(self._steps), key=lambda step: step.end, reverse=True)
        latest = dict.fromkeys(self._table.actions, max(self._end))

        def ends_by(action: Action, time: Any) -> bool:
            """Whether it is news that this action must end by then."""
            sooner = bool(time < latest[action])
            if sooner:
                latest[action] = time
            return sooner

        moved = True
        while moved:  # one sweep is enough, but for actions that take no time
            moved = False
            for step in by_end:
                begin = min(latest[action] for action in step.actions) - (step.end - step.start)
                if step.actions[0] in before:
                    moved |= ends_by(before[step.actions[0]].actions[-1], begin)
                for one in map(self._timed.__getitem__, step.actions):
                    if one.source is not None:
                        moved |= ends_by(one.source, begin - one.travel)
        return {
            action: min(latest[one] for one in step.actions) - step.end for step in by_end for action in step.actions
        }

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
        of_stage = activation if isinstance(activation, Sequence) else [activation] * stages
        left_of_stage = pending if isinstance(pending, Sequence) else [pending] * stages
        total, steps = 0, []
        for step in self.steps(rank):
            for kind, stage, _ in step.actions:
                change = int(change_of_kept(kind, of_stage[stage], left_of_stage[stage]))
                if change:
                    total += change
                    steps.append((step.start if kind == "F" else step.end, total))
        return steps
