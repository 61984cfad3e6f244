"""Loss curves of the right program and of wrong ones, whose bugs raise no error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.ticker import LogLocator, MaxNLocator

from parlab.arguments import flag
from parlab.views.engine import theme
from parlab.views.engine.picture import Picture, curve, line_legend, plot, scale

APART = 0.01  # of the right loss: a smaller difference is not seen on a curve
MOST_CURVES = 4
COLORS = (theme.RIGHT, theme.ALARM, theme.INK, theme.RANKS[0])


def loss_curves(losses: Mapping[str, Sequence[float]], *, headline: str | None = None, log: bool = False) -> Picture:
    """Draw the losses of several trainings over their steps. The first one is right, and the others are compared to it.

    Args:
        losses: the loss of every step, by the name of the training, such as `{"right": [...], "scale missing": [...]}`;
            all of the same length, 2 to 4 of them.
        headline: above the figure. None: the losses at the end.
        log: a logarithmic axis, on which equal ratios of losses are equal distances; the losses must be above 0.

    Raises:
        ValueError: fewer or more, a training without steps, of another length, or with something else than numbers.

    >>> loss_curves({"right": [4.0, 3.0, 2.0], "wrong": [4.0, 3.5, 3.0]})
    wrong ends at a loss of 3, right at 2: 50 % higher
    loss at step        1        2        3
    right               4        3        2
    wrong               4      3.5        3
    wrong and right part at step 2, by more than 1 %
    """
    curves = checked_losses(losses)
    flag("log", log)
    if log and min(map(min, curves.values())) <= 0:
        raise ValueError("log=True: a loss of 0 or less has no place on a logarithmic axis")
    (right, expected), *others = curves.items()
    length = len(expected)
    findings = [_finding(name, curve[-1], right, expected[-1]) for name, curve in others]
    columns = sorted({0, length // 4, length // 2, 3 * length // 4, length - 1})
    width = max(len("loss at step"), *map(len, curves))
    rows = [f"{'loss at step':<{width}}" + "".join(f"{step + 1:>9}" for step in columns)]
    rows += [f"{name:<{width}}" + "".join(f"{curve[step]:>9.3g}" for step in columns) for name, curve in curves.items()]
    parting = [_parting(name, curve, right, expected) for name, curve in others]
    figure, axes = plot([*findings, *rows, *parting], 3.9, headline or "; ".join(findings), top=0.8)
    styles = dict(zip(curves, map(curve, COLORS, theme.DASHES), strict=False))
    for name, style in styles.items():  # dashes above the solid line of the right one, which shows in their gaps
        axes.plot(range(1, length + 1), curves[name], gid=f"losses {name}", **style)
    whole = MaxNLocator(8, steps=[1, 2, 5, 10], integer=True)
    scale(axes.xaxis, "step", ends=(1, max(length, 2)), ticks=whole)
    scale(
        axes.yaxis,
        "loss",
        grid=True,
        **({"log": 10, "ticks": LogLocator(subs=(1, 2, 5)), "says": "{:g}".format} if log else {}),
    )
    line_legend(figure, list(styles.items()))
    return figure


def checked_losses(losses: Any, most: int = MOST_CURVES) -> dict[str, list[float]]:
    """The losses as numbers, by name.

    Raises:
        ValueError: see `loss_curves`.
    """
    if not isinstance(losses, Mapping) or not 2 <= len(losses) <= most:
        raise ValueError(f"losses={losses!r:.60}: must be {{name: losses}}, the right ones first, 2 to {most}")
    try:
        curves = {str(name): [float(loss) for loss in of_step] for name, of_step in losses.items()}
    except (TypeError, ValueError):
        raise ValueError(f"losses={losses!r:.60}: each must be a list of numbers, one a step") from None
    lengths = {len(curve) for curve in curves.values()}
    if len(lengths) > 1 or lengths == {0}:
        raise ValueError(f"losses: they have {sorted(lengths)} steps, and need the same number, 1 or more")
    return curves


def _finding(name: str, end: float, right: str, wanted: float) -> str:
    """A sentence about the ends of both curves."""
    if not math.isfinite(end):
        return f"{name} is lost: its loss ends as {end}, that of {right} at {wanted:.3g}"
    if not _apart(end, wanted):
        return f"{name} ends as {right} does, at a loss of {wanted:.3g}: the curve does not tell them apart"
    ends = f"{name} ends at a loss of {end:.3g}, {right} at {wanted:.3g}"
    if not wanted:
        return ends
    change = 100 * abs(end / wanted - 1)
    apart = f"{change:.0f} % {'higher' if end > wanted else 'lower'}" if change < 200 else f"{end / wanted:.2g} ×"
    return f"{ends}: {apart}"


def _parting(name: str, curve: list[float], right: str, expected: list[float]) -> str:
    """A sentence about the step from which on the difference can be seen."""
    apart = (step for step, pair in enumerate(zip(curve, expected, strict=True), start=1) if _apart(*pair))
    first = next(apart, None)
    return f"{name} and {right} {f'part at step {first},' if first else 'never part'} by more than {100 * APART:g} %"


def _apart(loss: float, expected: float) -> bool:
    return not abs(loss - expected) <= APART * abs(expected)
