"""Memory against time: what each schedule keeps, its makespan, the best that is known, and the bound of both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from parlab import pipeline
from parlab.arguments import whole
from parlab.pipeline import Costs, Schedule, ScheduleTimeline, lower_bound, simulate
from parlab.views.engine import theme
from parlab.views.engine.picture import Picture, line_legend, note, panel, scale, sheet, write
from parlab.views.pipeline.placement import PLACEMENTS, placement_of

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
SEARCHED = {"straight": "straight, by search", "V": "V, by search"}
HEIGHT, LEFT, TOP, ACROSS, DOWN = 4.7, 0.9, 0.8, 5.6, 3.25  # inches
LIST, ROW = 6.85, 0.265  # inches: where the list of schedules begins, and a row of it
YOURS = "yours"
FEW = 6  # points that have their names beside them
LETTER = 0.02  # of the width of the axes, in the number of a point
UNKNOWN = "#FBE3B0"  # between what is proved and what is known
SQUARE = {"marker": "s", "markersize": 9}
YOUR_BOUND = {"color": "#0072B2", "linewidth": 5, "alpha": 0.35}
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

    @property
    def place(self) -> tuple[float, Any]:
        """Where it is drawn."""
        return self.kept, self.timeline.makespan


Bound = Callable[[int, int, int, float, float, float, float], float]


def frontier(
    p: int = 4,
    m: int = 8,
    costs: Costs | None = None,
    *,
    schedules: Mapping[str, Schedule] | Sequence[str] | None = None,
    own: Schedule | None = None,
    bound: Bound | None = None,
    search: bool = True,
    headline: str | None = None,
) -> Picture:
    """Draw schedules as points, the best that is known within each memory limit as steps, and the lower bounds below.

    Where all stages are placed in one way, what the bound excludes is grey, and the gap from there to the best known is
    yellow: whether a schedule is there, neither says. The best that is known is one of the points or, for straight
    stages and for a V, that of a search.

    Args:
        p: ranks.
        m: microbatches.
        costs: of all layers of a rank, so that a chunk takes its share; None: F, I and W take 1, transfers nothing.
        schedules: names of `KNOWN`, or {name: schedule}, such as a class's; None: all of `KNOWN` that exist for these
            numbers.
        own: one more schedule, drawn as a star.
        bound: a function `bound(p, m, limit, f, i, w, c)`, such as a learner's: it is drawn too.
        search: count what the search finds; otherwise the points alone, such as a class's schedules.
        headline: what stands above.

    Raises:
        ValueError: costs that differ from stage to stage, an unknown name, or a schedule of another number of ranks or
            microbatches.
    """
    whole("p", p, 2)
    whole("m", m, 1)
    costs = replace(costs or Costs(), pair=None)
    if any(isinstance(cost, Sequence) for cost in vars(costs).values()):
        raise ValueError(f"costs={costs!r}: must be the same for all stages here")
    points = _chosen(schedules, p, m, costs)
    if own is not None:
        points.append(point(YOURS, _fitting("own", own, p, m), costs))
    limits = range(1, 2 * p + 1)
    best = {placement: _best_known(placement, points, p, m, costs, search) for placement in _likes(points)}
    rows = [f"{'limit':<22}" + "".join(f"{limit:>7}" for limit in limits)]
    for placement, like in _likes(points).items():
        known_spans, bounds = best[placement], [_bound(like, costs, limit) for limit in limits]
        rows.append(f"{placement + ', best known':<22}" + "".join(f"{_or_dash(known_spans[x]):>7}" for x in limits))
        rows.append(f"{'  none is below':<22}" + "".join(f"{span:>7g}" for span in bounds))
    if bound is not None:
        yours = [bound(p, m, limit, *_times(costs)) for limit in limits]
        rows.append(f"{'  by your bound':<22}" + "".join(f"{span:>7g}" for span in yours))
    headline = headline or f"What memory buys: {p} ranks, {m} microbatches"
    figure = sheet([*table(points), *rows], HEIGHT, headline)
    axes = draw(figure, points, p, m, costs, star=YOURS, best=best, bounded=bound is not None)
    for placement in _likes(points):
        style = {"color": PLACEMENTS[placement]["color"], "linewidth": 2}
        _steps(axes, [*best[placement]], [*best[placement].values()], "best known", style)
        if len(best) == 1:
            _name_steps(axes, best[placement], points)
    if bound is not None:
        _steps(axes, [*limits], yours, "your bound", YOUR_BOUND)
    return figure


def _chosen(schedules: Mapping[str, Schedule] | Sequence[str] | None, p: int, m: int, costs: Costs) -> list[Point]:
    """The points of the argument `schedules`."""
    if isinstance(schedules, Mapping):
        return [point(str(name), _fitting(f"schedules[{name!r}]", one, p, m), costs) for name, one in schedules.items()]
    unknown = [name for name in schedules or () if name not in KNOWN]
    if unknown:
        raise ValueError(f"schedules={unknown[0]!r}: choose from {', '.join(KNOWN)}, or give {{name: schedule}}")
    return [one for one in known(p, m, costs) if schedules is None or one.name in schedules]


def _fitting(name: str, given: Any, p: int, m: int) -> Schedule:
    if not isinstance(given, Schedule) or (given.num_ranks, given.num_microbatches) != (p, m):
        raise ValueError(f"{name}={given!r:.60}: must be a schedule of {p} ranks and {m} microbatches")
    return given


def _likes(points: Sequence[Point]) -> dict[str, Schedule]:
    """A schedule of each placement."""
    likes: dict[str, Schedule] = {}
    for one in points:
        likes.setdefault(one.placement, one.timeline.schedule)
    return likes


def _best_known(
    placement: str, points: Sequence[Point], p: int, m: int, costs: Costs, search: bool
) -> dict[float, Any]:
    """The least makespan that is known within 1, 2, ... 2p activations and within what each point keeps. Infinite: none
    is known.
    """
    own = [one for one in points if one.placement == placement]
    best: dict[float, Any] = {}
    least = math.inf
    for limit in sorted({*range(1, 2 * p + 1), *(one.kept for one in own)}):
        found = [one.timeline.makespan for one in own if one.kept <= limit]
        if search and placement in SEARCHED and limit == int(limit) <= 2 * p:
            found.append(searched(placement, p, m, costs, int(limit)).timeline.makespan)
        best[limit] = least = min([least, *found])
    return best


def _or_dash(span: Any) -> str:
    return f"{span:g}" if span < math.inf else "–"


def _times(costs: Costs) -> tuple[Any, Any, Any, Any]:
    """F, I, W and a transfer."""
    return costs.forward, costs.backward_input, costs.backward_weight, costs.transfer


def _steps(axes: Axes, places: Sequence[float], spans: Sequence[Any], gid: str, style: Any) -> None:
    """From each place on a makespan, as steps."""
    known = [(x, span) for x, span in zip(places, spans, strict=True) if span < math.inf]
    if known:
        axes.step(*zip(*known, strict=True), where="post", gid=gid, **style)


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
def searched(placement: str, p: int, m: int, costs: Costs, limit: int) -> Point:
    """The best that a search finds within `limit` activations of a whole rank's layers."""
    if placement == "straight":
        schedule = pipeline.zb_auto(p, m, costs, limit, metric="makespan")
    else:
        schedule = pipeline.v_controlled(p, m, of_chunk(costs, 2), 2 * limit)
    return point(SEARCHED[placement], schedule, costs, limit)


