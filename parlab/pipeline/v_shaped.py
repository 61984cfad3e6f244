"""Schedules on a V: rank r has the stages r and 2p − 1 − r, so that a microbatch comes back to where it started.

Letters as in `schedules.py`; a chunk is one of the two stages of a rank, half of its layers. F, I and W are times of a
chunk, and where they are equal one of them is a slot.
"""

from __future__ import annotations

from collections import deque

from parlab.pipeline.actions import Action
from parlab.pipeline.memory import Limit, limit_tables
from parlab.pipeline.schedule import Schedule
from parlab.pipeline.schedules import check_sizes
from parlab.pipeline.simulate import Costs
from parlab.pipeline.weights import Filled, fill, skeleton_of

Offsets = list[tuple[int, int, int, int]]  # of each rank, the slots of F, F, I, I of microbatch 0 along the V


def zb_v(p: int, m: int) -> Schedule:
    """Two chunks a rank on a V, backwards in two halves: rank r starts with 2(p − r) − 1 forwards of its first chunk.
    No idle time by longest stage, p − 1 slots by makespan, where F = I = W and m ≥ 2p − 1; keeps 2p chunks.

    Source: Zero Bubble Pipeline Parallelism (Qi et al., 2024), section 6.

    >>> print(zb_v(p=1, m=2))
    rank 0: 0F0 1F0 1I0 1W0 0F1 0I0 0W0 1F1 1I1 1W1 0I1 0W1
    """
    check_sizes(p=p, m=m)
    ranks = [[action for action in _zb_v_rank(r, p, max(m, 2 * p - 1)) if action.microbatch < m] for r in range(p)]
    return Schedule(ranks, name=f"ZB-V, {p} ranks, {m} microbatches")


def _zb_v_rank(r: int, p: int, m: int) -> list[Action]:
    actions: list[Action] = []
    done = dict.fromkeys([(kind, stage) for kind in "FIW" for stage in (r, 2 * p - 1 - r)], 0)
    first, second = r, 2 * p - 1 - r

    def do(times: int, *cycle: tuple[str, int]) -> None:
        for _ in range(times):
            for kind, stage in cycle:
                actions.append(Action(kind, stage, done[kind, stage]))
                done[kind, stage] += 1

    do(2 * (p - r) - 1, ("F", first))
    do(r, ("F", second), ("F", first))
    do(p - r, ("F", second), ("I", second), ("W", second))
    returning = [("I", first), ("W", first), ("F", second), ("I", second), ("W", second)]
    do(m - done["F", first], ("F", first), *returning)
    do(m - done["F", second], *returning)
    do(r, ("I", first), ("I", second))
    do(p - r, ("I", first), ("W", first))
    for stage in (second, first):
        do(m - done["W", stage], ("W", stage))
    return actions


def v_half(p: int, m: int) -> Schedule:
    """Half of the activations of 1F1B: keeps p + 2 chunks (p + 1 for odd p), where 1F1B keeps p stages of two.

    Source: Pipeline Parallelism with Controllable Memory (Qi et al., 2024), section 3.3.
    """
    check_sizes(p=p, m=m)
    shift = 3 if p % 2 == 0 else 0
    offsets = [(2 * r, 3 * p - 2 - r, 3 * p - 1 + shift + 2 * r, 6 * p - 2 + shift - r) for r in range(p)]
    return Schedule(_squeezed(offsets, m, Costs(), None).rows, name=f"V-Half, {p} ranks, {m} microbatches")


def v_min(p: int, m: int) -> Schedule:
    """A third of the activations of 1F1B, towards large p: keeps 2⌊(p + 4)/3⌋ chunks, at least 4.

    Source: Pipeline Parallelism with Controllable Memory (Qi et al., 2024), section 3.3.
    """
    check_sizes(p=p, m=m)
    return Schedule(_squeezed(_v_min_offsets(p), m, Costs(), None).rows, name=f"V-Min, {p} ranks, {m} microbatches")


