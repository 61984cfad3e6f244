"""A deadlock: which rank waits for which, on a circle; the waits that hold each other are red."""

from __future__ import annotations

import math
import textwrap
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from parlab.views.engine import theme
from parlab.views.engine.picture import Picture, inches, plot, write
from parlab.world import DeadlockError

MOST_STEPS = 8  # waits that are spelled out beside the circle
OTHER = "#AAAAAA"  # the waits that lead into the chain
LINE = 62  # letters
MOST_INSIDE = 20  # ranks whose numbers stand inside their circles
MOST_NUMBERS = 64
REACH = 1.25  # of the axes to each side; the ranks stand on a circle of radius 1
POINTS = 72 * (theme.WIDTH - 5.2) / (2 * REACH)  # in a unit of the axes

Point = tuple[float, float]


def deadlock(error: DeadlockError) -> Picture:
    """Draw who waits for whom: an arrow from each blocked rank to the ranks without which it cannot move on.

    Red is what holds up all the others: the waits that go around in a circle, or the chain that ends at a rank which
    has left the program (a square).

    Args:
        error: what `run` raised.

    Raises:
        ValueError: something else.
    """
    if not isinstance(error, DeadlockError):
        raise ValueError(f"error={error!r}: must be the DeadlockError that run() raised")
    knot = _circle(error) or error.path
    around = [(rank, peer) for rank in knot if error.cycle for peer in error.waiting[rank].peers if peer in knot]
    red = around or list(pairwise(knot))
    peers = {peer for wait in error.waiting.values() for peer in wait.peers}
    ranks = sorted({*error.waiting, *peers})
    height = 5.2 if len(ranks) > 2 else 3.0
    figure, axes = plot(str(error), height, _headline(error), left=0.1, right=5.1, top=0.6, bottom=0.1)
    up = REACH * inches(axes)[1] / inches(axes)[0]
    axes.set(xlim=(-REACH, REACH), ylim=(-up, up))
    place = {rank: _on_circle(number, len(ranks)) for number, rank in enumerate(ranks)}
    radius = min(0.16, 2.1 / len(ranks))
    others = [(rank, peer) for rank, wait in error.waiting.items() for peer in wait.peers if (rank, peer) not in red]
    thick = 2.4 if len(ranks) <= MOST_INSIDE else 1.4
    for waits, color, width in ((others, OTHER, 0.8), (red, theme.ALARM, thick)):
        for rank, peer in waits:
            _arrow(axes, rank, peer, place, radius, color, width)
    _draw_ranks(axes, place, radius, error, knot)
    _spell_out(figure, error)
    return figure


def _circle(error: DeadlockError) -> list[int]:
    """The ranks of the error's cycle, and of all other cycles through one of them; none if there is no cycle."""
    ahead: dict[int, list[int]] = {rank: list(wait.peers) for rank, wait in error.waiting.items()}
    behind: dict[int, list[int]] = {}
    for rank, peers in ahead.items():
        for peer in peers:
            behind.setdefault(peer, []).append(rank)
    return sorted(_reached(ahead, error.cycle[:1]) & _reached(behind, error.cycle[:1]))


def _reached(ways: dict[int, list[int]], start: list[int]) -> set[int]:
    found, new = set(start), start
    while new:
        new = list({peer for rank in new for peer in ways.get(rank, ())} - found)
        found.update(new)
    return found


def _headline(error: DeadlockError) -> str:
    cycle = _circle(error)
    if len(cycle) == 1:
        return f"Deadlock: rank {cycle[0]} waits for itself"
    if cycle:
        others = f", and {len(error.waiting) - len(cycle)} for them" if len(error.waiting) > len(cycle) else ""
        circle = " in a circle" if len(cycle) == len(error.cycle) else ""
        return f"Deadlock: {len(cycle)} ranks wait for each other{circle}{others}"
    return f"Deadlock: the waits end at rank {error.path[-1]}, which has returned"


