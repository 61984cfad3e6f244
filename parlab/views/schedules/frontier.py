"""Memory against bubble: the activations that each schedule keeps, its idle time, and the bound of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from parlab import pipeline
from parlab.arguments import whole
from parlab.pipeline import Costs, Schedule, ScheduleTimeline, lower_bound, simulate
from parlab.views.drawing import theme
from parlab.views.drawing.lanes import legend_of
from parlab.views.drawing.picture import Picture, line_legend, note, panel, scale, sheet, write
from parlab.views.schedules.panels import BOTTOM, draw_panels, legend_entries, panel_height
from parlab.views.schedules.placement import PLACEMENTS, placement_of
from parlab.views.widgets.explorer import Explorer, choice, steps

KNOWN: dict[str, Callable[[int, int], Schedule]] = {
    "1F1B": pipeline.one_f_one_b,
    "ZB-H1": pipeline.zb_h1,
    "ZB-H2": pipeline.zb_h2,
    "interleaved": lambda p, m: pipeline.interleaved_one_f_one_b(p, m, 2),
    "1F1B-V": pipeline.one_f_one_b_v,
    "V-Min": pipeline.v_min,
    "V-Half": pipeline.v_half,
    "ZB-V": pipeline.zb_v,
    "DualPipe": pipeline.dualpipe,
    "DualPipeV": pipeline.dualpipe_v,
}
SEARCHED = {"straight": "straight, by search", "V": "V, by search"}  # these placements have a bound that is drawn
PLACED = {"straight": pipeline.gpipe, "V": pipeline.zb_v}  # a schedule of each, for any p and m
HEIGHT, LEFT, TOP, ACROSS, DOWN = 4.7, 0.9, 0.8, 5.6, 3.25  # inches
LIST, ROW = 6.85, 0.265  # inches: where the list of schedules begins, and a row of it
RATIOS = {"1 : 1 : 1": (1, 1, 1), "1 : 1 : ½": (1, 1, 0.5), "1 : 1.5 : ½": (1, 1.5, 0.5), "1 : 1 : 1.5": (1, 1, 1.5)}
MEMORY = {"p / 2": 0.5, "p": 1, "3 p / 2": 1.5, "2 p": 2}  # activations a rank
YOURS = "yours"
STAR = {"marker": "*", "markersize": 26, "color": "#F0E442", "markeredgecolor": theme.INK, "zorder": 2.5}


class Point(NamedTuple):
    """A schedule with its timeline, and the most that a rank keeps, in activations of a whole rank's layers."""

    name: str
    placement: str
    timeline: ScheduleTimeline
    kept: float
    bound: Any

    @property
    def idle(self) -> float:
        """Per cent of the makespan."""
        return 100 * self.timeline.bubble_fraction()


def frontier(p: int = 4, m: int = 8, costs: Costs | None = None, *, own: Schedule | None = None) -> Picture:
    """Draw every schedule as a point, the best of a search within each memory limit, and the lower bounds.

    Args:
        p: ranks.
        m: microbatches. Schedules that do not exist for these numbers are left out.
        costs: of all layers of a rank, so that a chunk takes its share; None: F, I and W take 1, transfers nothing.
        own: one more schedule, drawn as a star.

    Raises:
        ValueError: costs that differ from stage to stage, or an `own` of another number of ranks or microbatches.
    """
    whole("p", p, 2)
    whole("m", m, 1)
    costs = replace(costs or Costs(), pair=None, optimizer=None)
    if any(isinstance(cost, Sequence) for cost in vars(costs).values()):
        raise ValueError(f"costs={costs!r}: must be the same for all stages here")
    points = [*known(p, m, costs)]
    if own is not None:
        if not isinstance(own, Schedule) or (own.num_ranks, own.num_microbatches) != (p, m):
            raise ValueError(f"own={own!r:.60}: must be a schedule of {p} ranks and {m} microbatches")
        points.append(point(YOURS, own, costs))
    limits = range(1, 2 * p + 1)
    found = {placement: [searched(placement, p, m, costs, limit) for limit in limits] for placement in SEARCHED}
    rows = [f"{'limit':<22}" + "".join(f"{limit:>7}" for limit in limits)]
    for placement, of_placement in found.items():
        rows.append(f"{SEARCHED[placement]:<22}" + "".join(f"{one.timeline.makespan:>7g}" for one in of_placement))
        rows.append(f"{'  none is below':<22}" + "".join(f"{one.bound:>7g}" for one in of_placement))
    figure = sheet([*table(points), *rows], HEIGHT, f"What memory buys: {p} ranks, {m} microbatches")
    axes = draw(figure, points, p, m, costs, star=YOURS)
    for placement, of_placement in found.items():
        style = {"color": PLACEMENTS[placement]["color"], "linewidth": 1.2, "marker": ".", "alpha": 0.8}
        axes.plot([one.kept for one in of_placement], [one.idle for one in of_placement], gid="searched", **style)
    return figure


