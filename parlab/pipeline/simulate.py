"""How long a schedule takes: exact times, from stated costs."""

from __future__ import annotations

from typing import Any

from parlab.arguments import checked
from parlab.pipeline.action_costs import UNIT_COSTS, Costs
from parlab.pipeline.arguments import RULES
from parlab.pipeline.dependencies import Program, lower, pair_rows
from parlab.pipeline.replay import replay
from parlab.pipeline.schedule import Schedule
from parlab.pipeline.timeline import ScheduleTimeline


@checked(RULES)
def simulate(schedule: Schedule, costs: Costs = UNIT_COSTS, *, post_validation: bool = False) -> ScheduleTimeline:
    """When each action runs: as soon as its rank is free and its inputs have arrived.

    A message travels for `costs.transfer` and keeps nobody from computing; ranks never wait to send.

    Args:
        post_validation: of the optimizer's step, if `costs.optimizer` says what it takes. False: a rank waits until it
            knows the norm of all gradients, so that no rank can begin its next step early. True: it steps on what the
            ranks before it have passed on, and takes the step back in the rare case that the whole norm, which comes
            around during the next forwards, forbids it (Zero Bubble, section 4).

    Raises:
        ValueError: the schedule cannot run (see `validate`), no `Costs`, or a list of them that is not one a stage.

    >>> from parlab.pipeline import one_f_one_b
    >>> timeline = simulate(one_f_one_b(p=4, m=8))
    >>> timeline.makespan, timeline.peak_activations
    (33, [4, 3, 2, 1])
    """
    program = lower(schedule)
    duration = durations(program, costs)
    lag = _lags(program, costs)
    start, end = replay(program, duration, lag)
    steps = [] if costs.optimizer is None else _optimizer_steps(program, costs, end, post_validation)
    return ScheduleTimeline(program, costs, duration, lag, start, end, steps)


def _optimizer_steps(program: Program, costs: Costs, end: list[Any], post_validation: bool) -> list[tuple[Any, Any]]:
    """Start and end of each rank's step; news of the norm travels from rank to rank like the slowest message."""
    stages, ranks = program.schedule.num_stages, range(program.schedule.num_ranks)
    took, hop = costs.per_stage("optimizer", stages), max(costs.per_stage("transfer", stages))
    done = [max(end[program.first[r] : program.first[r + 1]], default=0) for r in ranks]
    starts = [max(done[q] + abs(r - q) * hop for q in (range(r + 1) if post_validation else ranks)) for r in ranks]
    held = [{action.stage for action in row} for row in program.schedule.actions]
    return [(start, start + sum(took[s] for s in own)) for start, own in zip(starts, held, strict=True)]


def durations(program: Program, costs: Costs) -> list[Any]:
    """How long each row takes; None for the forward of an atomic pair, whose backward has the duration of both."""
    stages = program.schedule.num_stages
    forward, half, weight = (costs.per_stage(n, stages) for n in ("forward", "backward_input", "backward_weight"))
    whole = [i + w for i, w in zip(half, weight, strict=True)]
    by_kind = {"F": forward, "B": whole, "I": half, "W": weight}
    duration: list[Any] = [by_kind[kind][stage] for kind, stage, _ in program.actions]
    if costs.pair is not None:
        together = costs.per_stage("pair", stages)
        for row in pair_rows(program):
            duration[row : row + 2] = None, together[program.actions[row].stage]
    return duration


def _lags(program: Program, costs: Costs) -> list[Any]:
    """How long the input of each row travels: not at all on its own rank."""
    transfer = costs.per_stage("transfer", program.schedule.num_stages)
    if not any(transfer):
        return [0] * len(program.source)
    return [
        transfer[program.actions[needed].stage] if needed >= 0 and program.rank[needed] != rank else 0
        for needed, rank in zip(program.source, program.rank, strict=True)
    ]
