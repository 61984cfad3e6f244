"""All meshes of 16 ranks: the time of a step, the bytes that are sent, and the memory of the fullest rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from parlab.arguments import checked, one_of
from parlab.views.drawing import theme
from parlab.views.drawing.picture import Picture, key, line_legend, panel, percent, scale, sheet, short_bytes, write
from parlab.views.mesh.steps import KERNEL, NAMES, RANKS, SCHEDULES, SHARES, Dot, stored
from parlab.views.mesh.strategies import STRATEGIES
from parlab.views.widgets.explorer import Explorer, steps
from parlab.world.units import format_bytes

LEFT, RIGHT, TOP, BOTTOM, PLOT, ROW = 0.9, 0.3, 0.95, 0.7, 3.1, 0.27  # inches, around the plot, of it and of a row
TABLE = TOP + PLOT + BOTTOM  # where the table begins
COLUMNS = (0.15, 2.55, 6.0, 7.6, 9.2)  # inches from the left; of numbers their right ends
MEMORY, TIMES = (1.5 * 2**30, 9 * 2**30), (14, 47)  # the same at all settings, so that dots move, not axes
TIE = 0.005  # a smaller difference of two times is none
TITLES = {"one_f_one_b": "1F1B", "zb_h1": "ZB-H1", "zb_h2": "ZB-H2"}
KINDS = {  # of meshes, by the axes that they have
    "dp": theme.Kind(STRATEGIES["dp"].color, "dp and tp alone"),
    "cp": theme.Kind(STRATEGIES["cp"].color, "with cp, no pipeline"),
    "pp": theme.Kind(STRATEGIES["pp"].color, "with a pipeline"),
}
DOT: dict[str, Any] = {"marker": "o", "markersize": 6, "linestyle": "none", "markeredgewidth": 0}
RING: dict[str, Any] = DOT | {
    "markersize": 9,
    "markerfacecolor": "none",
    "markeredgecolor": theme.INK,
    "markeredgewidth": 1.8,
}
ABOVE: dict[str, Any] = DOT | {"marker": "^"}
MOST, SLOW = 43, 45  # ms: of a dot; where the mark of a slower step stands


def _one_of_the_stored(name: str, value: Any) -> None:
    if isinstance(value, bool) or value not in SHARES:
        raise ValueError(f"{name}={value!r:.60}: use one of {', '.join(map(str, SHARES))}")


@checked({"products": _one_of_the_stored, "schedule": partial(one_of, choices=SCHEDULES)})
def all_meshes(products: float = KERNEL, schedule: str = SCHEDULES[0]) -> Picture:
    """Draw every mesh of 16 ranks, which are two nodes: the time of a step against the memory of the fullest rank.

    A dot is a mesh and a ZeRO stage, with the number of microbatches at which it is fastest. Its colour says whether it
    has a pipeline, or cp; below the plot stands the fastest of each colour. A step of 43 ms or more is a mark at the
    top. `explore_all_meshes` shows this. The step is `mesh`'s; a pipeline has ZeRO 1, another mesh 1 or 3.

    Args:
        products: the part of the peak that products reach, 0.4 to 0.8, in steps of 0.05.
        schedule: of the pipelines: "one_f_one_b", "zb_h1", or "zb_h2", which keeps about twice the activations.

    Raises:
        ValueError: another part of the peak, or another schedule.
    """
    dots = dots_of(products, schedule)
    of_kind = {kind: [dot for dot in dots if kind_of(dot) == kind] for kind in KINDS}
    best = {kind: min(own, key=lambda dot: dot.seconds) for kind, own in of_kind.items()}
    rows = {kind: _row(dot) for kind, dot in best.items()}
    headline = f"Products at {percent(products)} of the peak, {TITLES[schedule]}: {_verdict(best)}"
    lines = [
        f"{KINDS[kind].name:>20} {mesh:>28} {ms:>9} {held:>14} {sent:>14}"
        for kind, (mesh, ms, held, sent) in rows.items()
    ]
    many = f"{RANKS} ranks, {len(dots)} meshes and ZeRO stages; the fastest"
    figure = sheet([headline, many, *lines], TABLE + ROW * (1 + len(rows)) + 0.1, headline)
    axes = panel(figure, LEFT, TOP, theme.WIDTH - LEFT - RIGHT, PLOT)
    ticks: Any = {"ticks": [2**30 * x for x in (2, 3, 4, 6, 8)], "says": short_bytes}
    scale(axes.xaxis, "held by the fullest of 16 ranks, on two nodes", ends=MEMORY, log=2, **ticks)
    scale(axes.yaxis, "ms a step", ends=TIMES, log=10, ticks=(15, 20, 25, 30, 40), says="{:g}".format)
    for kind, own in of_kind.items():
        slow = [dot for dot in own if 1e3 * dot.seconds >= MOST]
        axes.plot(*_places([dot for dot in own if dot not in slow]), gid=kind, color=KINDS[kind].color, **DOT)
        axes.plot([dot.held for dot in slow], [SLOW] * len(slow), gid=f"slow {kind}", color=KINDS[kind].color, **ABOVE)
    axes.plot(*_places(list(best.values())), gid="fastest", **RING)
    marks = [(kind.name, DOT | {"color": kind.color}) for kind in KINDS.values()]
    slower = f"slower than {MOST} ms", ABOVE | {"color": theme.FAINT}
    line_legend(figure, [*marks, ("the fastest of a colour", RING | {"markersize": 7}), slower])
    for column, words in zip(COLUMNS[2:], ("a step", "held by the fullest", "sent by all"), strict=True):
        write(figure, column, TABLE, words, color=theme.FAINT, ha="right", va="center")
    winner = min(best, key=lambda kind: best[kind].seconds)
    for place, (kind, (mesh, *numbers)) in enumerate(rows.items(), 1):
        look: Any = {"weight": "bold"} if kind == winner else {}
        middle = TABLE + ROW * place
        key(figure, COLUMNS[0], middle, KINDS[kind].color, KINDS[kind].name)
        write(figure, COLUMNS[1], middle, mesh, va="center", **look)
        for column, number in zip(COLUMNS[2:], numbers, strict=True):
            write(figure, column, middle, number, ha="right", va="center", **look)
    return figure


def explore_all_meshes() -> Explorer:
    """Sliders for `all_meshes`: the part of the peak that products reach, and the pipelines' schedule."""
    controls = {
        "products": steps("products reach", SHARES, KERNEL, "{:.0%}".format),
        "schedule": steps("pipelines run", [(title, name) for name, title in TITLES.items()], SCHEDULES[0]),
    }
    return Explorer("explore_all_meshes", controls, all_meshes)


