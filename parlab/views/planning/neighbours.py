"""The bills of a layout and of its neighbours, each with a frame around the part that speaks against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from parlab.plan import Estimate, Why, binding
from parlab.views.drawing import marks, theme
from parlab.views.drawing.picture import Picture, line_legend, sheet
from parlab.views.planning.bills import BOTTOM, CUT, ROW, TIME, TOP, draw_bills
from parlab.world.units import format_bytes

Binds = Callable[[Mapping[str, float], Mapping[str, float], float, float], str]
FULL, SLOW = 1.3, 1.55  # of the device and of the layout's own time: longer bills are cut
HALF = 0.36  # of a row, up and down from its middle
FRAME: dict[str, Any] = {"color": theme.INK, "linewidth": 2.2}
OVER: dict[str, Any] = {"color": theme.ALARM, "linewidth": 2.2}
OWN = {"color": theme.FAINT, "linewidth": 1.2, "linestyle": "dotted"}
LARGE = ("weights", "gradients", "activations")  # of the bytes
MOST = 24
WHOLE = 0.01  # of the time: smaller changes have a decimal


def neighbours(found: Why, binds: Binds = binding, *, headline: str = "") -> Picture:
    """Draw the bills of a layout and of its neighbours, and frame the part that speaks against each of them.

    A frame has the name of its part where there is room. Kinds of seconds that speak against no neighbour are one, the
    rest, except products; so are bytes that are small.

    Args:
        found: what `why` returned, with 1 to 24 neighbours.
        binds: `binding`, or a function of your own: seconds by kind before and after, bytes, and the device's memory.
        headline: above the figure. Empty: how many neighbours do not fit, and how many are faster.

    Raises:
        ValueError: no neighbours, too many of them, or an answer of `binds` that is not "memory", "nothing" or a kind.
    """
    if not isinstance(found, Why) or not 1 <= len(found) <= MOST:
        raise ValueError(f"found={found!r:.60}: must be what why() returned, with 1 to {MOST} neighbours")
    base, memory = found.base, found.memory
    against = [binds(dict(base.seconds), dict(n.found.seconds), n.found.total_bytes, memory) for n in found]
    if unknown := [kind for kind in against if kind not in ("memory", "nothing", *TIME)]:
        raise ValueError(f"binds returned {unknown[0]!r:.60}: must be memory, nothing, or a kind of seconds")
    rows: dict[str, Estimate] = {"this layout": base, **{n.turned: n.found for n in found}}
    large, faster = against.count("memory"), sum(n.change < 0 for n in found)
    said = headline or f"{len(found)} neighbours: {large} do not fit, {faster} would be faster"
    lines = [
        f"  {n.turned:24} {n.change:+8.1%} {format_bytes(n.found.total_bytes):>9}  {kind}"
        for n, kind in zip(found, against, strict=True)
    ]
    figure = sheet([said, str(base.layout), *lines], TOP + ROW * len(rows) + BOTTOM, said)
    longest, largest = SLOW * base.total_seconds, FULL * memory / 2**30
    shown = [kind for kind in TIME if kind in ("products", *against)]
    time, held = draw_bills(figure, rows, memory, longest, largest, shown=[*shown, *LARGE])
    time.axvline(base.total_seconds, gid="own", **OWN)
    for row, (n, kind) in enumerate(zip(found, against, strict=True), 1):
        _frame(time, held, row, n.found, kind, memory, shown)
        _say_change(time, row, n.found.total_seconds, base.total_seconds, n.change)
    line_legend(figure, [("speaks against it", FRAME), ("does not fit", OVER), ("this layout's seconds", OWN)])
    return figure


def _say_change(time: Axes, row: int, total: float, own: float, change: float) -> None:
    """The relative change behind the bill, or on its end; a faster one is bold. A bill that is cut has its sum."""
    said = f"{change:+.0%}" if abs(change) >= WHOLE else f"{change:+.1%}"
    words, end = said.replace("%", " %").replace("-", "−"), time.get_xlim()[1]
    if total <= 0.87 * end:
        marks.word(time, max(total, own) + 0.012 * end, row, words, weight="bold" if change < 0 else "normal")
    elif total <= SLOW * own:
        marks.word(time, 0.99 * end, row, words, ha="right", bbox=CUT)


def _frame(time: Axes, held: Axes, row: int, found: Estimate, kind: str, memory: float, shown: Sequence[str]) -> None:
    """A frame around the kind of seconds that binds, with its name, or around the bytes that are too many.

    `shown` are the kinds that stand one after the other in the bill.
    """
    if kind == "memory":
        part, axes, look = (memory / 2**30, found.total_bytes / 2**30), held, OVER
    elif kind == "nothing":
        return
    else:
        start = sum(found.seconds[earlier] for earlier in shown[: shown.index(kind)])
        part, axes, look = (start, start + found.seconds[kind]), time, FRAME
    start, end = part[0], min(part[1], axes.get_xlim()[1])
    span = [marks.Interval(start, end)]
    marks.frames(axes, "binds", span, [row], (-HALF, HALF), look["color"], zorder=3)
    if axes is time:
        marks.labels(axes, span, [row], (-HALF, HALF), [[kind]], theme.text_color(TIME[kind]))
