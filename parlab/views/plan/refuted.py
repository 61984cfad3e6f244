"""Planned memory beside the errors that plans had: which plans can a run of a card refute?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parlab.arguments import positive
from parlab.plan import Validation, validation
from parlab.views.engine import marks, theme
from parlab.views.engine.lanes import name_rows
from parlab.views.engine.picture import BOUND, Picture, line_legend, panel, scale, sheet, write
from parlab.views.plan.two_runs import CARD

MEASURED = ("torchtitan, memory", "torchtitan, table 6 (pp 8)")  # rows that nobody fitted
LOOK: dict[str, Any] = {"linewidth": 9, "solid_capstyle": "butt"}
PLAN: dict[str, Any] = {"marker": "D", "markersize": 8, "linestyle": "none", "color": theme.INK}
TOP, ROW, LEFT = 1.15, 0.42, 3.3  # inches


def held_over_planned(table: Validation | None = None) -> tuple[float, float]:
    """The least and the most of measured over planned memory, on the published rows to which nothing was fitted."""
    ratios = [row.published / row.predicted for row in table or validation() if row.family in MEASURED]
    return min(ratios), max(ratios)


def refuted(plans: Mapping[str, float], headline: str = "", card: float = CARD) -> Picture:
    """Draw each plan, and the memory that it may have held if it is as wrong as the plans of published runs.

    Args:
        plans: GiB by name.
        headline: above the figure. Empty: how many hold more than the card in any case.
        card: GiB of the device that ran.

    Raises:
        ValueError: no plans, or a number that is not greater than 0.

    >>> print(refuted({"all in a row": 134.9, "16 in a row": 77.8}))
    A card of 79.6 GiB refutes 1 of 2 plans
    all in a row: planned 134.9 GiB, may hold 122.8 to 173.4: refuted
    16 in a row: planned 77.8 GiB, may hold 70.8 to 100.0
    """
    if not isinstance(plans, Mapping) or not plans:
        raise ValueError(f"plans={plans!r:.60}: must be GiB by name")
    for name, gib in {**plans, "card": card}.items():
        positive(name, gib)
    low, high = held_over_planned()
    dead = {name: gib * low > card for name, gib in plans.items()}
    said = headline or f"A card of {card:g} GiB refutes {sum(dead.values())} of {len(plans)} plans"
    lines = [
        f"{name}: planned {gib:.1f} GiB, may hold {gib * low:.1f} to {gib * high:.1f}" + ": refuted" * dead[name]
        for name, gib in plans.items()
    ]
    figure = sheet([said, *lines], TOP + ROW * len(plans) + 0.6, said)
    axes = panel(figure, LEFT, TOP, theme.WIDTH - LEFT - 0.25, ROW * len(plans))
    name_rows(axes, len(plans), list(plans), size=theme.TEXT)
    scale(axes.xaxis, "GiB of the fullest GPU", ends=(40, 1.1 * high * max(plans.values())))
    looks = {"refuted": LOOK | {"color": theme.RANKS[5]}, "may have run": LOOK | {"color": theme.RANKS[4]}}
    for row, (name, gib) in enumerate(plans.items()):
        look = looks["refuted" if dead[name] else "may have run"]
        axes.plot([gib * low, gib * high], [row, row], gid=name, **look)
        axes.plot([gib], [row], gid=f"plan of {name}", zorder=4, **PLAN)
        marks.word(axes, gib * high + 2, row, f"{gib:.1f}", gid="planned")
    axes.axvline(card, gid="device", **BOUND)
    write(
        figure,
        LEFT,
        TOP - 0.3,
        f"the number: planned; bars: {low:.2f} to {high:.2f} × the plan, as published runs held",
        theme.SMALL,
    )
    line_legend(figure, [("planned", PLAN), *looks.items(), ("the card that ran", BOUND)])
    return figure
