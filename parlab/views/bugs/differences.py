"""How far the losses of trainings are from the right ones, on a logarithmic axis: there a rounding error is seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from parlab.views.bugs.losses import APART, checked_losses
from parlab.views.drawing import theme
from parlab.views.drawing.picture import BOUND, Picture, curve, line_legend, plot, scale

RIGHT = 1e-12  # a difference up to this is rounding
MOST = 8  # trainings
ROW = 5  # entries of the legend in a row
SMALLEST = 1e-17  # the lower end of the axis: no difference at all


def loss_differences(losses: Mapping[str, Sequence[float]], *, headline: str | None = None) -> Picture:
    """Draw `|loss / right loss − 1|` of several trainings over their steps.

    Args:
        losses: as for `loss_curves`, up to 8: the first one is right, and is not drawn.
        headline: above the figure. None: how many differ by more than rounding.

    Raises:
        ValueError: as `loss_curves`.

    >>> loss_differences({"one rank": [4.0, 2.0], "eight ranks": [4.0, 2.02]})
    1 of 1 differs by more than rounding
    eight ranks: differs by at most 1e-02; by more than 1e-12 from step 2 on
    """
    (_, right), *others = checked_losses(losses, MOST).items()
    apart = {name: [abs(a / b - 1) for a, b in zip(own, right, strict=True)] for name, own in others}
    findings = [_finding(name, own) for name, own in apart.items()]
    wrong = sum(not all(x <= RIGHT for x in own) for own in apart.values())
    headline = headline or f"{wrong} of {len(apart)} {'differs' if wrong == 1 else 'differ'} by more than rounding"
    figure, axes = plot([headline, *findings], 4.0, headline, top=1.2)
    styles = dict(zip(apart, map(curve, theme.RANKS, 2 * theme.DASHES), strict=False))
    for name, style in styles.items():
        drawn = [max(x, SMALLEST) for x in apart[name]]
        axes.plot(range(1, len(drawn) + 1), drawn, gid=f"differences {name}", **style)
    says = {1e-16: "10⁻¹⁶", 1e-12: "10⁻¹²", 1e-8: "10⁻⁸", 1e-4: "10⁻⁴", 1.0: "1"}
    scale(axes.xaxis, "step", ends=(1, max(len(right), 2)))
    scale(axes.yaxis, "difference of the loss", ends=(SMALLEST, 1), log=10, ticks=list(says), says=list(says.values()))
    axes.axhline(RIGHT, gid="rounding", **BOUND)
    axes.axhline(APART, gid="seen", color=theme.FAINT, linestyle="dotted", linewidth=1.2)
    seen = {"color": theme.FAINT, "linestyle": "dotted", "linewidth": 1.2}
    lines = [*styles.items(), ("rounding ends", BOUND), ("an eye sees it", seen)]
    line_legend(figure, lines[:ROW])
    line_legend(figure, lines[ROW:], y=0.83)
    return figure


def _finding(name: str, apart: Sequence[float]) -> str:
    first = next((step for step, x in enumerate(apart, start=1) if not x <= RIGHT), None)
    if first is None:
        return f"{name}: differs by {RIGHT:g} or less"
    most = max(x if math.isfinite(x) else math.inf for x in apart)
    return f"{name}: differs by at most {most:.0e}; by more than {RIGHT:g} from step {first} on"
