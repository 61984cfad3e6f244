"""A schedule whose actions the learner moves, against a target or to goals: clock and bytes answer to each move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import ipywidgets as widgets

from parlab.pipeline import Action, Costs, KeptBytes, Schedule, ScheduleTimeline, simulate, validate
from parlab.views.drawing import theme
from parlab.views.drawing.lanes import legend_of
from parlab.views.drawing.marks import word
from parlab.views.drawing.picture import Picture, png, sheet, short_bytes, write
from parlab.views.schedules.panels import (
    BOTTOM,
    FLOOR,
    HEIGHT,
    LINE,
    TOP,
    bars_of_all,
    draw_panels,
    legend_entries,
    panel_height,
    peaks,
)
from parlab.views.schedules.schedule import check_kept, describe
from parlab.views.schedules.stuck import stuck
from parlab.views.schedules.why import frame
from parlab.views.widgets.explorer import Pictured

Goal = tuple[float, float]  # a makespan, and the most that a rank may keep: chunks, or bytes


def race(
    own: Schedule,
    target: Schedule | Goal,
    costs: Costs,
    kept: KeptBytes | None = None,
    chosen: Action | None = None,
    remark: str = "",
) -> Picture:
    """Draw `own` above `target` on one clock, or alone with a goal, with `chosen` framed and a `remark` in the
    headline's place; where `own` cannot run, where it stops and why.
    """
    try:
        validate(own)
    except ValueError as error:
        return stuck(own, str(error))
    if not isinstance(target, Schedule):
        return _to_goal(simulate(own, costs), target, kept, chosen, remark)
    both = [simulate(one, costs) for one in (own, target)]
    check_kept(kept, both)
    said = [f"{_name(one)}: {one.makespan:g} units, {_most(one, kept)} on its fullest rank" for one in both]
    each = 2.2 * LINE + panel_height(own.num_ranks, memory=True)
    text = [said[0], *describe(both[0], kept).splitlines()[1:], said[1], *describe(both[1], kept).splitlines()[1:]]
    figure, top = sheet(text, TOP + 2 * each - LINE + BOTTOM, remark or "; ".join(said)), TOP - LINE
    legend_of(figure, legend_entries([own, target]))
    end = max(one.makespan for one in both)
    highest = max(max(peaks(one, kept)) for one in both)
    for one in both:
        write(figure, 0.15, top + LINE, _name(one), theme.TEXT)
        axes = draw_panels(figure, top + 2.2 * LINE, one, highest, end, kept=kept, clock=one is both[-1])
        if one is both[0]:
            frame(axes, "chosen", [bar for bar in bars_of_all(one) if bar.action == chosen])
        top += each
    return figure


def reaches(shown: ScheduleTimeline, goal: Goal, kept: KeptBytes | None) -> bool:
    """Whether a schedule ends in time, and no rank keeps too much."""
    return shown.makespan <= goal[0] and max(peaks(shown, kept)) <= goal[1]


def _to_goal(
    shown: ScheduleTimeline, goal: Goal, kept: KeptBytes | None, chosen: Action | None, remark: str
) -> Picture:
    """A schedule with dashes where it must end, and at the most that each rank may keep."""
    check_kept(kept, [shown])
    (end, limit), most = goal, max(peaks(shown, kept))
    over = " (too much)" if most > limit else ""
    said = f"{_name(shown)}: {shown.makespan:g} units, {_kept(most, kept)} on its fullest rank{over}"
    wanted = f"goal: {end:g} units, at most {_kept(limit, kept)}" + (", reached" if reaches(shown, goal, kept) else "")
    text = [said, wanted, *describe(shown, kept).splitlines()[1:]]
    figure = sheet(text, TOP + panel_height(shown.size, memory=True) + BOTTOM, remark or f"{said}; {wanted}")
    legend_of(figure, legend_entries([shown.schedule]))
    width, highest = max(shown.makespan, end), max(most, limit)
    axes = draw_panels(figure, TOP, shown, highest, width, kept=kept)
    frame(axes, "chosen", [bar for bar in bars_of_all(shown) if bar.action == chosen])
    dashes = {"color": theme.INK, "linewidth": 1.2, "linestyle": "dashed"}
    axes.axvline(end, gid="goal", **dashes)
    word(axes, end, -0.68, f"goal {end:g}", ha="center")
    limits = [rank + FLOOR - HEIGHT * limit / highest for rank in range(shown.size)]
    figure.axes[-1].hlines(limits, 0, width, gid="limit", **dashes)
    return figure


def _kept(amount: float, kept: KeptBytes | None) -> str:
    return short_bytes(amount) if kept else f"{amount:g} activations"


def _name(shown: ScheduleTimeline) -> str:
    return shown.schedule.name.split(",")[0]


def _most(shown: ScheduleTimeline, kept: KeptBytes | None) -> str:
    return _kept(max(peaks(shown, kept)), kept)


class Reorder(Pictured):
    """Buttons for a rank's actions in their order; one that is chosen moves earlier or later. See `reorder`."""

    def __init__(self, start: Schedule, target: Schedule | Sequence[Goal], costs: Costs, kept: KeptBytes | None):
        self.start, self.target, self.costs, self.kept = start, target, costs, kept
        self.rows = [list(row) for row in start.actions]
        self.reached = 0  # goals
        ranks = [(f"rank {rank}", rank) for rank in range(start.num_ranks)]
        narrow = {"style": {"button_width": "4.2em"}}
        self.rank = widgets.ToggleButtons(options=ranks, value=len(ranks) - 1, style={"button_width": "5em"})
        self.action = widgets.ToggleButtons(options=self._names(), index=self._middle, **narrow)
        moves = (("◀ earlier", self.earlier), ("later ▶", self.later), ("start again", self.again))
        self.buttons = [widgets.Button(description=name, layout=widgets.Layout(width="8em")) for name, _ in moves]
        for button, (_, move) in zip(self.buttons, moves, strict=True):
            button.on_click(move)
        self.picture = widgets.Image(format="png", layout=widgets.Layout(max_width=theme.ON_PAGE))
        self.numbers = widgets.HTML()
        self.rank.observe(self._show_rank, "value")
        self.action.observe(self._redraw, "index")
        self._redraw()
        below = widgets.Accordion([self.numbers], titles=("In words and numbers",), selected_index=None)
        super().__init__([self.rank, self.action, widgets.HBox(self.buttons), self.picture, below])

    @property
    def schedule(self) -> Schedule:
        """The schedule in its present order."""
        return Schedule(self.rows, name="yours")

    @property
    def _row(self) -> list[Action]:
        return self.rows[self.rank.value]

    @property
    def _middle(self) -> int:
        """The place that is chosen at first: it can move both ways where a row has three actions."""
        return min(2, len(self._row) - 1)

    def _names(self) -> list[str]:
        return [f"{kind}{microbatch}" for kind, _, microbatch in self._row]

    def earlier(self, _: Any = None) -> None:
        """The chosen action before the one that stands before it; the first stays."""
        self._move(-1)

    def later(self, _: Any = None) -> None:
        """The chosen action behind the one that stands behind it; the last stays."""
        self._move(1)

    def _next_target(self) -> Schedule | Goal:
        """The target, or the goal that comes next: a goal once reached stays so, and the last one stays in sight."""
        if isinstance(self.target, Schedule):
            return self.target
        try:
            shown = simulate(self.schedule, self.costs)
        except ValueError:
            return self.target[min(self.reached, len(self.target) - 1)]
        check_kept(self.kept, [shown])
        while self.reached < len(self.target) and reaches(shown, self.target[self.reached], self.kept):
            self.reached += 1
        return self.target[min(self.reached, len(self.target) - 1)]

    def _move(self, by: int) -> None:
        row, at = self._row, self.action.index
        to = at + by
        if 0 <= to < len(row):
            row[at], row[to] = row[to], row[at]
            self._list(to)
        else:
            self._redraw(remark=f"{row[at]} stands {'first' if by < 0 else 'last'} already")

    def again(self, _: Any = None) -> None:
        """All actions as at the start."""
        self.rows = [list(row) for row in self.start.actions]
        self._list(self._middle)

    def _show_rank(self, _: Any) -> None:
        self._list(self._middle)

    def _list(self, chosen: int) -> None:
        """The buttons of the rank's actions in their order, and the picture."""
        self.action.unobserve(self._redraw, "index")
        self.action.options = self._names()
        self.action.index = chosen
        self.action.observe(self._redraw, "index")
        self._redraw()

    def _redraw(self, _: Any = None, remark: str = "") -> None:
        chosen = self._row[self.action.index]
        self.figure = race(self.schedule, self._next_target(), self.costs, self.kept, chosen, remark)
        self.picture.value = png(self.figure)
        self.numbers.value = f"<pre>{escape(repr(self.figure))}</pre>"

    def __repr__(self) -> str:
        return f"reorder: {self.figure.text_shown}"


