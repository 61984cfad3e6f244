"""The ranks of a mesh in their places, and the groups of one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from parlab.arguments import checked_rank, whole
from parlab.train import Mesh
from parlab.views.engine import marks, theme
from parlab.views.engine.lanes import legend_of
from parlab.views.engine.picture import Picture, note, panel, sheet, write
from parlab.world import Comm, run

NAMES = ("dp", "pp", "cp", "tp")
COLORS = {"tp": "#A6761D", "cp": "#C51B7D", "pp": "#444444", "dp": "#1B4F9C"}  # of an axis
MOST = 32  # ranks
GROUPS = ("tp", "cp", "pp", "dp", "data")
SPELLED = {"data": "dp × cp"}
MOST_LISTED = 8  # ranks of a group in the legend
OTHER = "#E4E4E4"  # a rank that shares none of the groups
LEFT, RIGHT, TOP, BOTTOM = 1.2, 0.3, 1.25, 0.15  # inches around the boxes
COLUMN, ROW, GAP, BETWEEN = 1.95, 0.5, 0.12, 0.5  # inches: from box to box, between them, and between replicas
EDGE = 0.045  # inches from a box to its frame


def groups_of(rank: int, sizes: Mapping[str, int]) -> dict[str, list[int]]:
    """The ranks of each of a rank's groups, by the group's name; the mesh makes them."""

    def program(comm: Comm) -> dict[str, list[int]]:
        mesh, own = Mesh(comm, **sizes), np.array([comm.rank])
        return {name: getattr(mesh, name).all_gather(own).tolist() for name in GROUPS}

    groups: dict[str, list[int]] = run(program, math.prod(sizes.values())).results[rank]
    return groups


def groups_on_mesh(rank: int, sizes: Mapping[str, int]) -> Picture:
    """Draw the ranks of a mesh in their places, and in colour those that share a group with `rank`.

    Replicas stand side by side, and so do the ranks of a tp group; pipeline stages stand below each other, and so do
    the ranks of a cp group.

    Args:
        rank: the rank whose groups are shown.
        sizes: of the axes, by name: dp, pp, cp, tp; of 32 ranks at most.

    Raises:
        ValueError: other axes, more ranks, or a rank that is not there.
    """
    if not isinstance(sizes, Mapping) or not set(sizes) <= set(NAMES):
        raise ValueError(f"sizes={sizes!r:.60}: must be the sizes of dp, pp, cp and tp, by name")
    full = {name: whole(name, sizes.get(name, 1), 1) for name in NAMES}
    dp, pp, cp, tp = full.values()
    if dp * pp * cp * tp > MOST:
        raise ValueError(f"sizes={sizes!r:.60}: these are {dp * pp * cp * tp} ranks, and {MOST} are the most")
    groups = groups_of(checked_rank(rank, "rank", dp * pp * cp * tp), full)
    said = ", ".join(f"{name[0]} {digit}" for name, digit in zip(NAMES, _digits(rank, full), strict=True))
    headline = f"Rank {rank} is at {said}. The ranks of a group differ from it in one digit"
    lines = [f"{SPELLED.get(name, name)}: ranks {', '.join(map(str, ranks))}" for name, ranks in groups.items()]
    wide, high = theme.WIDTH - LEFT - RIGHT, pp * cp * ROW + (pp - 1) * BETWEEN / 2
    figure = sheet([headline, *lines], TOP + high + BOTTOM, headline)
    axes = panel(figure, LEFT, TOP, wide, high)
    axes.set(xlim=(0, wide), ylim=(high, 0))
    between = min(BETWEEN, wide / (6 * dp))
    column = min(COLUMN, (wide - (dp - 1) * between) / (dp * tp))
    colors = {other: COLORS[name] for name in NAMES for other in groups[name]} | {rank: theme.PAPER}
    left, top = _places(full, column, between)
    for other in range(dp * pp * cp * tp):
        d, p, c, t = _digits(other, full)
        x, y, color = left[d, t], top[p, c], colors.get(other, OTHER)
        if other in groups["data"]:
            _frame(axes, x, y, column, EDGE, COLORS["dp"], "dashed")
        marks.rectangles(axes, f"rank {other}", x, x + column - GAP, y, y + ROW - GAP, color)
        if other == rank:
            _frame(axes, x, y, column, 0, theme.INK, "solid")
        middle = x + (column - GAP) / 2, y + (ROW - GAP) / 2
        marks.word(axes, *middle, str(other), theme.TEXT, color=theme.text_color(color), ha="center")
    replica = "replica d" if column * tp > 1 else "d"
    look: Any = {"color": theme.FAINT}
    for (d, t), x in left.items():
        if t == 0:
            write(figure, LEFT + x, TOP - 0.3, f"{replica} {d}", theme.TEXT, weight="bold", va="baseline")
        write(figure, LEFT + x + (column - GAP) / 2, TOP - 0.08, f"t {t}", ha="center", va="baseline", **look)
    for (p, c), y in top.items():
        write(figure, LEFT - 0.12, TOP + y + (ROW - GAP) / 2, f"p {p}, c {c}", ha="right", va="center", **look)
    shared = [name for name in reversed(NAMES) if len(groups[name]) > 1]
    legend_of(figure, [(COLORS[name], f"{name}: {_listed(groups[name])}", "") for name in shared])
    note(figure, f"dashed: dp × cp, {_listed(groups['data'])}")
    return figure


def _frame(axes: Axes, x: float, y: float, column: float, edge: float, color: str, dashes: str) -> None:
    """A frame around the box at (x, y), `edge` inches away from it."""
    frame = Rectangle((x - edge, y - edge), column - GAP + 2 * edge, ROW - GAP + 2 * edge, clip_on=False, gid="frame")
    frame.set(facecolor="none", edgecolor=color, linewidth=1.8, linestyle=dashes, zorder=2)
    axes.add_patch(frame)


def _digits(rank: int, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A rank's place on the four axes."""
    return tuple(map(int, np.unravel_index(rank, tuple(sizes[name] for name in NAMES))))


def _places(sizes: Mapping[str, int], column: float, between: float) -> tuple[dict[tuple[int, int], float], ...]:
    """The left edges of boxes by (d, t), and their upper edges by (p, c), in inches."""
    dp, pp, cp, tp = (range(sizes[name]) for name in NAMES)
    left = {(d, t): (d * len(tp) + t) * column + d * between for d in dp for t in tp}
    return left, {(p, c): (p * len(cp) + c) * ROW + p * BETWEEN / 2 for p in pp for c in cp}


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks if len(ranks) <= MOST_LISTED else [*ranks[:2], "...", ranks[-1]]))