def whole_chunks(limit: Limit, p: int) -> int:
    """How many whole chunks fit on every rank of a V."""
    limits, whole, _ = limit_tables(limit, p, 2 * p)
    return int(min(min(limits) // max(whole), 2**31)) if max(whole) else 2**31


def _v_min_offsets(p: int) -> Offsets:
    shift = 2 if p % 3 == 0 else 0
    return [(r, 2 * p - 1 - r, 2 * p + shift + r, 4 * p - 1 + shift - r) for r in range(p)]


def _squeezed(offsets: Offsets, m: int, costs: Costs, memory_limit: Limit, period: int = 6) -> Filled:
    """The blocks of m microbatches, `period` slots apart, moved left as far as the limit allows (None: as far as the
    blocks' own peak does), and timed with these costs."""
    slots = Slots(offsets, m, period)
    limit = slots.peak if memory_limit is None else memory_limit
    slots.squeeze(whole_chunks(limit, slots.p))
    slots.let_go()
    filled = fill(skeleton_of(slots.rows()), costs, limit)
    assert filled is not None, "the slots themselves are a way to run it"
    return filled


class Slots:
    """A timetable in slots of one unit: F, I and W take one each, a rank does one at a time.

    It starts as one block of offsets, repeated every `period` slots, with the W's in the slots that are left.
    """

    def __init__(self, offsets: Offsets, m: int, period: int) -> None:
        self.p, self.last = len(offsets), 2 * len(offsets) - 1
        self.ranks: list[dict[int, Action]] = [{} for _ in offsets]  # slot -> action
        self.slot: dict[Action, int] = {}
        for r, starts in enumerate(offsets):
            for kind, stage, start in zip("FFII", (r, self.last - r, self.last - r, r), starts, strict=True):
                for i in range(m):
                    self._put(r, start + period * i, Action(kind, stage, i))
            self._fill(r)
        self.peak = max(max(self._kept(r)) for r in range(self.p))

    def _put(self, r: int, slot: int, action: Action) -> None:
        self.ranks[r][slot] = action
        self.slot[action] = slot

    def _move(self, r: int, slot: int, earlier: int) -> None:
        self._put(r, earlier, self.ranks[r].pop(slot))

    def _fill(self, r: int) -> None:
        pending: deque[Action] = deque()
        slot, last = 0, max(self.ranks[r])
        while slot <= last or pending:
            action = self.ranks[r].get(slot)
            if action is None and pending:
                self._put(r, slot, pending.popleft())
            elif action and action.kind == "I":
                pending.append(action._replace(kind="W"))
            slot += 1

    def _kept(self, r: int) -> list[int]:
        """Chunks kept in each slot; a W frees from the next slot on."""
        kept, total = [], 0
        for slot in range(max(self.ranks[r]) + 1):
            action = self.ranks[r].get(slot)
            total += action is not None and action.kind == "F"
            kept.append(total)
            total -= action is not None and action.kind == "W"
        return kept

    def _ready(self, action: Action) -> int:
        """The first slot in which its inputs are there."""
        kind, stage, microbatch = action
        before = {
            "F": [Action("F", stage - 1, microbatch)],
            "I": [Action("F", stage, microbatch), Action("I", stage + 1, microbatch)],
            "W": [Action("I", stage, microbatch)],
        }
        return max((self.slot[needed] + 1 for needed in before[kind] if needed in self.slot), default=0)

    def squeeze(self, peak: int) -> None:
        """Move each action, the earliest first, to the first free slot in which it is ready and no rank keeps more than
        `peak` chunks."""
        kept = [self._kept(r) for r in range(self.p)]
        for action, slot in self._in_order():
            r = min(action.stage, self.last - action.stage)
            first = self._ready(action)
            if action.kind == "F":
                full = (s for s in range(slot - 1, first - 1, -1) if kept[r][s] >= peak)
                first = next(full, first - 1) + 1
            earlier = next(s for s in range(first, slot + 1) if s == slot or s not in self.ranks[r])
            self._move(r, slot, earlier)
            if action.kind != "I":
                for s in range(earlier + (action.kind == "W"), slot + (action.kind == "W")):
                    kept[r][s] += 1 if action.kind == "F" else -1

    def let_go(self) -> None:
        """After a rank's last forward no memory is missed: its I's come first, and its W's fill up afterwards."""
        ends = [max(slot for slot, action in row.items() if action.kind == "F") for row in self.ranks]
        for row, end in zip(self.ranks, ends, strict=True):
            for slot in [slot for slot, action in row.items() if action.kind == "W" and slot > end]:
                del self.slot[row.pop(slot)]
        for action, slot in self._in_order():
            r = min(action.stage, self.last - action.stage)
            if action.kind == "I" and slot > ends[r]:
                first = max(self._ready(action), ends[r] + 1)
                self._move(r, slot, next(s for s in range(first, slot + 1) if s == slot or s not in self.ranks[r]))

    def _in_order(self) -> list[tuple[Action, int]]:
        return sorted(self.slot.items(), key=lambda item: (item[1], item[0].stage))

    def rows(self) -> list[list[Action]]:
        """The actions of each rank, in order."""
        return [[row[slot] for slot in sorted(row)] for row in self.ranks]
