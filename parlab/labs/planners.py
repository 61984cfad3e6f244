"""The planners of lesson 08 that are wrong on purpose: they forget a kind of seconds, or send gradients otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parlab.plan import LLAMA_3, LLAMA_405B, Estimate, Layout, Plans, estimate, validation
from parlab.world import DGX_H100
from parlab.zero import StateBytes

PLANNER_GUESSES = {  # the usual wrong guesses of lesson 08, and the reasoning that leads there
    "column": (3, "Meta must have thrown activations away, to compute them again"),
    "refuted": (3, "the three that are larger than the card"),
    "without dp": (6.1, "4.5 % more than it promised"),
}


def wrong_column() -> int:
    """The column of the bill in `views.two_runs` that is wrong: 4, the microbatches that are kept at a time."""
    return 4


def ways_to_send(layout: Layout, **step: Any) -> dict[str, Estimate]:
    """The bill of a ZeRO-2 layout of Llama 3 405B by when gradients are sent: each microbatch, each group, or the step.

    Gradients that wait for the end of the step are whole: the layout is ZeRO-1 then, and its bill stands there twice,
    with gradients held in bf16 and in float32.
    """
    each = LLAMA_3.but(sends_by_group=False)
    ways = {
        "each microbatch": (layout, each, 2),
        f"each group of {layout.pp}": (layout, LLAMA_3, 2),
        "the whole step, in bf16": (layout.but(zero=1), LLAMA_3, 2),
        "the whole step, in float32": (layout.but(zero=1), LLAMA_3, 4),
    }
    return {
        way: estimate(LLAMA_405B, DGX_H100, sent, software=software, state=StateBytes(2, gradient, 12), **step)
        for way, (sent, software, gradient) in ways.items()
    }


def choice_without(plans: Plans, kind: str) -> Estimate:
    """The choice of a planner that forgets this kind of seconds, with all kinds counted."""
    blind = replace(plans, grid=replace(plans.grid, seconds=plans.grid.seconds | {kind: 0.0}))
    return plans.grid[blind.order[0]]


def error_without(kind: str) -> float:
    """Its mean error on ten runs of Megatron (Narayanan et al. 2021, table 1), as a fraction."""
    return validation(without=kind).errors["Narayanan 2021, table 1"][0]