@lru_cache(maxsize=64)
def known(p: int, m: int, costs: Costs) -> tuple[Point, ...]:
    """The schedules of the papers that exist for these numbers, timed."""
    return tuple(point(name, schedule, costs) for name in KNOWN if (schedule := _made(name, p, m)))


@lru_cache(maxsize=512)
def _made(name: str, p: int, m: int) -> Schedule | None:
    try:
        return KNOWN[name](p, m)
    except ValueError:  # it wants other numbers
        return None


@lru_cache(maxsize=512)
def searched(placement: str, p: int, m: int, costs: Costs, limit: int, tries: int | None = None) -> Point:
    """The best that a search finds within `limit` activations of a whole rank's layers."""
    if placement == "straight":
        schedule = pipeline.zb_auto(p, m, costs, limit, tries=tries, metric="makespan")
    else:
        schedule = pipeline.v_controlled(p, m, of_chunk(costs, 2), 2 * limit, tries=tries)
    return point(SEARCHED[placement], schedule, costs, limit)


def point(name: str, schedule: Schedule, costs: Costs, limit: int | None = None) -> Point:
    """A schedule, timed: each of its chunks takes its share of a rank's layers, and keeps as much."""
    chunks = schedule.num_stages / schedule.num_ranks
    timeline = simulate(schedule, of_chunk(costs, chunks))
    kept = max(timeline.peak_activations) / chunks
    return Point(name, placement_of(schedule), timeline, kept, bound(schedule, costs, limit))


@lru_cache(maxsize=1024)
def bound(like: Schedule, costs: Costs, limit: float | None) -> Any:
    """A makespan that no schedule of the same placement is below, within so many activations."""
    chunks = like.num_stages / like.num_ranks
    within = None if limit is None else chunks * limit
    return lower_bound(like.num_ranks, like.num_microbatches, of_chunk(costs, chunks), within, like=like)


def of_chunk(costs: Costs, chunks: float) -> Costs:
    """The costs of one of `chunks` chunks; a message is as large as before."""
    names = ("forward", "backward_input", "backward_weight")
    return costs if chunks == 1 else replace(costs, **{name: getattr(costs, name) / chunks for name in names})


def table(points: Sequence[Point]) -> list[str]:
    """The points in words."""
    rows = [f"{'schedule':<22}{'keeps':>7}{'makespan':>10}{'% idle':>8}{'none below':>12}{'above it by':>13}"]
    for one in points:
        span, above = one.timeline.makespan, one.timeline.makespan / one.bound - 1 if one.bound else 0
        rows.append(f"{one.name:<22}{one.kept:>7g}{span:>10g}{one.idle:>8.1f}{one.bound:>12g}{100 * above:>11.1f} %")
    return rows


