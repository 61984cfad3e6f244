"""Sharded weights under a schedule: gathered, freed and reduced where its cells say so."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Protocol

from parlab.nn.stage import Gradients, add_gradients
from parlab.pipeline.schedule import Schedule


class Waiting(Protocol):
    """What was begun and ends later."""

    def wait(self) -> object:
        """Return when it has ended."""


class ShardedWeights(Protocol):
    """The weights of a stage of which each rank of some group keeps a shard. What a call begins may go on behind its
    back: it then returns what `wait()` ends; else None."""

    def unshard(self) -> Waiting | None:
        """Gather the whole weights (`UNSHARD`)."""

    def reshard(self) -> None:
        """Free all but the own shard (`RESHARD`)."""

    def reduce_gradients(self, gradients: Gradients) -> Waiting | None:
        """Sum over the group what this rank has added up since the last time (`REDUCE_GRAD`)."""


class Sharding:
    """The cells of a rank, in step with its actions: `UNSHARD`, `RESHARD`, `REDUCE_GRAD` and their `WAIT_`s.

    What has no wait of its own is waited for before the first action that needs it, or at the end.

    Raises:
        ValueError: an action on a stage that is not gathered then, or gradients that nothing reduces.
    """

    def __init__(self, schedule: Schedule, rank: int, weights: Mapping[int, ShardedWeights]) -> None:
        self.weights = weights
        self.actions = schedule.actions[rank]
        listed = schedule.sharding[rank] if schedule.sharding else ()
        self.cells = deque((place, cell) for place, cell in listed if cell.stage in weights)
        self.unreduced: dict[int, Gradients] = {}
        self.begun: dict[tuple[str, int], Waiting] = {}
        self._check(rank)

    def __contains__(self, stage: int) -> bool:
        return stage in self.weights

    def add(self, stage: int, gradients: Gradients) -> None:
        """Keep gradients for the next `REDUCE_GRAD` of their stage."""
        self.unreduced[stage] = add_gradients(self.unreduced.get(stage, {}), gradients)

    def before(self, place: int | None) -> None:
        """Do the cells that come before the rank's action number `place`; all that are left for None."""
        while self.cells and (place is None or self.cells[0][0] <= place):
            kind, stage, _ = self.cells.popleft()[1]
            if kind == "UNSHARD":
                self._begin(kind, stage, self.weights[stage].unshard())
            elif kind == "REDUCE_GRAD":
                self._begin(kind, stage, self.weights[stage].reduce_gradients(self.unreduced.pop(stage, {})))
            elif kind == "RESHARD":
                self._end("UNSHARD", stage)
                self.weights[stage].reshard()
            else:
                self._end(kind.removeprefix("WAIT_"), stage)
        if place is not None:
            self._end("UNSHARD", self.actions[place].stage)
        for kind, stage in list(self.begun) if place is None else ():
            self._end(kind, stage)

    def _begin(self, kind: str, stage: int, waiting: Waiting | None) -> None:
        self._end(kind, stage)
        if waiting is not None:
            self.begun[kind, stage] = waiting

    def _end(self, kind: str, stage: int) -> None:
        if (kind, stage) in self.begun:
            self.begun.pop((kind, stage)).wait()

    def _check(self, rank: int) -> None:
        gathered: set[int] = set()
        unreduced: dict[int, str] = {}
        cells = deque(self.cells)
        for place in range(len(self.actions) + 1):
            while cells and cells[0][0] <= place:
                kind, stage, _ = cells.popleft()[1]
                if kind == "UNSHARD":
                    gathered.add(stage)
                elif kind == "RESHARD":
                    gathered.discard(stage)
                elif kind == "REDUCE_GRAD":
                    unreduced.pop(stage, None)
            action = self.actions[place] if place < len(self.actions) else None
            if action and action.stage in self.weights:
                if action.stage not in gathered:
                    stage = action.stage
                    raise ValueError(
                        f"rank {rank}: {action} needs the weights of stage {stage}: put {stage}UNSHARD before it"
                    )
                if action.kind in "BW":
                    unreduced[action.stage] = str(action)
        for stage, last in unreduced.items():
            raise ValueError(f"rank {rank}: nothing reduces the gradients of {last}: put {stage}REDUCE_GRAD after it")
