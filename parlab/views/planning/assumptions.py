"""The assumptions that move a verdict: the shares of the map of usable memory, with one of them turned at a time."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import name_rows
from parlab.views.drawing.picture import Picture, key, panel, percent, scale, sheet, write
from parlab.views.planning.verdict import MESHES, META, USABLE, best_as_planned, mesh_name, pale, verdict_shares

TURNED: dict[str, dict[str, Any]] = {
    "as planned": {},
    "products reach 0.79, not 0.54": {"products": 0.79},
    "links between nodes 0.4, not 0.6": {"links": 0.4},
    "tp is waited for": {"waits": "tp"},
    "pp is waited for": {"waits": "pp"},
    "cp is waited for": {"waits": "cp"},
    "dp is waited for": {"waits": "dp"},
    "ZeRO-3 gathers once a chunk": {"gathers_once": True},
}
PANELS = (("whole sequences", False), ("with context parallelism", True))
OTHERS = "another mesh"
LEFT, WIDE, GAP, ROW, TOP, BOTTOM = 2.4, 3.1, 0.75, 0.34, 1.6, 0.6  # inches
ACROSS, DOWN = 1.85, 0.2  # of a legend
WORDED = 7.0  # per cent: a smaller part of a bar has no number
MOVED = 0.005  # of the map: less is not seen

Shares = dict[str, dict[str, float]]  # of each assumption: the share of each mesh


def verdict_assumptions() -> Picture:
    """Draw in how much of `verdict_map` each mesh is the best, with one assumption turned in each bar.

    At the left are layouts that leave sequences whole, at the right all. Beside each bar stand the seconds of the best
    layout for 74.5 usable GiB, if layouts hold what was planned.
    """
    found = {cut: {name: verdict_shares(cut_sequences=cut, **at) for name, at in TURNED.items()} for _, cut in PANELS}
    ours = {name: shares.get(mesh_name(META), 0.0) for name, shares in found[False].items()}
    first, *_ = ours.values()
    moved = [percent(share) for share in ours.values() if abs(share - first) >= MOVED]
    said = f"Llama 3's mesh has {percent(first)} of the map; {len(moved)} of {len(ours) - 1} assumptions "
    said += "moves it" if len(moved) == 1 else "move it"
    said = f"{said}, to {' and to '.join(moved)}" if moved else said
    lines = [said]
    figure = sheet("", TOP + ROW * len(TURNED) + BOTTOM, said)
    for place, (heading, cut) in enumerate(PANELS):
        left = LEFT + place * (WIDE + GAP)
        write(figure, left, 0.5, heading, theme.TEXT, weight="bold")
        axes = panel(figure, left, TOP, WIDE, ROW * len(TURNED))
        name_rows(axes, len(TURNED), [] if place else list(TURNED), size=theme.SMALL)
        scale(axes.xaxis, "per cent of the map", ends=(0, 100), ticks=range(0, 101, 25), size=theme.SMALL)
        for number, mesh in enumerate(_draw(axes, found[cut])):
            x, y = left + number % 2 * ACROSS, 0.9 + number // 2 * DOWN
            key(figure, x, y, pale(mesh), mesh)
        lines.append(f"{heading}:")
        for row, (name, at) in enumerate(TURNED.items()):
            best = best_as_planned(cut_sequences=cut, **at)
            marks.word(axes, 102, row, f"{best.total_seconds:.2f} s", gid="seconds")
            shares = ", ".join(f"{percent(share)} {mesh}" for mesh, share in found[cut][name].items())
            lines.append(f"  {name}: at {USABLE:g} GiB {mesh_name(best.layout)}, {best.total_seconds:.2f} s; {shares}")
    figure.text_shown = "\n".join(lines)
    return figure


def _draw(axes: Axes, shares: Shares) -> list[str]:
    """The bars, with per cents where there is room; returns the meshes in their order. Rare ones are one part."""
    rows = [{mesh: 100 * share for mesh, share in row.items() if mesh in MESHES} for row in shares.values()]
    parts = {mesh: [row.get(mesh, 0.0) for row in rows] for mesh in MESHES if any(mesh in row for row in rows)}
    rest = [max(0.0, 100 - sum(row.values())) for row in rows]
    parts |= {OTHERS: rest} if max(rest) > 100 * MOVED else {}
    marks.stacked(axes, parts, {mesh: pale(mesh) for mesh in parts})
    for row in range(len(rows)):
        start = 0.0
        for lengths in parts.values():
            if lengths[row] >= WORDED:
                marks.word(axes, start + lengths[row] / 2, row, f"{lengths[row]:.0f}", ha="center")
            start += lengths[row]
    return list(parts)
