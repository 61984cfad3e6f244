"""Right answers to the exercises of notebook 04b, in several styles each."""

import math
from collections import deque
from itertools import accumulate

import numpy as np

from parlab.pipeline import Action, Costs, balance, lower_bound
from tests.labs import answers
from tests.labs.right_answers_04_to_06 import RIGHT, of

__all__ = ["RIGHT"]


@of("04b.lower_bound")
def by_the_library(p, m, limit, f, i, w, c):
    return lower_bound(p, m, Costs(f, i, w, c), limit)


@of("04b.lower_bound")
def of_every_stage(p, m, limit, f, i, w, c):
    """Of each rank: when its first input comes, its work, and what the last I has still to go."""
    best = (p - 1) * (f + i + 2 * c) + m * (f + i + w) - (min(limit, m) - 1) * w
    for rank in range(p):
        below = p - 1 - rank
        work = rank * (f + c) + m * (f + i + w)
        place = rank * (f + c) + math.ceil(m / limit) * ((below + 1) * (f + i) + 2 * below * c + w)
        best = max(best, work, place)
    return best


@of("04b.lower_bound")
def microbatch_by_microbatch(p, m, limit, f, i, w, c):
    """Rank 0 starts a microbatch in the place that was free first."""
    free, trip = [0.0] * limit, sum(f + i for _ in range(p)) + sum(2 * c for _ in range(p - 1)) + w
    for _ in range(m):
        place = free.index(min(free))
        free[place] += trip
    start = sum(f + c for _ in range(p - 1))
    done = start + m * f + m * i + sum(w for one in range(m) if one >= limit)
    return max(*free, start + m * f + m * i + m * w, done + sum(i + c for _ in range(p - 1)) + w)


@of("04b.lower_bound")
def as_numpys_number(p, m, limit, f, i, w, c):
    return np.float64(answers.none_is_below(p, m, limit, f, i, w, c))


@of("04b.place_weights")
def with_a_deque_and_a_tuple(row, arrivals, limit):
    waiting, placed, time, kept = deque(), [], 0, 0
    for number, action in enumerate(row):
        arrival = arrivals[number]
        while waiting and time < arrival:
            placed.append(waiting.popleft())
            time += 1
            kept -= 1
        if action.kind == "F" and kept == limit:
            placed.append(waiting.popleft())
            time += 1
            kept -= 1
        placed.append(action)
        time = max(time + 1, arrival + 1)
        if action.kind == "F":
            kept += 1
        else:
            waiting.append(Action("W", action.stage, action.microbatch))
    return (*placed, *waiting)


@of("04b.place_weights")
def newest_first(row, arrivals, limit):
    placed, stack, time, kept = [], [], 0, 0
    for action, arrival in zip(row, arrivals, strict=True):
        while stack and (arrival > time or (kept >= limit and action.kind == "F")):
            placed += [stack.pop()]
            time, kept = time + 1, kept - 1
        placed += [action]
        time, kept = max(arrival, time) + 1, kept + (action.kind == "F")
        stack += [action._replace(kind="W")] * (action.kind == "I")
    return placed + stack[::-1]


@of("04b.place_weights")
def unit_by_unit(row, arrivals, limit):
    todo, placed, put_off, time, kept = list(zip(row, arrivals, strict=True)), [], [], 0, 0
    while todo or put_off:
        ready = todo and todo[0][1] <= time and not (todo[0][0].kind == "F" and kept == limit)
        if ready:
            action, _ = todo.pop(0)
            placed.append(action)
            kept += action.kind == "F"
            put_off += [action._replace(kind="W")] * (action.kind == "I")
        elif put_off:
            placed.append(put_off.pop(0))
            kept -= 1
        time += 1
    return placed


@of("04b.uneven")
def as_ranges(layers, p):
    return balance(layers, p)


@of("04b.uneven")
def with_numpys_integers(layers, p):
    return np.array(answers.cut(layers, p))


@of("04b.uneven")
def by_dynamic_programming(layers, p):
    before = list(accumulate(layers, initial=0))
    best = {0: (0, [])}
    for stages_left in reversed(range(p)):
        ends = range(p - stages_left, len(layers) - stages_left + 1) if stages_left else [len(layers)]
        best = {
            stop: min(
                (max(slowest, before[stop] - before[start]), [*numbers, stop - start])
                for start, (slowest, numbers) in best.items()
                if start < stop
            )
            for stop in ends
        }
    return best[len(layers)][1]
