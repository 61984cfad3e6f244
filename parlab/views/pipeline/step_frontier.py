"""Memory against the time of a step: of one step alone, and of steps in a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

from parlab.arguments import one_of
from parlab.pipeline import Costs, Schedule, simulate
from parlab.views.engine import theme
from parlab.views.engine.explore import Explorer, buttons
from parlab.views.engine.picture import Picture, line_legend, note, plot, scale
from parlab.views.pipeline.frontier import SQUARE, of_chunk
from parlab.views.pipeline.placement import PLACEMENTS, placement_of

STEPS = ("one step", "steps in a row")
HEIGHT, ROW = 4.9, 3  # inches; steps after which each step more takes the same
NEAR = 4, 0.03  # activations, and a part of the time: a name would run into the next point
GHOST = {"linestyle": "none", "markersize": 12, "markerfacecolor": "none", "gid": "one step"}

Bound = Callable[[int, int, int, float, float, float, float], float]


def step_frontier(
    schedules: Mapping[str, Schedule], costs: Costs, bound: Bound, in_a_row: Bound, steps: str = "one step"
) -> Picture:
    """Draw what the fullest rank keeps against the time of a step in ms. In the grey there is no straight schedule.

    An activation counts whole, from its F to the end of its W.

    Args:
        schedules: {name: schedule}, all of the same ranks and microbatches.
        costs: of all layers of a rank, in ms, so that a chunk takes its share.
        bound: a function `bound(p, m, limit, f, i, w, c)`, such as a learner's: one step on straight stages takes no
            less.
        in_a_row: the same of steps in a row.
        steps: "one step", from the first action to the last; or "steps in a row": a rank begins the next step at once,
            and a step takes what one step more adds to many.

    Raises:
        ValueError: no schedules, schedules of different sizes, or another word for `steps`.
    """
    one_of("steps", steps, STEPS)
    sizes = {(one.num_ranks, one.num_microbatches) for one in schedules.values()}
    if len(sizes) != 1:
        raise ValueError(f"schedules={[*schedules]!r}: must be one or more, of the same ranks and microbatches")
    ((p, m),) = sizes
    times: tuple[Any, ...] = (costs.forward, costs.backward_input, costs.backward_weight, costs.transfer)
    row = steps == STEPS[1]
    found = {name: _point(one, costs) for name, one in schedules.items()}  # kept, one step, in a row
    shown = {name: (kept, many if row else one) for name, (kept, one, many) in found.items()}
    limits = range(1, max(2 * p, *(ceil(kept) for kept, *_ in found.values())) + 1)
    least = [(in_a_row if row else bound)(p, m, limit, *times) for limit in limits]
    table = [f"{'schedule':<10}{'keeps':>7}{'one step':>11}{'in a row':>11}   ms"]
    table += [f"{name:<10}{kept:>7.3g}{one:>11.0f}{many:>11.0f}" for name, (kept, one, many) in found.items()]
    table += ["no straight schedule is below:"]
    table += ["  room".ljust(12) + "".join(f"{limit:>6}" for limit in limits)]
    table += [f"  {steps}:", " ".ljust(12) + "".join(f"{span:>6.0f}" for span in least)]
    first = [_shortest(shown, schedules, placement) for placement in ("V", "straight")]
    headline = f"{steps[0].upper()}{steps[1:]}: {', '.join(filter(None, first))}"
    figure, axes = plot(table, HEIGHT, headline, top=0.85)
    spans = [span for _, *both in found.values() for span in both]
    fewest = min(int(kept) for kept, *_ in found.values())
    lowest, highest = 0.92 * min(spans), 1.05 * max(*spans, bound(p, m, fewest, *times))
    drawn = [min(span, highest) for span in (*least, least[-1])]
    end = limits[-1] + 0.16 * len(limits)  # room for the last name
    axes.fill_between([*limits, end], lowest, drawn, step="post", color=theme.GRID, linewidth=0, gid="impossible")
    beside = _with_a_neighbour(found)
    for name, place in shown.items():
        look = {**PLACEMENTS[placement_of(schedules[name])], "markeredgecolor": theme.PAPER}
        axes.plot(*place, linestyle="none", gid="points", zorder=3, markersize=12, **look)
        before = found[name][1]
        if before - place[1] > 1:  # where it was in one step
            color = {"color": look["color"], "marker": look["marker"]}
            axes.plot(place[0], before, **GHOST, **color)
            axes.annotate("", place, (place[0], before), arrowprops={"arrowstyle": "->", "color": theme.INK})
        said = {"textcoords": "offset points", "size": theme.SMALL, "color": theme.INK, "zorder": 4}
        left = {"xytext": (-11, 0), "ha": "right"} if name in beside else {"xytext": (11, 0)}
        axes.annotate(f"{name}: {place[1]:.0f}", place, va="center", **said, **left)
    scale(axes.xaxis, "activations that the fullest rank keeps", ends=(0.5, end), ticks=limits)
    scale(axes.yaxis, "ms a step", ends=(lowest, highest), grid=True)
    kinds = dict.fromkeys(placement_of(one) for one in schedules.values())
    entries: list[tuple[str, dict[str, Any]]] = [(kind, {**PLACEMENTS[kind], "markersize": 7}) for kind in kinds]
    line_legend(figure, [*entries, ("proved: no straight schedule is here", {**SQUARE, "color": theme.GRID})])
    note(figure, f"p = {p}, m = {m}")
    return figure


def _point(schedule: Schedule, costs: Costs) -> tuple[float, float, float]:
    """The activations that the fullest rank keeps, the time of one step, and of a step in a row."""
    chunks = schedule.num_stages / schedule.num_ranks
    of_one = of_chunk(costs, chunks)
    timeline = simulate(schedule, of_one)
    many, more = (simulate(_repeated(schedule, times), of_one).makespan for times in (ROW, ROW + 1))
    return max(timeline.peak_activations) / chunks, timeline.makespan, more - many


def _repeated(schedule: Schedule, times: int) -> Schedule:
    """Each rank's row several times, with microbatches of their own."""
    m = schedule.num_microbatches
    return Schedule(
        [action._replace(microbatch=action.microbatch + m * step) for step in range(times) for action in row]
        for row in schedule.actions
    )


def _shortest(shown: Mapping[str, tuple[float, float]], schedules: Mapping[str, Schedule], placement: str) -> str:
    """The shortest of a placement, in words."""
    those = [name for name, one in schedules.items() if placement_of(one) == placement]
    if not those:
        return ""
    name = min(those, key=lambda name: (round(shown[name][1]), shown[name][0]))
    return f"{name} keeps {shown[name][0]:.3g} and takes {shown[name][1]:.0f} ms"


def _with_a_neighbour(found: Mapping[str, tuple[float, float, float]]) -> list[str]:
    """The names of the points that have another close at their right: they stand at the left."""
    return [
        name
        for name, (kept, span, _) in found.items()
        if any(0 < other - kept < NEAR[0] and abs(at - span) < NEAR[1] * span for other, at, _ in found.values())
    ]


def explore_steps(schedules: Mapping[str, Schedule], costs: Costs, bound: Bound, in_a_row: Bound) -> Explorer:
    """Two buttons, one step and steps in a row, for `step_frontier`."""

    def draw(steps: str) -> Picture:
        return step_frontier(schedules, costs, bound, in_a_row, steps)

    return Explorer("explore_steps", {"steps": buttons("time of", STEPS, STEPS[0])}, draw)
