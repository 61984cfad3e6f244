"""How far the losses of trainings are from the right ones, on a logarithmic axis: there a rounding error is seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from parlab.arguments import optional, positive
from parlab.views.engine import theme
from parlab.views.engine.marks import text_width, word
from parlab.views.engine.picture import BOUND, Picture, curve, plot, scale
from parlab.views.train.loss_curves import checked_losses
from parlab.views.train.names import LEAD, name_ends

RIGHT = 1e-12  # a difference up to this is rounding
MOST = 8  # trainings
SMALLEST = 1e-17  # the lower end of the axis: no difference at all


def loss_differences(
    losses: Mapping[str, Sequence[float]], *, noise: float | None = None, headline: str | None = None
) -> Picture:
    """Draw `|loss / right loss − 1|` of several trainings over their steps. A name stands at the end of each curve.

    Trainings that differ by rounding alone are gray, and their names stand together.

    Args:
        losses: as for `loss_curves`, up to 8: the first one is right, and is not drawn.
        noise: a right training in bf16 differs by up to this; a band shows it. None: no band.
        headline: above the figure. None: how many differ by more than rounding.

    Raises:
        ValueError: as `loss_curves`, or noise that is not above 0.

    >>> loss_differences({"one rank": [4.0, 2.0], "eight ranks": [4.0, 2.02]})
    1 of 1 differs by more than rounding
    eight ranks: differs by at most 1e-02; by more than 1e-12 from step 2 on
    """
    optional(positive)("noise", noise)
    (_, right), *others = checked_losses(losses, MOST).items()
    apart = {name: [abs(a / b - 1) for a, b in zip(own, right, strict=True)] for name, own in others}
    findings = [_finding(name, own) for name, own in apart.items()]
    rounded = [name for name, own in apart.items() if all(x <= RIGHT for x in own)]
    wrong = len(apart) - len(rounded)
    headline = headline or f"{wrong} of {len(apart)} {'differs' if wrong == 1 else 'differ'} by more than rounding"
    colors = dict.fromkeys(rounded, theme.FAINT)
    colors |= dict(zip((name for name in apart if name not in colors), theme.RANKS, strict=False))
    names = {name: name for name in apart if name not in rounded}
    if rounded:
        names[rounded[-1]] = ", ".join(rounded)
    room = LEAD + max(map(text_width, names.values())) / 72 + 0.2
    figure, axes = plot([headline, *findings], 4.0, headline, top=0.6, right=room)
    for name, color in colors.items():
        drawn = [max(x, SMALLEST) for x in apart[name]]
        axes.plot(range(1, len(drawn) + 1), drawn, gid=f"differences {name}", **curve(color, "solid"))
    says = {1e-16: "10⁻¹⁶", 1e-12: "10⁻¹²", 1e-8: "10⁻⁸", 1e-4: "10⁻⁴", 1.0: "1"}
    last = max(len(right), 2)
    scale(axes.xaxis, "step", ends=(1, last))
    scale(axes.yaxis, "difference of the loss", ends=(SMALLEST, 1), log=10, ticks=list(says), says=list(says.values()))
    axes.axhline(RIGHT, gid="rounding", **BOUND)
    word(axes, 1 + 0.6 * (last - 1), 10 * RIGHT, "rounding is below", ha="center")
    if noise:
        axes.axhspan(SMALLEST, noise, gid="noise", color=theme.FAINT, alpha=0.15, linewidth=0)
        said = f"a right mesh in bf16 is anywhere here: up to {100 * noise:.0f} %"
        word(axes, 1 + 0.01 * (last - 1), 10 * noise, said)
    ends = {said: _end(apart[name]) for name, said in names.items()}
    name_ends(axes, ends, {said: colors[name] for name, said in names.items()})
    return figure


def _end(apart: Sequence[float]) -> float:
    """Where a curve ends, as a share of the axis's height."""
    last = [min(x, 1.0) for x in apart if math.isfinite(x)] or [1.0]
    return 1 - math.log10(max(last[-1], SMALLEST)) / math.log10(SMALLEST)


def _finding(name: str, apart: Sequence[float]) -> str:
    first = next((step for step, x in enumerate(apart, start=1) if not x <= RIGHT), None)
    if first is None:
        return f"{name}: differs by {RIGHT:g} or less"
    most = max(x if math.isfinite(x) else math.inf for x in apart)
    return f"{name}: differs by at most {most:.0e}; by more than {RIGHT:g} from step {first} on"
