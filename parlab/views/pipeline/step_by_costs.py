"""One pipeline step by several costs, such as those that the clock was told and those that a watch has seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parlab.arguments import one_of
from parlab.pipeline import Costs, Schedule, simulate
from parlab.views.engine.explore import Explorer, choice, steps
from parlab.views.engine.picture import Picture
from parlab.views.world.compare_timelines import compare_timelines

CostsOf = Mapping[str, Callable[[Sequence[int]], Costs]]


def step_by_costs(
    schedules: Mapping[str, Schedule], costs: CostsOf, *, schedule: str, layers: Sequence[int]
) -> Picture:
    """Draw a step of `schedules[schedule]` once for each of the costs, below each other on one clock.

    Args:
        schedules: by name.
        costs: by name, a function that takes the layers of each stage, and returns costs in seconds: of F, I, W and a
            transfer.
        schedule: which of `schedules`.
        layers: how many each stage has.

    Raises:
        ValueError: another schedule, no costs, or costs that do not fit it.
    """
    one_of("schedule", schedule, list(schedules))
    if not costs:
        raise ValueError("costs={}: give one or more, each a function of the layers")
    shown = {name: simulate(schedules[schedule], _in_picoseconds(of(layers))) for name, of in costs.items()}
    for one in shown.values():
        one.unit = "ps"  # as a run's clock, which says 1.08 s where costs have more digits
    takes = ", ".join(f"{name} {one.format(one.makespan)}" for name, one in shown.items())
    return compare_timelines(shown, headline=f"{schedule}, layers {_said(layers)}: {takes}")


def explore_step_costs(schedules: Mapping[str, Schedule], layers: Sequence[Sequence[int]], costs: CostsOf) -> Explorer:
    """Controls for `step_by_costs`: the schedule, and how the layers are shared.

    Args:
        schedules: by name; the picture begins with the first.
        layers: the ways to share the layers, two or more; the picture begins with the first.
        costs: as there.

    Raises:
        ValueError: fewer ways, or as `step_by_costs`.
    """
    if len(layers) < 2:
        raise ValueError(f"layers={layers!r:.60}: give two or more ways to share them")
    first, *_ = schedules
    ways = {_said(way): way for way in layers}
    controls = {
        "schedule": choice("schedule", list(schedules), first),
        "way": steps("layers of stages", list(ways), _said(layers[0]), str),
    }

    def draw(schedule: str, way: str) -> Picture:
        return step_by_costs(schedules, costs, schedule=schedule, layers=ways[way])

    return Explorer("explore_step_costs", controls, draw)


def _in_picoseconds(costs: Costs) -> Costs:
    def ticks(seconds: Any) -> Any:
        return [round(one * 10**12) for one in seconds] if isinstance(seconds, Sequence) else round(seconds * 10**12)

    return Costs(*map(ticks, (costs.forward, costs.backward_input, costs.backward_weight, costs.transfer)))


def _said(layers: Sequence[int]) -> str:
    return " ".join(map(str, layers))
