"""A timetable on a V in units of time: one microbatch's block, repeated, and then moved left."""

from __future__ import annotations

from collections import deque
from itertools import accumulate

from parlab.pipeline.actions import Action
from parlab.pipeline.costs import change_of_kept
from parlab.pipeline.dependencies import input_from, kept_from
from parlab.pipeline.search.weights import Rows, skeleton_of

Offsets = list[tuple[int, ...]]  # of each rank, where microbatch 0's start: down the V, up, its backward down and up
LENGTH = {"F": 1, "I": 1, "W": 1, "B": 2}  # of an action, in units
CHANGE = {kind: int(change_of_kept(kind)) for kind in "FIWB"}  # of the chunks that its rank keeps, by an action
CHANGES_AFTER = LENGTH | {"F": 0}  # units from its start to that: an F keeps at once, the others free at their end


class Timetable:
    """A timetable: each action starts in a unit of time. At first it is a block of m microbatches, each `period` units
    after the one before, with W's in the units that are left.

    Invariant: a rank does at most one action in a unit, and each action starts when its inputs are there.

    Args:
        kinds: of the four actions of the block on each rank: `FFII` or `FFBB`.

    Source: Pipeline Parallelism with Controllable Memory (Qi et al., 2024), section 3: repeat, squeeze, reorder.
    """

    def __init__(self, offsets: Offsets, kinds: str, m: int, period: int = 6) -> None:
        self.last = 2 * len(offsets) - 1
        self.ranks: list[dict[int, Action]] = [{} for _ in offsets]  # unit -> action; a B stands in both of its units
        self.starts: dict[Action, int] = {}
        for r, of_block in enumerate(offsets):
            for kind, stage, start in zip(kinds, (r, self.last - r, self.last - r, r), of_block, strict=True):
                for i in range(m):
                    self._put(Action(kind, stage, i), start + period * i)
            self._place_weights(r)
        self.peak = max(max(self._kept(r)) for r in range(len(offsets)))

    def _rank(self, action: Action) -> int:
        return min(action.stage, self.last - action.stage)

    def _put(self, action: Action, unit: int) -> None:
        self.starts[action] = unit
        for taken in range(unit, unit + LENGTH[action.kind]):
            self.ranks[self._rank(action)][taken] = action

    def _advance(self, action: Action, first: int) -> int:
        """Move an action to where it fits, from the unit `first` on, if that is earlier; returns where it starts."""
        row, unit, length = self.ranks[self._rank(action)], self.starts[action], LENGTH[action.kind]
        for taken in range(unit, unit + length):
            del row[taken]
        while first < unit and any(first + i in row for i in range(length)):
            first += 1
        self._put(action, min(first, unit))
        return self.starts[action]

    def _place_weights(self, r: int) -> None:
        """Each W of a rank goes into the first free unit behind its I."""
        row, pending = self.ranks[r], deque[Action]()
        unit, last = 0, max(row)
        while unit <= last or pending:
            if unit in row and row[unit].kind == "I":
                pending.append(row[unit]._replace(kind="W"))
            elif unit not in row and pending:
                self._put(pending.popleft(), unit)
            unit += 1

    def _kept(self, r: int) -> list[int]:
        """Chunks kept in each unit, from an F on, until its W or B has ended."""
        changes = [0] * (max(self.ranks[r]) + 2)
        for action in set(self.ranks[r].values()):
            changes[self.starts[action] + CHANGES_AFTER[action.kind]] += CHANGE[action.kind]
        return list(accumulate(changes))

    def _ready(self, action: Action) -> int:
        """The first unit in which its inputs are there."""
        needed = [kept_from(action), *input_from(action, self.last)]
        return max((self.starts[a] + LENGTH[a.kind] for a in needed if a in self.starts), default=0)

    def _in_order(self) -> list[tuple[Action, int]]:
        return sorted(self.starts.items(), key=lambda item: (item[1], item[0].stage))

    def squeeze(self, peak: int) -> None:
        """Move each action, the earliest first, to the first free unit in which it is ready and its rank keeps no more
        than `peak` chunks."""
        kept = [self._kept(r) for r in range(len(self.ranks))]
        for action, unit in self._in_order():
            of_rank, first = kept[self._rank(action)], self._ready(action)
            if action.kind == "F":  # behind the last unit in which the memory is full
                first = next((s + 1 for s in reversed(range(first, unit)) if of_rank[s] >= peak), first)
            earlier, changes_after = self._advance(action, first), CHANGES_AFTER[action.kind]
            for s in range(earlier + changes_after, unit + changes_after):
                of_rank[s] += CHANGE[action.kind]

    def shorten_cooldown(self) -> None:
        """After a rank's last F memory does not matter: take its W's out, and move its I's up."""
        ends = [max(unit for unit, action in row.items() if action.kind == "F") for row in self.ranks]
        for action, unit in self._in_order():
            end = ends[self._rank(action)]
            if action.kind == "W" and unit > end:
                del self.ranks[self._rank(action)][self.starts.pop(action)]
        for action, unit in self._in_order():
            end = ends[self._rank(action)]
            if action.kind == "I" and unit > end:
                self._advance(action, max(self._ready(action), end + 1))

    def rows(self) -> Rows:
        """The actions of each rank, in order."""
        return [[row[s] for s in sorted(row) if self.starts[row[s]] == s] for row in self.ranks]

    def order_within(self, peak: int) -> Rows:
        """The order of the F's and I's within `peak` chunks: the W's find their places when it is timed."""
        self.squeeze(peak)
        self.shorten_cooldown()
        return skeleton_of(self.rows())
