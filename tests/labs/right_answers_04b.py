"""Right answers to the exercises of notebook 04b, in several styles each."""

from collections import deque

import numpy as np

from parlab.pipeline import Action, Costs, balance, lower_bound
from tests.labs import answers
from tests.labs.right_answers_04_to_06 import RIGHT, of

__all__ = ["RIGHT"]


@of("04b.lower_bound")
def by_the_library(p, m, limit, f, i, w, c):
    return lower_bound(p, m, Costs(f, i, w, c), limit)


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


@of("04b.uneven")
def as_ranges(layers, p):
    return balance(layers, p)


@of("04b.uneven")
def with_numpys_integers(layers, p):
    return np.array(answers.cut(layers, p))
