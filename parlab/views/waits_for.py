"""A deadlock: which rank waits for which, on a circle; the waits that hold each other are red."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from parlab.views import theme
from parlab.views.picture import Picture, plot, title
from parlab.world import DeadlockError
from parlab.world.errors import WaitsFor

MOST_STEPS = 8  # waits that are spelled out beside the circle
LINE = 62  # letters


def deadlock(error: DeadlockError) -> Picture:
    """Draw who waits for whom: an arrow from each blocked rank to the ranks without which it cannot move on.

    Red is the chain that the error follows, to its cycle or to the rank that left the program (a dashed square).

    Args:
        error: what `run` raised.

    Raises:
        ValueError: something else.
    """
    if not isinstance(error, DeadlockError):
        raise ValueError(f"error={error!r}: must be the DeadlockError that run() raised")
    red = list(zip(error.path, error.path[1:], strict=False))
    peers = {peer for wait in error.waiting.values() for peer in wait.peers}
    ranks = sorted({*error.waiting, *peers})
    figure, axes = plot(str(error), 5.2, left=0.1, right=5.1, top=0.6, bottom=0.1)
    axes.set_axis_off()
    axes.set_xlim(-1.25, 1.25)
    axes.set_ylim(-1.18, 1.18)
    place = {rank: _on_circle(number, len(ranks)) for number, rank in enumerate(ranks)}
    radius = min(0.16, 2.4 / len(ranks))
    for rank, wait in error.waiting.items():
        for peer in wait.peers:
            if (rank, peer) not in red:
                _arrow(axes, place[rank], place[peer], radius, "#AAAAAA", 0.8)
    for rank, peer in red:
        _arrow(axes, place[rank], place[peer], radius, theme.ALARM, 2.4)
    for rank in ranks:
        _node(axes, rank, place[rank], radius, rank in error.waiting, rank in error.path)
    _spell_out(figure, error)
    title(figure, _headline(error))
    return figure


def _headline(error: DeadlockError) -> str:
    cycle = error.cycle
    if len(cycle) == 1:
        return f"Deadlock: rank {cycle[0]} waits for itself"
    if cycle:
        return f"Deadlock: {len(cycle)} ranks wait for each other in a circle"
    return f"Deadlock: the waits end at rank {error.path[-1]}, which has returned"


def _on_circle(number: int, count: int) -> tuple[float, float]:
    """Clockwise from the top."""
    angle = math.pi / 2 - 2 * math.pi * number / count
    return math.cos(angle), math.sin(angle)


def _arrow(
    axes: Axes, tail: tuple[float, float], head: tuple[float, float], radius: float, color: str, width: float
) -> None:
    if tail == head:
        tail, head = (tail[0] - 0.01, tail[1] - radius), (tail[0] + 0.01, tail[1] - radius)
        style, shrink = "arc3,rad=2.5", 0.0
    else:
        style, shrink = "arc3,rad=0.15", 1.05 * radius * 72 * 4.5 / 2.36
    axes.add_patch(
        FancyArrowPatch(
            tail,
            head,
            arrowstyle="-|>",
            mutation_scale=6 + 5 * width,
            connectionstyle=style,
            shrinkA=shrink,
            shrinkB=shrink,
            color=color,
            linewidth=width,
        )
    )


def _node(axes: Axes, rank: int, at: tuple[float, float], radius: float, blocked: bool, on_path: bool) -> None:
    size = 2 * radius * 72 * 4.5 / 2.36
    axes.plot(
        *[[c] for c in at],
        "o" if blocked else "s",
        markersize=size,
        markerfacecolor=theme.rank_color(rank) if blocked else theme.PAPER,
        markeredgecolor=theme.ALARM if on_path else theme.FAINT,
        markeredgewidth=2 if on_path else 0.8,
    )
    color = theme.text_color(theme.rank_color(rank)) if blocked else theme.INK
    axes.text(*at, str(rank), size=min(theme.TITLE, 0.55 * size), color=color, ha="center", va="center", weight="bold")


def _spell_out(figure: Picture, error: DeadlockError) -> None:
    """Beside the circle: the waits on the chain, as the error says them."""
    steps = [error.waiting[rank] for rank in dict.fromkeys(error.path) if rank in error.waiting]
    lines: list[str] = []
    for step in steps[:MOST_STEPS]:
        lines += _sentence(step)
    if len(steps) > MOST_STEPS:
        lines.append(f"... and {len(steps) - MOST_STEPS} more in the same chain")
    if error.path[-1] in error.left:
        lines.append(f"rank {error.path[-1]} has already returned (square)")
    cause = str(error).rpartition("likely cause: ")[2]
    lines += ["", *textwrap.wrap(f"Likely cause: {cause}.", LINE)]
    figure.text(0.5, 0.87, "\n".join(lines), size=theme.SMALL, color=theme.INK, va="top", linespacing=1.45)


def _sentence(step: WaitsFor) -> list[str]:
    peers: Any = ", ".join(map(str, step.peers[:4])) + (" ..." if len(step.peers) > 4 else "")
    text = f"rank {step.rank} waits for {peers} in {step.call}{step.where}"
    return textwrap.wrap(text, LINE, subsequent_indent="    ", max_lines=2, placeholder=" ...")
