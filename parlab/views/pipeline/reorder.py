"""A schedule whose actions the learner moves to goals: clock and memory answer to each move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import ipywidgets as widgets

from parlab.pipeline import Action, Costs, Schedule, simulate
from parlab.views.pipeline.board import Goal, board, reaches


class Reorder(widgets.VBox):
    """Buttons for a rank's actions in their order; one that is chosen moves earlier or later. See `reorder`."""

    def __init__(self, start: Schedule, goals: Sequence[Goal], costs: Costs):
        self.start, self.goals, self.costs = start, goals, costs
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
        self.picture = widgets.HTML()
        self.numbers = widgets.HTML()
        wraps = widgets.Layout(display="flex", flex_flow="row wrap")
        self.rank.observe(self._show_rank, "value")
        self.action.observe(self._redraw, "index")
        self._redraw()
        below = widgets.Accordion([self.numbers], titles=("In words and numbers",), selected_index=None)
        super().__init__([self.rank, self.action, widgets.Box(self.buttons, layout=wraps), self.picture, below])

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

    def _count_goals(self) -> None:
        """How many goals are reached; one that once was stays so."""
        try:
            shown = simulate(self.schedule, self.costs)
        except ValueError:
            return
        while self.reached < len(self.goals) and reaches(shown, self.goals[self.reached]):
            self.reached += 1

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
        self._count_goals()
        self.figure = board(self.schedule, self.goals, self.costs, chosen, remark, self.reached)
        self.picture.value = self.figure._repr_html_()
        self.numbers.value = f"<pre>{escape(repr(self.figure))}</pre>"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """Beside the controls the board alone, which is shown where no kernel moves them: in the book."""
        return super()._repr_mimebundle_(**kwargs) | {"text/html": self.figure._repr_html_()}

    def __repr__(self) -> str:
        return f"reorder: {self.figure.text_shown}"


def reorder(start: Schedule, goals: Sequence[Goal], costs: Costs | None = None) -> Reorder:
    """Buttons that move the actions of `start`, one place a click, and a picture that answers.

    The result's `schedule` is the schedule as it stands; it runs wherever a schedule does.

    Args:
        start: the schedule as it stands at first.
        goals: reached one after the other, each a makespan and the most chunks that a rank may keep.
        costs: None: F, I and W take 1 each, transfers nothing.

    Raises:
        ValueError: no schedule, or goals that are no positive numbers.
    """
    if not isinstance(start, Schedule):
        raise ValueError(f"start={start!r:.60}: must be a schedule")
    if not _are_goals(goals):
        raise ValueError(f"goals={goals!r:.60}: must be (makespan, most kept) each")
    return Reorder(start, goals, costs or Costs())


def _are_goals(given: Any) -> bool:
    pairs = isinstance(given, list | tuple) and all(isinstance(goal, tuple) and len(goal) == 2 for goal in given)
    return pairs and bool(given) and all(_is_positive(number) for goal in given for number in goal)


def _is_positive(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < math.inf