def point(name: str, schedule: Schedule, costs: Costs, limit: int | None = None) -> Point:
    """A schedule, timed: each of its chunks takes its share of a rank's layers, and keeps as much."""
    chunks = schedule.num_stages / schedule.num_ranks
    timeline = simulate(schedule, of_chunk(costs, chunks))
    kept = max(timeline.peak_activations) / chunks
    return Point(name, placement_of(schedule), timeline, kept, _bound(schedule, costs, limit))


@lru_cache(maxsize=1024)
def _bound(like: Schedule, costs: Costs, limit: float | None) -> Any:
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
        numbers = f"{span:>10g}{one.idle:>8.1f}{one.bound:>12g}{100 * above:>11.1f} %"
        rows.append(f"{one.name:<22}{one.kept:>7g}{numbers}")
    return rows


def draw(
    figure: Picture,
    points: Sequence[Point],
    p: int,
    m: int,
    costs: Costs,
    star: str,
    best: Mapping[str, Mapping[float, Any]] | None = None,
    bounded: bool = False,
) -> Axes:
    """Bounds as dashed steps, and schedules as points, one of them on a star. Few have their names beside them, more
    have numbers, and a list at the right.

    There is room for the steps of the `best` that are known; if `bounded`, the legend names the learner's bound.
    """
    few = len({one.name for one in points}) <= FEW
    axes = panel(figure, LEFT, TOP, theme.WIDTH - LEFT - 0.4 if few else ACROSS, DOWN)
    likes = _likes(points)
    spans = [span for of in (best or {}).values() for span in of.values() if 0 < span < math.inf]
    spans += [one.timeline.makespan for one in points]
    work = m * sum(_times(costs)[:3])
    lowest, highest = 0.75 * work, 1.05 * max(spans) or 1
    for placement, like in likes.items():
        limits, least = _bounds(like, costs, p)
        style = {"color": PLACEMENTS[placement]["color"], "linestyle": "dashed", "linewidth": 1.4}
        _steps(axes, limits, least, "bound", style)
        if best and len(likes) == 1:
            _fill(axes, limits, [min(span, highest) for span in least], best[placement], lowest)
    for one in points:
        if one.name == star:
            axes.plot(*one.place, gid="star", **STAR)
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
    scale(axes.yaxis, "makespan (units)", ends=(lowest, highest) if work else None, grid=True)
    alone = bool(best) and len(likes) == 1
    entries: list[tuple[str, dict[str, Any]]] = [(name, {**PLACEMENTS[name], "markersize": 7}) for name in likes]
    entries = [] if alone else entries
    entries += [("best known", {"color": theme.INK, "linewidth": 2})] if best else []
    if alone:
        proved = ("proved: no schedule is here", {**SQUARE, "color": theme.GRID})
        entries += [("between bound and best known", {**SQUARE, "color": UNKNOWN}), proved]
    else:
        entries.append(("none is below", {"color": theme.INK, "linestyle": "dashed"}))
    entries += [("your bound", YOUR_BOUND)] * bounded
    line_legend(figure, entries)
    ratio = " : ".join(f"{cost:g}" for cost in _times(costs)[:3])
    note(figure, f"F : I : W = {ratio}, c = {costs.transfer:g}")
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


def _bounds(like: Schedule, costs: Costs, p: int) -> tuple[list[float], list[Any]]:
    """The limits of memory, in chunks, and for each the makespan that no schedule is below."""
    chunks = like.num_stages // p
    limits = [1 + k / chunks for k in range(2 * p * chunks)]
    least: list[Any] = []
    for limit in limits:  # more memory than removes the limit changes nothing
        done = least[-1:] == [_bound(like, costs, None)]
        least.append(least[-1] if done else _bound(like, costs, limit))
    return limits, least


def _fill(axes: Axes, limits: Sequence[float], least: Sequence[Any], best: Mapping[float, Any], lowest: float) -> None:
    """Grey below the bound, yellow from there to the best known."""
    axes.fill_between(limits, lowest, least, step="post", color=theme.GRID, linewidth=0, gid="impossible")
    whole_limits = [limit for limit in limits if best.get(limit, math.inf) < math.inf]
    low = [least[limits.index(limit)] for limit in whole_limits]
    high = [best[limit] for limit in whole_limits]
    axes.fill_between(whole_limits, low, high, step="post", color=UNKNOWN, linewidth=0, gid="unknown")