def draw(figure: Picture, points: Sequence[Point], p: int, m: int, costs: Costs, star: str) -> Axes:
    """Bounds as lines, schedules as numbered points, one of them on a star, and their list at the right."""
    axes = panel(figure, LEFT, TOP, ACROSS, DOWN)
    work = m * (costs.forward + costs.backward_input + costs.backward_weight)  # type: ignore[operator]
    for placement, make in PLACED.items():
        like = make(p, m)
        chunks = like.num_stages // p
        limits = [1 + k / chunks for k in range(2 * p * chunks)]
        least = [bound(like, costs, limit) for limit in limits]
        idle = [100 * (1 - work / one) if one else 0 for one in least]
        style = {"color": PLACEMENTS[placement]["color"], "linestyle": "dashed", "linewidth": 1.4}
        axes.step(limits, idle, where="post", gid="bound", **style)
    highest = 1.15 * (max(one.idle for one in points) or 1)
    close: dict[tuple[float, int], list[int]] = {}  # the numbers of those that cannot be named apart
    for number, one in enumerate(points, 1):
        if one.name == star:
            axes.plot(one.kept, one.idle, gid="star", **STAR)
        close.setdefault((one.kept, round(20 * one.idle / highest)), []).append(number)
        row = f"{number:>2}  {one.name}: keeps {one.kept:g}, idle {one.idle:.1f} %"
        write(figure, LIST, TOP + 0.1 + ROW * number, row, color=PLACEMENTS[one.placement]["color"], va="center")
    for placement in dict.fromkeys(one.placement for one in points):
        those = [(one.kept, one.idle) for one in points if one.placement == placement]
        style = {**PLACEMENTS[placement], "markersize": 12, "markeredgecolor": theme.PAPER}
        axes.plot(*zip(*those, strict=True), linestyle="none", gid="points", zorder=3, **style)
    for numbers in close.values():
        one, named = points[numbers[0] - 1], ", ".join(map(str, numbers))
        style = {"textcoords": "offset points", "size": theme.SMALL, "color": theme.INK, "zorder": 4}
        axes.annotate(named, (one.kept, one.idle), (6, 5), **style)
    kept, whole = "activations that the fullest rank keeps", MaxNLocator(9, integer=True)
    scale(axes.xaxis, kept, ends=(0.5, 2 * p + 0.5), ticks=whole, grid=True)
    scale(axes.yaxis, "% of the makespan idle", ends=(0, highest), grid=True)
    shown = dict.fromkeys([*SEARCHED, *(one.placement for one in points)])
    entries: list[tuple[str, dict[str, Any]]] = [(name, {**PLACEMENTS[name], "markersize": 7}) for name in shown]
    line_legend(figure, [*entries, ("none is below", {"color": theme.INK, "linestyle": "dashed"})])
    ratio = " : ".join(f"{cost:g}" for cost in (costs.forward, costs.backward_input, costs.backward_weight))
    note(figure, f"F : I : W = {ratio}, c = {costs.transfer:g}")
    return axes


def chosen_on_the_frontier(schedule: str, p: int, m: int, ratio: str, transfer: float, memory: str) -> Picture:
    """Draw the frontier and, below it, one schedule; what `explore_frontier` shows."""
    costs, limit = Costs(*RATIOS[ratio], transfer), max(1, int(MEMORY[memory] * p))
    found = [searched(placement, p, m, costs, limit, tries=0) for placement in SEARCHED]
    points = [*known(p, m, costs), *found]
    one = next((one for one in points if one.name == schedule), None)
    fits = [other for other in points if other.kept <= limit]
    best = min(fits, key=lambda other: other.timeline.makespan)
    said = f"within {limit} activations {best.name} is best: {best.timeline.makespan:g}"
    if one is None:
        headline = f"{schedule} does not exist for p = {p}, m = {m}; {said}"
    else:
        misfit = " (does not fit)" if one.kept > limit else ""
        headline = f"{schedule}: {one.timeline.makespan:g}{misfit}; {said}"
    shown = one or best
    below = panel_height(p, memory=False) + 0.75
    figure = sheet([headline, *table(points)], HEIGHT + below + BOTTOM - 0.5, headline)
    axes = draw(figure, points, p, m, costs, star=shown.name)
    axes.axvspan(limit, 3 * p, color=theme.GRID, alpha=0.5, linewidth=0)
    legend_of(figure, legend_entries([shown.timeline.schedule]), below=HEIGHT + 0.25)
    draw_panels(figure, HEIGHT + 0.4, shown.timeline, 0)
    return figure


def explore_frontier() -> Explorer:
    """Sliders for the frontier: schedule, p, m, F : I : W, the time of a transfer, and the memory of a rank."""
    controls = {
        "schedule": choice("schedule", (*KNOWN, *SEARCHED.values()), SEARCHED["V"]),
        "p": steps("ranks p", (2, 4, 6, 8), 4),
        "m": steps("microbatches m", (4, 8, 16, 24), 8),
        "ratio": steps("F : I : W", RATIOS, "1 : 1 : 1"),
        "transfer": steps("transfer", (0, 0.125, 0.25, 0.5), 0),
        "memory": steps("memory of a rank", MEMORY, "p"),
    }
    return Explorer("explore_frontier", controls, chosen_on_the_frontier)