def _on_circle(number: int, count: int) -> Point:
    """Clockwise from the top; two ranks side by side, one in the middle."""
    if count == 1:
        return 0.0, 0.0
    angle = (math.pi if count == 2 else math.pi / 2) - 2 * math.pi * number / count
    return math.cos(angle), math.sin(angle)


def _arrow(axes: Axes, rank: int, peer: int, place: dict[int, Point], radius: float, color: str, width: float) -> None:
    """From one rank's edge to the other's; a rank that waits for itself gets a loop."""
    tail, head = place[rank], place[peer]
    bend, gap = 0.15, 1.05 * radius * POINTS
    if rank == peer:
        x, y = tail
        tail, head, bend, gap = (x + 0.8 * radius, y + 0.6 * radius), (x + 0.8 * radius, y - 0.6 * radius), -2.2, 1.0
    look = {"color": color, "linewidth": width, "clip_on": False, "gid": f"{rank} waits for {peer}"}
    shape = {"arrowstyle": "-|>", "mutation_scale": 5 + 5 * width, "connectionstyle": f"arc3,rad={bend}"}
    axes.add_artist(FancyArrowPatch(tail, head, shrinkA=gap, shrinkB=gap, **shape, **look))


def _draw_ranks(axes: Axes, place: dict[int, Point], radius: float, error: DeadlockError, knot: list[int]) -> None:
    """A circle a rank, a square for one that has left; numbered inside as long as that can be read, then outside."""
    every, size = -(-len(place) // MOST_NUMBERS), 2 * radius * POINTS
    end = list(place).index(error.path[-1])  # always numbered, and its neighbours then not
    for number, (rank, (x, y)) in enumerate(place.items()):
        shape, fill = ("o", theme.rank_color(rank)) if rank in error.waiting else ("s", theme.PAPER)
        color, width = (theme.ALARM, 1.8) if rank in knot else (theme.FAINT, 0.8)
        look = {"markerfacecolor": fill, "markeredgecolor": color, "markeredgewidth": width}
        axes.plot(x, y, shape, markersize=size, gid=f"rank {rank}", **look)
        distance = min((number - end) % len(place), (end - number) % len(place))
        if distance and (number % every or distance < every):
            continue
        if len(place) <= MOST_INSIDE:
            style = {"size": min(theme.TITLE, 0.55 * size), "color": theme.text_color(fill), "weight": "bold"}
            axes.text(x, y, str(rank), ha="center", va="center", **style)
        else:
            axes.text(1.1 * x, 1.1 * y, str(rank), ha="center", va="center", size=theme.TINY, color=theme.INK)


def _spell_out(figure: Picture, error: DeadlockError) -> None:
    """Beside the circle: the waits on the chain, as the error says them; and, if there is room, all others."""
    chain = [rank for rank in dict.fromkeys(error.path) if rank in error.waiting]
    others = sorted(set(error.waiting) - set(chain)) if len(error.waiting) <= MOST_STEPS else []
    steps = [error.waiting[rank] for rank in [*chain, *others]]
    lines: list[str] = []
    for step in steps[:MOST_STEPS]:
        peers = ", ".join(map(str, step.peers[:4])) + (" ..." if len(step.peers) > 4 else "")
        text = f"rank {step.rank} waits for {peers} in {step.call}{step.where}"
        lines += textwrap.wrap(text, LINE, subsequent_indent="    ", max_lines=2, placeholder=" ...")
    if len(steps) > MOST_STEPS:  # all of them on the chain
        lines.append(f"... and {len(steps) - MOST_STEPS} more in the same chain")
    if error.path[-1] in error.left:
        lines.append(f"rank {error.path[-1]} has already returned (square)")
    cause = str(error).rpartition("likely cause: ")[2]
    lines += ["", *textwrap.wrap(f"Likely cause: {cause}.", LINE)]
    write(figure, theme.WIDTH / 2, 0.65, "\n".join(lines), linespacing=1.45)
