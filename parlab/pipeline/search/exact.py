"""The best of all schedules, for small sizes."""

from __future__ import annotations

from typing import Any, NamedTuple

from parlab.pipeline.actions import Action
from parlab.pipeline.costs import UNIT_COSTS, Costs, Limit, as_limit
from parlab.pipeline.schedule import Schedule, check_sizes, title
from parlab.pipeline.search.bounds import lower_bound, rank_tasks
from parlab.pipeline.search.straight import zb_auto
from parlab.pipeline.simulate import simulate

MOST_RANKS, MOST_MICROBATCHES = 3, 4


class State(NamedTuple):
    """A part of a schedule, timed; each attribute has an item a rank.

    Attributes:
        done: how many F's, I's and W's the rank has done.
        kept: by its activations, in the unit of the limit.
        free: when its last action ends.
        f_end, i_end: when each of its F's, and each of its I's, ends.
        rows: its actions, in order.
    """

    done: tuple[tuple[int, int, int], ...]
    kept: tuple[float, ...]
    free: tuple[Any, ...]
    f_end: tuple[tuple[Any, ...], ...]
    i_end: tuple[tuple[Any, ...], ...]
    rows: tuple[tuple[Action, ...], ...]


class Option(NamedTuple):
    """An action of this kind that a rank may do next, and when. The one that ends first is the least."""

    end: Any
    rank: int
    kind: str
    start: Any


def best_schedule(p: int, m: int, costs: Costs = UNIT_COSTS, memory_limit: Limit = None) -> Schedule:
    """The shortest schedule by makespan of stage r on rank r, among all with full or split backwards within the memory.

    Branch and bound, over schedules with microbatches in order and split backwards: these are enough (see
    `lower_bound`). Of all actions that can come next, let A end first, at time C, on rank r. Some best schedule next
    runs on r either A or an action that starts before C. Otherwise A would fit in front of that action and delay
    nothing (Giffler and Thompson, 1960). Limited memory does not change this: if A is an I or W, it frees memory
    earlier; if A is an F, there is room for it now, and it moves past I's and W's alone. A branch is cut where its
    bound is no better than the best schedule so far. It is also cut where another branch did the same actions, and each
    of them that still matters ended no later.

    Args:
        p: at most 3. m: at most 4: beyond that the search takes too long.

    Raises:
        ValueError: larger sizes, or as of `lower_bound`.

    >>> from parlab.pipeline import best_schedule, simulate, zb_h1
    >>> costs = Costs(forward=3, backward_input=2, backward_weight=2)
    >>> simulate(zb_h1(p=3, m=3), costs).makespan, simulate(best_schedule(p=3, m=3, costs=costs), costs).makespan
    (27, 27)
    """
    check_sizes(p=p, m=m)
    if p > MOST_RANKS or m > MOST_MICROBATCHES:
        raise ValueError(f"p={p}, m={m}: all orders can be searched for p ≤ {MOST_RANKS} and m ≤ {MOST_MICROBATCHES}")
    least = lower_bound(p, m, costs, memory_limit)
    start = zb_auto(p, m, costs, memory_limit, tries=20, metric="makespan")
    best, shortest = start.actions, simulate(start, costs).makespan
    search = _BranchAndBound(p, m, costs, memory_limit)
    none = ((),) * p
    stack = [State(((0, 0, 0),) * p, (0,) * p, (0,) * p, none, none, none)]
    while stack and shortest > least:
        state = stack.pop()
        if search.bound(state) >= shortest or search.seen_better(state):
            continue
        branches = search.branches(state)
        if not branches:
            best, shortest = state.rows, max(state.free)
        stack += sorted(branches, key=search.bound, reverse=True)
    return Schedule(best, name=title("best possible", p, m))


