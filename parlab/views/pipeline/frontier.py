"""Memory against time: what the schedules of a class keep, their makespan, the best of them, and the bound below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from parlab.arguments import whole
from parlab.pipeline import Costs, Schedule, ScheduleTimeline, lower_bound, simulate
from parlab.views.engine import theme
from parlab.views.engine.picture import Picture, line_legend, panel, scale, sheet, write
from parlab.views.pipeline.placement import PLACEMENTS, placement_of

HEIGHT, LEFT, TOP, ACROSS, DOWN = 4.7, 0.9, 0.8, 5.6, 3.25  # inches
LIST, ROW = 6.85, 0.265  # inches: where the list of schedules begins, and a row of it
FEW = 6  # points that have their names beside them
LETTER = 0.02  # of the width of the axes, in the number of a point
UNKNOWN = "#FBE3B0"  # between what is proved and what is known
SQUARE = {"marker": "s", "markersize": 9}


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

    @property
    def place(self) -> tuple[float, Any]:
        """Where it is drawn."""
        return self.kept, self.timeline.makespan


def frontier(p: int, m: int, schedules: Mapping[str, Schedule]) -> Picture:
    """Draw schedules as points, the best of them within each memory limit as steps, and the lower bounds below.

    F, I and W of all layers of a rank take 1, and transfers nothing. Where all stages are placed in one way, what the
    bound excludes is grey, and the gap from there to the best known is yellow: whether a schedule is there, neither
    says.

    Args:
        p: ranks.
        m: microbatches.
        schedules: by name, such as a class's.

    Raises:
        ValueError: no schedule, or one of another number of ranks or microbatches.
    """
    whole("p", p, 2)
    whole("m", m, 1)
    if not isinstance(schedules, Mapping) or not schedules:
        raise ValueError(f"schedules={schedules!r:.60}: must be {{name: schedule}}, one or more")
    points = [_point(str(name), _fitting(name, one, p, m)) for name, one in schedules.items()]
    likes: dict[str, Schedule] = {}  # a schedule of each placement
    for one in points:
        likes.setdefault(one.placement, one.timeline.schedule)
    limits = range(1, 2 * p + 1)
    best = {placement: _best_known(placement, points, p) for placement in likes}
    rows = [f"{'limit':<22}" + "".join(f"{limit:>7}" for limit in limits)]
    for placement, like in likes.items():
        known_spans, bounds = best[placement], [_bound(like, limit) for limit in limits]
        rows.append(f"{placement + ', best known':<22}" + "".join(f"{_or_dash(known_spans[x]):>7}" for x in limits))
        rows.append(f"{'  none is below':<22}" + "".join(f"{span:>7g}" for span in bounds))
    figure = sheet([*_table(points), *rows], HEIGHT, f"What memory buys: {p} ranks, {m} microbatches")
    axes = _draw(figure, points, likes, best, p)
    for placement in likes:
        style = {"color": PLACEMENTS[placement]["color"], "linewidth": 2}
        _steps(axes, [*best[placement]], [*best[placement].values()], "best known", style)
        if len(best) == 1:
            _name_steps(axes, best[placement], points)
    return figure


def _fitting(name: Any, given: Any, p: int, m: int) -> Schedule:
    if not isinstance(given, Schedule) or (given.num_ranks, given.num_microbatches) != (p, m):
        raise ValueError(f"schedules[{name!r}]={given!r:.60}: must be a schedule of {p} ranks and {m} microbatches")
    return given


def _best_known(placement: str, points: Sequence[Point], p: int) -> dict[float, Any]:
    """The least makespan of the points within 1, 2, ... 2p activations and within what each point keeps. Infinite: none
    is known.
    """
    own = [one for one in points if one.placement == placement]
    best: dict[float, Any] = {}
    for limit in sorted({*range(1, 2 * p + 1), *(one.kept for one in own)}):
        best[limit] = min((one.timeline.makespan for one in own if one.kept <= limit), default=math.inf)
    return best


def _or_dash(span: Any) -> str:
    return f"{span:g}" if span < math.inf else "–"


def _steps(axes: Axes, places: Sequence[float], spans: Sequence[Any], gid: str, style: Any) -> None:
    """From each place on a makespan, as steps."""
    known = [(x, span) for x, span in zip(places, spans, strict=True) if span < math.inf]
    if known:
        axes.step(*zip(*known, strict=True), where="post", gid=gid, **style)


def _point(name: str, schedule: Schedule) -> Point:
    """A schedule, timed: each of its chunks takes its share of a rank's layers, and keeps as much."""
    chunks = schedule.num_stages / schedule.num_ranks
    timeline = simulate(schedule, of_chunk(Costs(), chunks))
    kept = max(timeline.peak_activations) / chunks
    return Point(name, placement_of(schedule), timeline, kept, _bound(schedule, None))


@lru_cache(maxsize=1024)
def _bound(like: Schedule, limit: float | None) -> Any:
    """A makespan that no schedule of the same placement is below, within so many activations."""
    chunks = like.num_stages / like.num_ranks
    within = None if limit is None else chunks * limit
    return lower_bound(like.num_ranks, like.num_microbatches, of_chunk(Costs(), chunks), within, like=like)


def of_chunk(costs: Costs, chunks: float) -> Costs:
    """The costs of one of `chunks` chunks; a message is as large as before."""
    names = ("forward", "backward_input", "backward_weight")
    return costs if chunks == 1 else replace(costs, **{name: getattr(costs, name) / chunks for name in names})