def reorder(
    start: Schedule,
    target: Schedule | Sequence[Goal],
    costs: Costs | None = None,
    *,
    kept: KeptBytes | None = None,
) -> Reorder:
    """Buttons that move the actions of `start`, one place a click, and a picture that answers.

    The result's `schedule` is the schedule as it stands; it runs wherever a schedule does.

    Args:
        start: the schedule as it stands at first.
        target: a schedule, drawn below it on the same clock; or goals, reached one after the other, each a makespan and
            the most that a rank may keep: chunks, or bytes if there is `kept`.
        costs: of both; None: F, I and W take 1 each, transfers nothing.
        kept: what a microbatch keeps on each stage: memory is shown in bytes. None: in chunks.

    Raises:
        ValueError: something else than schedules of the same number of ranks, a `target` that cannot run, or goals that
            are no positive numbers.
    """
    if not isinstance(start, Schedule):
        raise ValueError(f"start={start!r:.60}: must be a schedule")
    if isinstance(target, Schedule):
        if start.num_ranks != target.num_ranks:
            raise ValueError(f"target has {target.num_ranks} ranks, start has {start.num_ranks}: they must be the same")
        validate(target)
    elif not _are_goals(target):
        raise ValueError(f"target={target!r:.60}: must be a schedule, or goals: (makespan, most kept) each")
    return Reorder(start, target, costs or Costs(), kept)


def _are_goals(target: Any) -> bool:
    pairs = isinstance(target, list | tuple) and all(isinstance(goal, tuple) and len(goal) == 2 for goal in target)
    return pairs and bool(target) and all(_is_positive(number) for goal in target for number in goal)


def _is_positive(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < math.inf
