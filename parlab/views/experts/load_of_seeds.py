"""Does training even out the load of ranks? The fullest rank, over many seeds of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from parlab.views.engine import marks, theme
from parlab.views.engine.arguments import mapping
from parlab.views.engine.picture import Picture, plot, scale

PLAIN, BIASED = "#D55E00", "#0072B2"


def load_of_seeds(loads: Mapping[int, tuple[Any, Any]]) -> Picture:
    """Draw how full the fullest rank is in each of many trainings, a dot a training: before, after 60 steps, and after
    60 steps with a bias; a line is the mean of a column.

    Args:
        loads: by seed the training without a bias and the one with it, each with its `before`, `after` and `loss`:
            `labs.seeds.loads_of_seeds()` of lesson 10.

    Raises:
        ValueError: no trainings.
    """
    mapping("loads", loads)
    columns = {
        "before": (theme.INK, [plain.before for plain, _ in loads.values()]),
        "after 60 steps": (PLAIN, [plain.after for plain, _ in loads.values()]),
        "after 60 steps with a bias": (BIASED, [biased.after for _, biased in loads.values()]),
    }
    _, after, biased = (float(np.mean(of)) for _, of in columns.values())
    lines = [f"Training leaves the fullest rank at {after:.2f} × the mean, and a bias holds it at {biased:.2f}"]
    lines += [
        f"{name}: {min(of):.2f} to {max(of):.2f}, {np.mean(of):.2f} on average" for name, (_, of) in columns.items()
    ]
    changed = [with_bias.loss - plain.loss for plain, with_bias in loads.values()]
    lines += [f"a bias changes the loss by {min(changed):+.3f} to {max(changed):+.3f}"]
    figure, axes = plot(lines, 3.4, lines[0], top=0.6, bottom=0.55)
    side_by_side = np.linspace(-0.3, 0.3, len(loads))  # the seeds, in their order
    for place, (name, (color, of)) in enumerate(columns.items()):
        dots = {"linestyle": "", "marker": "o", "markersize": 3.5, "color": color, "alpha": 0.55}
        axes.plot(place + side_by_side, of, gid=name, **dots)
        axes.plot([place - 0.36, place + 0.36], [np.mean(of)] * 2, color=color, linewidth=2.4)
        marks.word(axes, place + 0.38, float(np.mean(of)), f"{np.mean(of):.2f}", theme.TEXT)
    axes.axhline(1.0, color=theme.INK, linestyle="dashed", linewidth=1.2)
    top = 1.05 * max(max(of) for _, of in columns.values())
    scale(axes.xaxis, "(dashed: all ranks equally full)", ends=(-0.5, 2.6), ticks=range(3), says=list(columns))
    scale(axes.yaxis, "fullest rank, × mean", ends=(0.9, top), grid=True)
    return figure
