"""A router that a rule balances step by step: the rows of each rank on a clock, and the fullest rank over the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from parlab.arguments import checked, finite
from parlab.views.engine import marks, theme
from parlab.views.engine.arguments import within
from parlab.views.engine.explore import Explorer
from parlab.views.engine.explore import steps as slider
from parlab.views.engine.lanes import name_lanes
from parlab.views.engine.marks import Interval
from parlab.views.engine.picture import Picture, panel, scale, sheet

STEPS, MOST_RANKS = 100, 4
WAIT = theme.KINDS["wait"]
RATES = (0.002, 0.01, 0.05, 0.2, 1.0)  # γ, of the slider
LEFT, RIGHT = 0.9, 0.35  # of both panels, in inches
ROW = (-0.38, 0.38)  # of a lane
Rule = Callable[[Any, Any, int, float], tuple[Any, Any, Any]]


def steps_of(rule: Rule, scores: Sequence[Any], k: int, gamma: float) -> list[np.ndarray]:
    """The choice of each rank's tokens, `[P, T, k]`, before the first step and after each of 100: the scores stay."""
    P, (T, N) = len(scores), np.shape(scores[0])
    every, bias = np.concatenate(scores), np.zeros(N)  # [P·T, N]
    found = []
    for _ in range(STEPS + 1):
        chosen, _, bias = rule(every, bias, k, gamma)
        found.append(np.reshape(chosen, (P, T, k)))
    return found


@checked({"gamma": finite, "k": partial(within, most=8)})
def balanced_rows(rule: Rule, scores: Sequence[Any], k: int = 2, gamma: float = 0.05) -> Picture:
    """Draw the rows of each rank on a clock, a unit of time for each, after 100 steps of a rule that balances a router;
    and below, the rows of the fullest rank over the steps. `explore_balance` shows this.

    Args:
        rule: `rule(scores [T, N], bias [N], k, gamma) -> chosen [T, k], gates [T, k], new bias [N]`, such as
            `labs.balanced`.
        scores: of each of 2 to 4 ranks `[T, N]`, the same in each step.
        k: experts a token.
        gamma: γ, by which a step moves a bias.

    Raises:
        ValueError: other ranks, or experts that do not divide among them.
    """
    P, N = len(scores), np.shape(scores[0])[1]
    if not 2 <= P <= MOST_RANKS or N % P:
        raise ValueError(f"scores: of {P} ranks and {N} experts; 2 to {MOST_RANKS} ranks are needed, that divide them")
    tried = steps_of(rule, scores, k, gamma)
    owners = [chosen // (N // P) for chosen in tried]  # the rank of each row
    fullest = [int(np.bincount(of_step.ravel(), minlength=P).max()) for of_step in owners]
    loads, mean = np.bincount(owners[-1].ravel(), minlength=P), owners[-1].size / P
    late = fullest[-20:]
    said = f"{min(late)}" if min(late) == max(late) else f"{min(late)} to {max(late)}"
    lines = [
        f"γ = {gamma:g}: in the last 20 of {STEPS} steps the layer takes {said} units, the mean is {mean:g}",
        f"after {STEPS} steps: " + ", ".join(f"rank {rank} gets {rows}" for rank, rows in enumerate(loads)),
        "fullest rank: " + ", ".join(f"{fullest[step]} after {step} steps" for step in (0, 10, 30, 60, STEPS)),
    ]
    figure = sheet(lines, 4.6, lines[0])
    width, most = theme.WIDTH - LEFT - RIGHT, max(fullest)
    axes = panel(figure, LEFT, 0.6, width, 1.7)
    axes.set_ylim(P - 0.5, -0.5)
    scale(axes.xaxis, f"units of time after {STEPS} steps, 1 a row (hatched: waits)", ends=(0, most))
    name_lanes(axes, list(range(P)))
    for rank in range(P):
        _draw_rows(axes, rank, tried[-1], owners[-1] == rank, int(loads.max()))
    axes = panel(figure, LEFT, 3.05, width, 1.0)
    axes.plot(range(STEPS + 1), fullest, color=theme.ALARM, linewidth=1.8, gid="fullest")
    axes.axhline(mean, color=theme.INK, linestyle="dashed", linewidth=1.4)
    scale(axes.xaxis, "steps (dashed: the mean)", ends=(0, STEPS))
    scale(axes.yaxis, "fullest, rows", ends=(0, 1.1 * most), ticks=(0, mean, 2 * mean), grid=True)
    return figure


def _draw_rows(axes: Any, rank: int, chosen: np.ndarray, here: np.ndarray, most: int) -> None:
    """A rank's rows, one after another: the colour of their source, the number of their expert; then its wait."""
    source, experts = np.nonzero(here)[0], chosen[here]
    order = np.lexsort((source, experts))
    colors = [theme.rank_color(int(number)) for number in source[order]]
    spans = [Interval(n, n + 1) for n in range(len(order))]
    marks.boxes(axes, f"rows {rank}", spans, [rank] * len(spans), ROW, colors, [[str(e)] for e in experts[order]])
    if len(order) < most:
        marks.hatched_boxes(axes, f"wait {rank}", [Interval(len(order), most)], [rank], ROW, WAIT)


def explore_balance(rule: Rule, scores: Sequence[Any], k: int = 2) -> Explorer:
    """A slider for `balanced_rows`: γ, the rate at which your rule moves a bias."""
    controls = {"gamma": slider("γ", RATES, 0.05, "{:g}".format)}
    return Explorer("explore_balance", controls, partial(balanced_rows, rule, scores, k))
