"""Loss curves that nobody has judged yet: they grow step by step, and no word says which one is right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from parlab.views.engine import theme
from parlab.views.engine.player import Film, word
from parlab.views.train.loss_curves import checked_losses

MOST = 8  # trainings
LEFT, RIGHT, TOP, BOTTOM = 50, 560, 16, 330  # of the curves
NAMES, LINE = 600, 20  # where the names at the ends begin, and from one to the next
DASHES = ("", "14 7", "3 5", "14 5 3 5")  # of curves that lie on each other
TICKS = (0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10)


def line_up(losses: Mapping[str, Sequence[float]]) -> Film:
    """Film the losses of several trainings, step by step on a logarithmic axis; at the end each has its name.

    Unlike in `loss_curves` none of them is taken to be right. Curves that lie on each other show by their dashes.

    Args:
        losses: the loss of every step, by the name of the training; all of the same length, 2 to 8 of them.

    Raises:
        ValueError: fewer or more, a training of one step, of another length, or with something else than finite
            numbers above 0.

    >>> line_up({"1": [4.0, 3.0, 2.0], "2": [4.0, 3.5, 2.5]})
    2 trainings
    step 1: losses from 4 to 4
    step 2: losses from 3 to 3.5; at the end 1: 2, 2: 2.5
    """
    curves = checked_losses(losses, MOST)
    for name, own in curves.items():
        if not all(0 < loss < math.inf for loss in own):
            raise ValueError(f"losses[{name!r}]: each loss must be finite and above 0, for a logarithmic axis")
    by_step = list(zip(*curves.values(), strict=True))
    film = Film(
        f"{len(curves)} trainings",
        range(1, len(by_step) + 1),
        BOTTOM,
        moving=6.0,
        resting=0.4,
        ends=(LEFT, RIGHT),
        says=lambda step: f"step {step}",
    )
    low, high = 0.95 * min(map(min, by_step)), 1.05 * max(map(max, by_step))

    def height(loss: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * math.log(loss / low) / math.log(high / low)

    for tick in (tick for tick in TICKS if low < tick < high):
        film.draw(f'<path d="M{LEFT} {height(tick):.1f}H{RIGHT}" class="trail" stroke-opacity=".5"/>')
        film.draw(word(LEFT - 24, height(tick), f"{tick:g}"))
    for number, own in enumerate(curves.values()):
        points = " ".join(f"{film.x(step):g},{height(loss):.1f}" for step, loss in enumerate(own, 1))
        look = f'fill="none" stroke="{theme.RANKS[number]}" stroke-width="3" stroke-dasharray="{DASHES[number % 4]}"'
        film.reveal(f'<polyline points="{points}" {look}/>')
    film.draw(_names({name: height(own[-1]) for name, own in curves.items()}), len(by_step))
    *before, _ = by_step
    for step, found in enumerate(before, 1):
        said = f"losses from {min(found):.3g} to {max(found):.3g}"
        if step == len(before):
            said += "; at the end " + ", ".join(f"{name}: {own[-1]:.3g}" for name, own in curves.items())
        film.tell(step, said)
    return film


def _names(ends: Mapping[str, float]) -> str:
    """The name of each curve from the highest end down, and a line from the end to it."""
    marks, place = "", min(ends.values()) - 2 * LINE
    places = {}
    for name, end in sorted(ends.items(), key=lambda pair: pair[1]):
        places[name] = place = max(end - LINE, place + LINE)
    raised = max(0.0, place - BOTTOM)  # so that the lowest stands beside the curves
    colors = dict(zip(ends, theme.RANKS, strict=False))
    for name, end in ends.items():
        y = places[name] - raised
        marks += f'<path d="M{RIGHT} {end:.1f}L{NAMES - 6} {y:.1f}" stroke="{colors[name]}"/>'
        marks += word(NAMES, y, name, "strong left")
    return marks