class _BranchAndBound:
    """The branches of a state, its bound, and the states that were seen.

    Invariant: in each state a stage has done its microbatches in order, so three numbers a rank say which are done.
    """

    def __init__(self, p: int, m: int, costs: Costs, memory_limit: Limit) -> None:
        self.p, self.m = p, m
        names = ("forward", "backward_input", "backward_weight", "transfer")
        self.forward, self.half, self.weight, self.transfer = (costs.per_stage(name, p) for name in names)
        limit = as_limit(memory_limit)
        self.limits, self.change = limit.of_ranks(p), limit.changes
        tasks = rank_tasks(p, m, costs, memory_limit)  # of a rank F, I, W, F, I, W, ... from the last microbatch back
        self.f_tail = [[task.tail for task in reversed(of_rank[::3])] for of_rank in tasks]
        self.i_tail = [[task.tail for task in reversed(of_rank[1::3])] for of_rank in tasks]
        self.seen: dict[Any, list[tuple[Any, ...]]] = {}

    def f_ready(self, state: State, r: int) -> Any:
        """When the input of a rank's next F is there; None: no F is left, or not before more is decided."""
        f, _, _ = state.done[r]
        if f == self.m:
            return None
        if r == 0:
            return 0
        before = state.f_end[r - 1]
        return before[f] + self.transfer[r - 1] if f < len(before) else None

    def i_ready(self, state: State, r: int) -> Any:
        """When the gradient of a rank's next I is there; None: its F is not done, or not before more is decided."""
        f, i, _ = state.done[r]
        if i == f:
            return None
        if r == self.p - 1:
            return 0
        after = state.i_end[r + 1]
        return after[i] + self.transfer[r + 1] if i < len(after) else None

    def branches(self, state: State) -> list[State]:
        """The states after each action that may come next (Giffler and Thompson, see `best_schedule`)."""
        options: list[Option] = []
        for r in range(self.p):
            _, i, w = state.done[r]
            has_room = state.kept[r] + self.change["F"] <= self.limits[r]
            f_ready, i_ready = self.f_ready(state, r) if has_room else None, self.i_ready(state, r)
            for kind, ready, duration in (("I", i_ready, self.half[r]), ("F", f_ready, self.forward[r])):
                if ready is not None:
                    start = max(ready, state.free[r])
                    options.append(Option(start + duration, r, kind, start))
            if w < i:
                options.append(Option(state.free[r] + self.weight[r], r, "W", state.free[r]))
        if not options:
            return []
        first = min(options)
        chosen = [one for one in options if one == first or (one.rank == first.rank and one.start < first.end)]
        return [self.after(state, one) for one in chosen]

    def after(self, state: State, option: Option) -> State:
        """The state in which a rank has done this action more."""
        end, r, kind, _ = option
        f, i, w = state.done[r]
        number = {"F": f, "I": i, "W": w}[kind]
        return State(
            _put(state.done, r, (f + (kind == "F"), i + (kind == "I"), w + (kind == "W"))),
            _put(state.kept, r, state.kept[r] + self.change[kind]),
            _put(state.free, r, end),
            _put(state.f_end, r, (*state.f_end[r], end)) if kind == "F" else state.f_end,
            _put(state.i_end, r, (*state.i_end[r], end)) if kind == "I" else state.i_end,
            _put(state.rows, r, (*state.rows[r], Action(kind, r, number))),
        )

    def bound(self, state: State) -> Any:
        """No schedule that goes on from here is shorter: a rank has its work to do, and its next action has a tail."""
        latest = 0
        for r in range(self.p):
            f, i, w = state.done[r]
            free, f_ready, i_ready = state.free[r], self.f_ready(state, r), self.i_ready(state, r)
            work = (self.m - f) * self.forward[r] + (self.m - i) * self.half[r] + (self.m - w) * self.weight[r]
            latest = max(latest, free + work)
            if f_ready is not None:
                latest = max(latest, max(free, f_ready) + self.forward[r] + self.f_tail[r][f])
            if i < self.m:
                latest = max(latest, max(free, i_ready or 0) + self.half[r] + self.i_tail[r][i])
        return latest

    def seen_better(self, state: State) -> bool:
        """Whether the same actions were done before, and nothing that still matters ended later."""
        matters = list(state.free)
        for r in range(self.p):  # an end matters until the neighbour has done what needs it
            matters += state.f_end[r][state.done[r + 1][0] :] if r + 1 < self.p else ()
            matters += state.i_end[r][state.done[r - 1][1] :] if r else ()
        known = self.seen.setdefault(state.done, [])
        if any(all(a <= b for a, b in zip(other, matters, strict=True)) for other in known):
            return True
        known.append(tuple(matters))
        return False


def _put(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*values[:place], value, *values[place + 1 :])
