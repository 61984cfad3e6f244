"""A pipeline step on real processes, whose stages sleep as long as they would compute; and what a watch saw of it.

A sleep needs no core, so two cores can play four machines.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from parlab.arguments import instance
from parlab.nn.stage import Stage
from parlab.pipeline import Costs, Schedule, run_schedule
from parlab.world import Comm, Run, run

LAYER, HEAD = 0.015, 2.4  # seconds of a layer's forward, of its I and of its W; the head of Llama 3 8B, in layers
EVEN = (4, 4, 4, 4)


class Sleeper(Stage):
    """A stage that sleeps for `seconds` in its forward, and for as long in each half of its backward."""

    weights, weight_names = {}, ()

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def forward(self, x: Any, targets: Any = None) -> tuple[Any, None]:
        """See `Stage`."""
        time.sleep(self.seconds)
        return (x if targets is None else 0.0), None

    def backward_input(self, dy: Any, cache: Any) -> tuple[Any, None]:
        """See `Stage`."""
        time.sleep(self.seconds)
        return np.zeros((1, 4)), None

    def backward_weight(self, pending: Any) -> dict[str, Any]:
        """See `Stage`."""
        time.sleep(self.seconds)
        return {}


def stage_costs(layers: Sequence[float], layer: float = LAYER, head: float = 0.0) -> Costs:
    """The costs of stages of so many layers, the last one with the head: F, and both halves of B, take as long.

    Args:
        layers: how many each stage has.
        layer, head: seconds of a forward.

    >>> stage_costs([5, 5, 4, 2], layer=10, head=24).forward
    [50, 50, 40, 44]
    """
    forward = [layer * number for number in layers]
    forward[-1] += head
    return Costs(forward=forward, backward_input=forward, backward_weight=forward)


def step_on_processes(schedule: Schedule, layers: Sequence[int] = EVEN, told: Costs | None = None) -> Run:
    """Run a pipeline step on one process a rank, by MPI. Each stage sleeps: 15 ms a layer in a forward, and
    twice as long in a backward. The last one has the head, too, which takes as long as 2.4 layers.

    Args:
        schedule: with a stage on each rank.
        layers: how many each stage has.
        told: the costs for the simulated clock, in seconds; None: those of the layers, without the head.

    Raises:
        ValueError: another number of stages, or no MPI on this machine.
    """
    instance("schedule", schedule, Schedule)
    if len(layers) != schedule.num_ranks:
        raise ValueError(f"layers={layers!r}: must have a number for each of {schedule.num_ranks} ranks")
    told = stage_costs(layers) if told is None else told
    slept = stage_costs(layers, head=HEAD * LAYER).per_stage("forward", schedule.num_ranks)
    return run(_step, schedule.num_ranks, schedule, list(map(Sleeper, slept)), told, engine="mpi")


def _step(comm: Comm, schedule: Schedule, stages: list[Sleeper], told: Costs) -> None:
    comm.barrier()  # processes do not start together
    x = [np.zeros((1, 4))] * schedule.num_microbatches
    run_schedule(comm, schedule, stages, x, x, costs=told, like=x[0])


def watched(step: Run) -> list[tuple[float, float]]:
    """The seconds of the fastest forward and of the fastest whole backward on each rank, by the watch of a 1F1B step.

    The fastest one, because a busy moment of the machine makes others longer, and none shorter.

    Raises:
        ValueError: a run without a watch, as one on threads is.
    """
    instance("step", step, Run)
    clock = step.wallclock
    if clock is None:
        raise ValueError("step: threads have no watch; run it with engine='mpi'")
    spans = [[span for span in clock.computes if span.rank == rank] for rank in range(clock.size)]
    return [(_fastest(of_rank, "F"), _fastest(of_rank, "B")) for of_rank in spans]


def _fastest(spans: Sequence[Any], kind: str) -> float:
    return min(span.end - span.start for span in spans if kind in span.name) / 1e12  # a clock counts picoseconds
