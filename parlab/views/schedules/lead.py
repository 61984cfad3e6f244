"""The lead of a folded pipeline, against the time of a transfer."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

from parlab.arguments import amount, whole
from parlab.pipeline import Costs
from parlab.views.drawing import theme
from parlab.views.drawing.picture import Picture, line_legend, note, plot, scale
from parlab.views.schedules.frontier import KNOWN, point, searched
from parlab.views.schedules.placement import PLACEMENTS

FOLDED = ("V-Min", "ZB-V")
HEIGHT, NAMES = 4.2, 2.3  # inches: of the figure, and of the names at its right
APART, CLOSE = 6, 0.06  # points that move the names of two lines apart, if they end within this part of the highest


def lead_of_a_v(
    p: int = 4, m: int = 8, transfers: Sequence[float] = (0, 0.25, 0.5, 0.75, 1), *, headline: str | None = None
) -> Picture:
    """Draw the makespans of V-Min and ZB-V against the time of a transfer, each beside the best that a search finds on
    straight stages with room for as many whole activations. F, I and W of a rank take 1 each.

    Args:
        p: ranks.
        m: microbatches.
        transfers: the times of a transfer, ascending, two or more.
        headline: the title.

    Raises:
        ValueError: fewer than 2 ranks, no microbatch, or times that do not ascend from 0 or more.
    """
    whole("p", p, 2)
    whole("m", m, 1)
    for c in transfers:
        amount("transfers", c)
    if len(transfers) < 2 or sorted(set(transfers)) != list(transfers):
        raise ValueError(f"transfers={list(transfers)!r}: give two times or more, in ascending order")
    headline = headline or f"A V against straight stages: {p} ranks, {m} microbatches"
    lines: list[tuple[str, str, list[float]]] = []  # name, placement, makespans
    for name in FOLDED:
        folded = [point(name, KNOWN[name](p, m), Costs(transfer=c)) for c in transfers]
        kept = folded[0].kept
        room = max(1, floor(kept))
        straight = [searched("straight", p, m, Costs(transfer=c), room) for c in transfers]
        lines.append((f"straight, room for {room}", "straight", [one.timeline.makespan for one in straight]))
        lines.append((f"{name}, keeps {kept:g}", "V", [one.timeline.makespan for one in folded]))
    rows = ["transfer c".ljust(24) + "".join(f"{c:>8g}" for c in transfers)]
    rows += [name.ljust(24) + "".join(f"{span:>8g}" for span in spans) for name, _, spans in lines]
    most = max(span for _, _, spans in lines for span in spans)
    figure, axes = plot(rows, HEIGHT, headline, top=0.85, bottom=0.65, right=NAMES)
    for (name, _, straight_spans), (folded_name, _, spans) in zip(lines[::2], lines[1::2], strict=True):
        ahead = {"where": [a <= b for a, b in zip(spans, straight_spans, strict=True)], "interpolate": True}
        color = PLACEMENTS["V"]["color"]
        axes.fill_between(transfers, spans, straight_spans, color=color, alpha=0.18, linewidth=0, gid="ahead", **ahead)
        between = spans[-1] - straight_spans[-1]
        above = 0 if abs(between) > CLOSE * most else 1 if between >= 0 else -1
        for said, ends, side, placement in (
            (name, straight_spans, -above, "straight"),
            (folded_name, spans, above, "V"),
        ):
            color = PLACEMENTS[placement]["color"]
            axes.plot(transfers, ends, color=color, linewidth=2, gid=said, marker="o", markersize=4, clip_on=False)
            place = {"xytext": (9, APART * side), "textcoords": "offset points", "va": "center"}
            axes.annotate(f"{said}: {ends[-1]:g}", (transfers[-1], ends[-1]), color=color, size=theme.SMALL, **place)
    scale(
        axes.xaxis,
        "c, the time of a transfer; the forward of a rank takes 1",
        ends=(0, transfers[-1]),
        ticks=transfers,
        says="{:g}".format,
    )
    scale(axes.yaxis, "makespan (units)", ends=(0, 1.08 * most), grid=True)
    square = {"marker": "s", "markersize": 9, "color": PLACEMENTS["V"]["color"], "alpha": 0.18}
    line_legend(figure, [("the V is ahead", square)])
    note(figure, f"p = {p}, m = {m}, F : I : W = 1 : 1 : 1")
    return figure