def dots_of(products: float, schedule: str) -> list[Dot]:
    """Each mesh at each stored ZeRO stage, with the number of microbatches at which it is fastest."""
    best: dict[Any, Dot] = {}
    at = SHARES.index(products)
    for step in stored():
        if step.axes[1] == 1 or step.schedule == schedule:
            picoseconds, held = step.by_share[at]
            dot = Dot(step.axes, step.microbatches, step.zero, picoseconds / 1e12, step.sent, held)
            best[dot.axes, dot.zero] = min(dot, best.get((dot.axes, dot.zero), dot), key=lambda dot: dot.seconds)
    return list(best.values())


def fastest(products: float, schedule: str) -> Dot:
    """The fastest of all meshes."""
    return min(dots_of(products, schedule), key=lambda dot: dot.seconds)


def kind_of(dot: Dot) -> str:
    """The key in `KINDS`."""
    _, pp, cp, _ = dot.axes
    return "pp" if pp > 1 else "cp" if cp > 1 else "dp"


def spelled(dot: Dot) -> str:
    """A mesh in words: dp 4 · tp 4, ZeRO 3."""
    axes = " · ".join(f"{name} {size}" for name, size in zip(NAMES, dot.axes, strict=True) if size > 1)
    return f"{axes}, ZeRO {dot.zero}" if dot.axes[0] * dot.axes[2] > 1 else axes


def _row(dot: Dot) -> tuple[str, str, str, str]:
    return spelled(dot), f"{1e3 * dot.seconds:.1f} ms", format_bytes(dot.held), format_bytes(dot.sent)


def _verdict(best: dict[str, Dot]) -> str:
    pipeline, other = best["pp"].seconds, min(best["dp"].seconds, best["cp"].seconds)
    if abs(pipeline / other - 1) < TIE:
        return "the best pipeline is as fast as the best mesh without"
    if pipeline < other:
        return f"a pipeline wins, by {percent(other / pipeline - 1)}"
    return f"the best pipeline takes {percent(pipeline / other - 1)} longer"


def _places(dots: Sequence[Dot]) -> tuple[list[float], list[float]]:
    """Bytes held and milliseconds."""
    return [dot.held for dot in dots], [1e3 * dot.seconds for dot in dots]
