"""A pipeline schedule over the memory that it keeps, on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

from parlab.arguments import checked, flag, text
from parlab.pipeline import Costs, KeptBytes, Schedule, ScheduleTimeline, simulate, validate
from parlab.views.engine.picture import Picture, short_bytes
from parlab.views.pipeline.panels import draw_panels, panel_height, peaks, remarked
from parlab.views.pipeline.stuck import stuck
from parlab.views.pipeline.why import draw_critical_path, draw_idle, idle_slot, path_in_words

MOST_ROWS = 16  # ranks that the text lists


@checked({"memory": flag, "critical_path": flag})
def schedule(
    schedule: Schedule | ScheduleTimeline,
    costs: Costs | None = None,
    *,
    memory: bool = True,
    critical_path: bool = False,
    why: int | tuple[int, float] | None = None,
    kept: KeptBytes | None = None,
    headline: str | None = None,
    unit: str = "",
) -> Picture:
    """Draw the actions of every rank of a pipeline and, below them on the same clock, the activations that it keeps.

    Each box is an action: its colour says which kind, its number which microbatch, its shade which of the rank's
    chunks. A schedule that cannot run is drawn up to where it stops, with the action for which each rank waits.

    The times are simulated. `timeline` draws a schedule that ranks have executed.

    Args:
        schedule: a schedule, or what `simulate` returned.
        costs: of a schedule; None: F, I and W take 1 each, transfers nothing.
        memory: draw the activations kept on every rank, counted in chunks.
        critical_path: frame a chain of actions that the makespan depends on, and all actions without slack.
        why: explain an idle slot: (rank, a time within it), or a rank, whose longest wait is taken.
        kept: what a microbatch keeps on each stage: the memory is drawn in bytes. None: in chunks.
        headline: what stands above; None: name, makespan and bubble.
        unit: of the costs, such as "ms", if they have one.

    Raises:
        ValueError: neither a schedule nor a simulated one, costs for one that is simulated already, a rank that is not
            there or not idle then, `kept` of another number of stages.
    """
    if isinstance(schedule, Schedule):
        try:
            validate(schedule)
        except ValueError as error:
            return stuck(schedule, str(error))
    shown = simulated("schedule", schedule, costs)
    text("unit", unit)
    if unit:
        shown = copy(shown)
        shown.unit = unit
    slot = None if why is None else idle_slot(shown, why)
    remarks = (path_in_words(shown) if critical_path else []) + ([str(slot)] if slot else [])
    check_kept(kept, [shown])
    said, height = [describe(shown, kept), *remarks], panel_height(shown.size, memory)
    figure, top = remarked(said, headline or _headline(shown), remarks, height, shown.schedule)
    axes = draw_panels(figure, top, shown, max(peaks(shown, kept)) if memory else 0, kept)
    if critical_path:
        draw_critical_path(axes, shown)
    if slot:
        draw_idle(axes, shown, slot)
    return figure


def summary(shown: ScheduleTimeline) -> str:
    """Name, makespan and bubble in one line."""
    name = f"{shown.schedule.name}: " if shown.schedule.name else ""
    return f"{name}makespan {shown.format(shown.makespan)}, {100 * shown.bubble_fraction():.1f} % of it idle"


def _headline(shown: ScheduleTimeline) -> str:
    """The summary without what the axis says: the longest names leave no more room."""
    name = f"{shown.schedule.name}: " if shown.schedule.name else ""
    return f"{name}makespan {shown.makespan:g}, {100 * shown.bubble_fraction():.1f} % idle"


def check_kept(kept: KeptBytes | None, shown: Sequence[ScheduleTimeline]) -> None:
    """Raise a ValueError unless `kept` has a number for each stage of each schedule."""
    for one in shown:
        stages = one.schedule.num_stages
        if kept is not None and not len(kept.activation) == len(kept.pending) == stages:
            raise ValueError(f"kept={kept!r:.60}: must have a number for each of the {stages} stages")


def describe(shown: ScheduleTimeline, kept: KeptBytes | None = None) -> str:
    """The numbers that the picture shows, under the summary; with `kept`, a column of bytes."""
    rows = [f"{'rank':>4} {'busy':>9} {'idle':>9} {'peak kept':>9}" + (f" {'in bytes':>12}" if kept else "")]
    of_ranks = [f" {short_bytes(most):>12}" if kept else "" for most in peaks(shown, kept)]
    for rank in range(min(shown.size, MOST_ROWS)):
        busy, peak = shown.busy(rank), shown.peak_activations[rank]
        rows.append(f"{rank:>4} {busy:>9g} {shown.makespan - busy:>9g} {peak:>9}{of_ranks[rank]}")
    if shown.size > MOST_ROWS:
        rows.append(f"... and {shown.size - MOST_ROWS} more ranks")
    return "\n".join([summary(shown), *rows])


def simulated(name: str, source: Any, costs: Costs | None) -> ScheduleTimeline:
    """`source`, the argument called `name`, timed; a ValueError for no schedule, or for costs where it has its own."""
    if isinstance(source, Schedule):
        return simulate(source, Costs() if costs is None else costs)
    if not isinstance(source, ScheduleTimeline):
        raise ValueError(f"{name}={source!r}: must be a schedule, or what simulate() returned")
    if costs is not None:
        raise ValueError(f"costs={costs!r}: {name} was simulated with costs of its own; give its schedule instead")
    return source
