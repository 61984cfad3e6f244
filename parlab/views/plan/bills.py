"""Two bills of a layout: the seconds of a step by kind, and the bytes of the fullest rank by kind."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from matplotlib.axes import Axes

from parlab.plan import Estimate, Layout
from parlab.views.engine import marks, theme
from parlab.views.engine.lanes import name_rows
from parlab.views.engine.picture import BOUND, Picture, key, panel, scale
from parlab.views.zero.model_state import COLORS as STATE
from parlab.world.units import format_bytes, format_time

TIME = {  # work is blue (but not the blue of weights), traffic violet, lost time grey
    "products": theme.KINDS["compute"].color,
    "attention": "#003F6B",
    "elementwise": "#5B8DB8",
    "recomputation": "#5C4033",
    "tp": theme.KINDS["send"].color,
    "cp": "#7A52B3",
    "pp": theme.KINDS["receive"].color,
    "dp": "#DCC9FF",
    "imbalance": "#777777",
    "bubble": "#CFCFCF",
    "optimizer": STATE["optimizer"],
}
MEMORY = {**STATE, "working": "#999933"}
ROW, TOP, BOTTOM, GAP = 0.36, 1.3, 0.55, 0.45  # inches
LETTER = 0.078  # inches, of the small text
WORK = ("products", "attention", "elementwise", "recomputation", "optimizer")
CLEAR = 0.86  # of the axis: beyond it stands the sum of a bill that is cut
CUT = {"facecolor": theme.PAPER, "edgecolor": "none", "pad": 1.5}  # behind the sum of a bill that is cut
ROOM = 1.2  # of the longest bill: with room for sums
BESIDE = 0.75  # of the device's memory: a longer bill has its sum beyond the line
REST = "#C9B99A"
SEEN = 0.0005  # of a bill: smaller parts are neither drawn nor named


def short_name(layout: Layout) -> str:
    """A layout in short, without the usual values of its fields. A ValueError for columns of layouts."""
    if layout.shape:
        raise ValueError("estimates: of columns; give one layout's, found[number]")
    sizes = {"dp": layout.dp, "pp": layout.pp, "cp": layout.cp, "tp": layout.tp, "chunks": layout.chunks}
    sizes["microbatch"] = layout.microbatch
    mesh = " ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "one rank"
    words = [layout.schedule] * (layout.schedule != "1f1b") + [layout.recompute] * (layout.recompute != "none")
    return " ".join([mesh, f"ZeRO-{layout.zero}", *words])


def bills_table(named: Mapping[str, Estimate]) -> str:
    """The numbers of the bills: for each layout the shares of its seconds and of its bytes."""
    lines = []
    for name, found in named.items():
        lines.append(f"{name}: {found.total_seconds:.3f} s, MFU {found.mfu:.1%}, {format_bytes(found.total_bytes)}")
        for kinds, total in ((found.seconds, found.total_seconds), (found.bytes, found.total_bytes)):
            shares = [f"{kind} {x / total:.1%}" for kind, x in kinds.items() if _seen(x, total)]
            lines.append("  " + ", ".join(shares))
    return "\n".join(lines)


def _seen(part: float, total: float) -> bool:
    """Whether a part of a bill is drawn and named."""
    return part >= SEEN * total


def with_rest(rows: list[dict[str, float]], shown: Collection[str]) -> list[dict[str, float]]:
    """The bills, with kinds summed as the rest: all but those that are `shown`. Fewer than two are not summed."""
    small = [kind for kind in rows[0] if kind not in shown]
    if sum(any(_seen(row[kind], sum(row.values())) for row in rows) for kind in small) < 2:
        return rows
    kept = [{kind: x for kind, x in row.items() if kind not in small} for row in rows]
    return [one | {"rest": sum(row[kind] for kind in small)} for one, row in zip(kept, rows, strict=True)]


def draw_bills(
    figure: Picture,
    named: Mapping[str, Estimate],
    memory: float,
    longest: float,
    largest: float,
    shown: Collection[str],
) -> tuple[Axes, Axes]:
    """Both bills, with their legends above them; those of more than `longest` seconds or `largest` GiB are cut.

    Kinds that are not `shown` are one, the rest. The sum of each bill stands beside its bar, or at the right of the
    device's line if that is near.
    """
    side = 0.25 + LETTER * max(map(len, named))
    width = (theme.WIDTH - side - GAP - 0.25) / 2
    times = [found.seconds for found in named.values()]
    held = [{kind: x / 2**30 for kind, x in found.bytes.items()} for found in named.values()]
    drawn = []
    for place, (whole, kinds, unit, cut) in enumerate(
        ((times, TIME, "seconds a step", longest), (held, MEMORY, "GiB a device", largest))
    ):
        rows, colors = with_rest(whole, shown), kinds | {"rest": REST}
        left = side + place * (width + GAP)
        axes = panel(figure, left, TOP, width, ROW * len(named))
        name_rows(axes, len(named), list(named) if not place else [], size=theme.SMALL)
        limit = memory / 2**30 if place else 0
        totals = [sum(row.values()) for row in rows]
        most = max(limit, *(min(total, cut) for total in totals))
        scale(axes.xaxis, unit, ends=(0, ROOM * most), size=theme.SMALL)
        drawn_kinds = [kind for kind in colors if any(_seen(row.get(kind, 0), sum(row.values())) for row in rows)]
        marks.stacked(axes, {kind: [row[kind] for row in rows] for kind in drawn_kinds}, colors)
        for row, total in enumerate(totals):
            if total > cut:
                words = f"{total:.1f} s ▸" if not place else f"{total:.0f} GiB ▸"
                marks.word(axes, (ROOM - 0.01) * most, row, words, ha="right", gid="cut", bbox=CUT)
            else:
                words = format_time(total * 10**12) if not place else format_bytes(total * 2**30)
                end = limit if BESIDE * limit < total <= limit else total
                marks.word(axes, end + 0.015 * most, row, words, gid="sum")
        if limit:
            axes.axvline(limit, gid="device", **BOUND)
        x, y = left, TOP - 0.52
        for kind in drawn_kinds:  # the legend, in as many lines as it needs
            needed = 0.3 + LETTER * len(kind)
            if x + needed > left + width + 0.2:
                x, y = left, y + 0.19
            key(figure, x, y, colors[kind], kind)
            x += needed
        drawn.append(axes)
    return drawn[0], drawn[1]


def name_waits(axes: Axes, rows: list[dict[str, float]]) -> None:
    """Write the name of each bill's longest part that is no work into it, where it has room."""
    end, colors = axes.get_xlim()[1], TIME | {"rest": REST}
    for number, row in enumerate(rows):
        kinds = [kind for kind in colors if kind in row]
        longest = max((kind for kind in kinds if kind not in WORK), key=row.__getitem__)
        start = sum(row[kind] for kind in kinds[: kinds.index(longest)])
        span = marks.Interval(start, min(start + row[longest], CLEAR * end))
        ink = theme.text_color(colors[longest])
        marks.labels(axes, [span], [number], (-0.36, 0.36), [[longest]], ink)