def _table(points: Sequence[Point]) -> list[str]:
    """The points in words."""
    rows = [f"{'schedule':<22}{'keeps':>7}{'makespan':>10}{'% idle':>8}{'none below':>12}{'above it by':>13}"]
    for one in points:
        span, above = one.timeline.makespan, one.timeline.makespan / one.bound - 1 if one.bound else 0
        numbers = f"{span:>10g}{one.idle:>8.1f}{one.bound:>12g}{100 * above:>11.1f} %"
        rows.append(f"{one.name:<22}{one.kept:>7g}{numbers}")
    return rows


def _draw(
    figure: Picture,
    points: Sequence[Point],
    likes: Mapping[str, Schedule],
    best: Mapping[str, Mapping[float, Any]],
    p: int,
) -> Axes:
    """Bounds as dashed steps, and schedules as points. Few have their names beside them, more have numbers, and a list
    at the right. `likes`: a schedule of each placement.
    """
    few = len({one.name for one in points}) <= FEW
    axes = panel(figure, LEFT, TOP, theme.WIDTH - LEFT - 0.4 if few else ACROSS, DOWN)
    alone = len(likes) == 1
    lowest = 0.75 * 3 * points[0].timeline.schedule.num_microbatches  # F, I and W of each
    highest = 1.05 * max(one.timeline.makespan for one in points)
    for placement, like in likes.items():
        limits, least = _bounds(like, p)
        style = {"color": PLACEMENTS[placement]["color"], "linestyle": "dashed", "linewidth": 1.4}
        _steps(axes, limits, least, "bound", style)
        if alone:
            _fill(axes, limits, [min(span, highest) for span in least], best[placement], lowest)
    for placement in likes:
        those = [one.place for one in points if one.placement == placement]
        style = {**PLACEMENTS[placement], "markersize": 12, "markeredgecolor": theme.PAPER}
        axes.plot(*zip(*those, strict=True), linestyle="none", gid="points", zorder=3, **style)
    close: dict[tuple[float, int], list[tuple[str, Point]]] = {}  # those that cannot be named apart
    for number, one in enumerate(points, 1):
        named = (one.name if few else str(number), one)
        close.setdefault((one.kept, round(20 * one.timeline.makespan / highest)), []).append(named)
        if not few:
            row = f"{number:>2}  {one.name}: keeps {one.kept:g}, {one.timeline.makespan:g} units"
            write(figure, LIST, TOP + 0.1 + ROW * number, row, color=PLACEMENTS[one.placement]["color"], va="center")
    for names in close.values():
        style = {"textcoords": "offset points", "color": theme.INK, "zorder": 4}
        said, one = ", ".join(name for name, _ in names), names[0][1]
        reach = 0 if few else LETTER * 2 * p * len(said)
        near = [other.timeline.makespan for other in points if 0 < other.kept - one.kept < reach]
        taken = any(0 <= span - one.timeline.makespan < highest / 20 for span in near)  # by a point or its number
        beside: dict[str, Any] = {"xytext": (-14, 6), "ha": "right"} if taken else {"xytext": (9, 6)}
        axes.annotate(said, one.place, size=theme.TEXT if few else theme.SMALL, **beside, **style)
    scale(axes.xaxis, "activations that the fullest rank keeps", ends=(0.5, 2 * p + 0.5), ticks=range(1, 2 * p + 1))
    scale(axes.yaxis, "makespan (units)", ends=(lowest, highest), grid=True)
    entries: list[tuple[str, dict[str, Any]]] = [("best known", {"color": theme.INK, "linewidth": 2})]
    if alone:
        proved = ("proved: no schedule is here", {**SQUARE, "color": theme.GRID})
        entries += [("between bound and best known", {**SQUARE, "color": UNKNOWN}), proved]
    else:
        entries = [(name, {**PLACEMENTS[name], "markersize": 7}) for name in likes] + entries
        entries.append(("none is below", {"color": theme.INK, "linestyle": "dashed"}))
    line_legend(figure, entries)
    return axes


def _name_steps(axes: Axes, best: Mapping[float, Any], points: Sequence[Point]) -> None:
    """The makespan above each step that is lower than the one before, where no point that has a name says it."""
    before = math.inf
    for limit, span in best.items():
        named = any(one.place == (limit, span) for one in points)
        if span < before and limit == int(limit) and not named:
            style = {"textcoords": "offset points", "ha": "center", "size": theme.TEXT, "color": theme.INK}
            axes.annotate(f"{span:g}", (limit + 0.5, span), (0, 4), **style)
        before = span


def _bounds(like: Schedule, p: int) -> tuple[list[float], list[Any]]:
    """The limits of memory, in chunks, and for each the makespan that no schedule is below."""
    chunks = like.num_stages // p
    limits = [1 + k / chunks for k in range(2 * p * chunks)]
    least: list[Any] = []
    for limit in limits:  # more memory than removes the limit changes nothing
        done = least[-1:] == [_bound(like, None)]
        least.append(least[-1] if done else _bound(like, limit))
    return limits, least


def _fill(axes: Axes, limits: Sequence[float], least: Sequence[Any], best: Mapping[float, Any], lowest: float) -> None:
    """Grey below the bound, yellow from there to the best known."""
    axes.fill_between(limits, lowest, least, step="post", color=theme.GRID, linewidth=0, gid="impossible")
    whole_limits = [limit for limit in limits if best.get(limit, math.inf) < math.inf]
    low = [least[limits.index(limit)] for limit in whole_limits]
    high = [best[limit] for limit in whole_limits]
    axes.fill_between(whole_limits, low, high, step="post", color=UNKNOWN, linewidth=0, gid="unknown")
