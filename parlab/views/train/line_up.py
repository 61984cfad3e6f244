"""Loss curves that nobody has judged yet: a name at the end of each, and no word about which one is right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.ticker import LogLocator

from parlab.views.engine import theme
from parlab.views.engine.picture import Picture, curve, plot, scale
from parlab.views.train.loss_curves import checked_losses
from parlab.views.train.names import name_ends

MOST = 8  # trainings
ROOM = 1.0  # inches for the names


def line_up(losses: Mapping[str, Sequence[float]], *, headline: str | None = None) -> Picture:
    """Draw the losses of several trainings over their steps, on a logarithmic axis, each with its name at its end.

    Unlike in `loss_curves` none of them is taken to be right. Curves that lie on each other show by their dashes.

    Args:
        losses: the loss of every step, by the name of the training; all of the same length, 2 to 8 of them.
        headline: above the figure. None: how many they are.

    Raises:
        ValueError: fewer or more, a training without steps, of another length, or with something else than finite
            numbers above 0.

    >>> line_up({"1": [4.0, 3.0, 2.0], "2": [4.0, 3.5, 2.5]})
    2 trainings
    loss at step        1        2        3
    1                   4        3        2
    2                   4      3.5      2.5
    """
    curves = checked_losses(losses, MOST)
    for name, own in curves.items():
        if not all(0 < loss < math.inf for loss in own):
            raise ValueError(f"losses[{name!r}]: each loss must be finite and above 0, for a logarithmic axis")
    length = len(next(iter(curves.values())))
    headline = headline or f"{len(curves)} trainings"
    columns = sorted({0, length // 4, length // 2, 3 * length // 4, length - 1})
    width = max(len("loss at step"), *map(len, curves))
    rows = [f"{'loss at step':<{width}}" + "".join(f"{step + 1:>9}" for step in columns)]
    rows += [f"{name:<{width}}" + "".join(f"{own[step]:>9.3g}" for step in columns) for name, own in curves.items()]
    figure, axes = plot([headline, *rows], 4.2, headline, top=0.6, right=ROOM)
    for number, (name, own) in enumerate(curves.items()):
        dashes = theme.DASHES[number % len(theme.DASHES)]
        axes.plot(range(1, length + 1), own, gid=f"losses {name}", **curve(theme.RANKS[number], dashes))
    scale(axes.xaxis, "step", ends=(1, max(length, 2)), ticks=range(1, length + 1) if length <= 12 else None)
    drawn = [loss for own in curves.values() for loss in own]
    low, high = 0.95 * min(drawn), 1.05 * max(drawn)
    ticks = LogLocator(subs=(1, 1.5, 2, 3, 5, 7))
    scale(axes.yaxis, "loss", grid=True, ends=(low, high), log=10, ticks=ticks, says="{:g}".format)
    ends = {name: math.log(own[-1] / low) / math.log(high / low) for name, own in curves.items()}
    name_ends(axes, ends, dict(zip(curves, theme.RANKS, strict=False)))
    return figure
