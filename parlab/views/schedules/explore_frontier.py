"""The frontier under the learner's hands: schedule, ranks, microbatches, F : I : W, transfer, memory."""

from __future__ import annotations

from parlab.pipeline import Costs
from parlab.views.drawing import theme
from parlab.views.drawing.lanes import legend_of
from parlab.views.drawing.picture import Picture, sheet
from parlab.views.schedules.frontier import HEIGHT, KNOWN, SEARCHED, draw, known, searched, table
from parlab.views.schedules.panels import BOTTOM, legend_entries, panel, panel_height
from parlab.views.widgets.explorer import Explorer, choice, steps

RATIOS = {"1 : 1 : 1": (1, 1, 1), "1 : 1 : ½": (1, 1, 0.5), "1 : 1.5 : ½": (1, 1.5, 0.5), "1 : 1 : 1.5": (1, 1, 1.5)}
MEMORY = {"p / 2": 0.5, "p": 1, "3 p / 2": 1.5, "2 p": 2}  # activations a rank


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
    panel(figure, HEIGHT + 0.4, shown.timeline, 0)
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
