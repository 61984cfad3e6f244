"""What the stages of ZeRO send in a step: counted, by collective, beside the formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from parlab.arguments import whole
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import timeline_of
from parlab.views.drawing.marks import text_width
from parlab.views.drawing.picture import Picture, inches, line_legend, plot, short, title
from parlab.views.zero_redundancy.model_state import COLORS as STATE
from parlab.world import Run, Timeline
from parlab.world.units import format_bytes

HEIGHT = 4.4  # inches
COLORS = {
    "all_reduce": "#666666",
    "reduce_scatter": STATE["gradients"],
    "all_gather": STATE["weights"],
    "other": theme.KINDS["receive"].color,
}
SAID = {
    "all_reduce": "all-reduce of gradients",
    "reduce_scatter": "reduce-scatter of gradients",
    "all_gather": "all-gather of weights",
    "other": "other",
}
FORMULA = {"color": theme.INK, "linewidth": 2.5}
BAR = {"linewidth": 9, "solid_capstyle": "butt"}
ONE_NUMBER = 8  # bytes: messages of an all-reduce that are no longer carry the norm, and with it the overflow


def zero_traffic(
    runs: Mapping[str, Run | Timeline], formula: Mapping[str, int], num_params: int, *, itemsize: int = 2
) -> Picture:
    """Draw the bytes that all ranks together sent in a step, in passes: Ψ(N − 1) elements, an all-gather of everything.

    Args:
        runs: what `run` returned, or a timeline, by the name of its bar, such as `"stage 2, 4 microbatches"`.
        formula: elements sent by the same names, from `elements_sent`: a mark on each bar.
        num_params: Ψ.
        itemsize: bytes of an element as it travels.

    Raises:
        ValueError: no runs, something else, other numbers of ranks, one rank, names that differ, or bad numbers.
    """
    shown, size = _checked(runs, formula, num_params, itemsize)
    a_pass = num_params * (size - 1) * itemsize  # bytes of all ranks
    sent = {name: _by_collective(timeline) for name, timeline in shown.items()}
    wanted = {name: formula[name] * itemsize for name in shown}
    extra = {name: _numbers(timeline) for name, timeline in shown.items()}
    differ = [name for name in shown if sum(sent[name].values()) - extra[name] != wanted[name]]
    verdict = f"NOT the formula at {', '.join(differ)}" if differ else "counted = formula"
    headline = f"Sent in a step by {size} ranks, in passes over all {num_params} weights: {verdict}"
    figure, axes = plot(_table(headline, sent, wanted, extra, a_pass), HEIGHT, left=0.9, top=1.0, bottom=0.75)
    _draw_bars(axes, sent, wanted, a_pass, set(differ))
    used = [kind for kind in COLORS if any(counts[kind] >= 0.01 * a_pass for counts in sent.values())]
    line_legend(figure, [(SAID[kind], {"color": COLORS[kind], **BAR}) for kind in used] + [("formula", FORMULA)])
    title(figure, headline)
    return figure


def _checked(runs: Any, formula: Any, num_params: Any, itemsize: Any) -> tuple[dict[str, Timeline], int]:
    if not isinstance(runs, Mapping) or not runs:
        raise ValueError(f"runs={runs!r:.60}: must be {{name: run}}, with at least one")
    shown = {name: timeline_of(run, f"runs[{name!r}]") for name, run in runs.items()}
    sizes = {timeline.size for timeline in shown.values()}
    if len(sizes) > 1 or sizes == {1}:
        raise ValueError(f"runs: they have {sorted(sizes)} ranks, and need the same number, 2 or more")
    if not isinstance(formula, Mapping) or formula.keys() != shown.keys():
        raise ValueError(f"formula={formula!r:.60}: must be {{name: elements}}, for {', '.join(map(str, shown))}")
    numbers = [(f"formula[{name!r}]", elements, 0) for name, elements in formula.items()]
    for name, value, least in [*numbers, ("num_params", num_params, 1), ("itemsize", itemsize, 1)]:
        whole(name, value, least)
    return shown, sizes.pop()


def _by_collective(timeline: Timeline) -> dict[str, int]:
    """Bytes of all ranks, by the collective that sent them."""
    counts = dict.fromkeys(COLORS, 0)
    for transfer in timeline.transfers:
        if transfer.src != transfer.dst:
            counts[transfer.name if transfer.name in COLORS else "other"] += transfer.nbytes
    return counts


def _numbers(timeline: Timeline) -> int:
    """Bytes of the all-reduce of one number, with which the ranks of ZeRO agree on the norm of their gradients."""
    sharded = any(transfer.name == "reduce_scatter" for transfer in timeline.transfers)
    small = [t.nbytes for t in timeline.transfers if t.name == "all_reduce" and t.nbytes <= ONE_NUMBER]
    return sum(small) if sharded else 0


def _table(
    headline: str,
    sent: Mapping[str, Mapping[str, int]],
    wanted: Mapping[str, int],
    extra: Mapping[str, int],
    a_pass: int,
) -> str:
    width = max(8, *map(len, sent))
    lines = [headline, f"{'':<{width}}{'passes':>8}{'bytes':>12}{'formula':>12}"]
    for name, counts in sent.items():
        total = sum(counts.values())
        more = f"  and {extra[name]} for the norm" if extra[name] else ""
        lines.append(
            f"{name:<{width}}{(total - extra[name]) / a_pass:>8.3g}{total - extra[name]:>12}{wanted[name]:>12}{more}"
        )
    return "\n".join(lines)


def _draw_bars(
    axes: Axes, sent: Mapping[str, Mapping[str, int]], wanted: Mapping[str, int], a_pass: int, differ: set[str]
) -> None:
    places = range(len(sent))
    left, right = [place - 0.32 for place in places], [place + 0.32 for place in places]
    axes.set_xlim(-0.6, len(sent) - 0.4)
    low = [0.0] * len(sent)
    for kind, color in COLORS.items():
        high = [start + counts[kind] / a_pass for start, counts in zip(low, sent.values(), strict=True)]
        marks.rectangles(axes, kind, left, right, low, high, [color] * len(sent))
        low = high
    highest = max(*low, *(nbytes / a_pass for nbytes in wanted.values()))
    axes.set_ylim(0, 1.2 * highest)
    levels = [nbytes / a_pass for nbytes in wanted.values()]
    colors = [theme.ALARM if name in differ else theme.INK for name in sent]
    axes.hlines(levels, [x - 0.08 for x in left], [x + 0.08 for x in right], color=colors, linewidth=2.5, gid="formula")
    for place, name, top, level in zip(places, sent, low, levels, strict=True):
        said = f"{short(f'{top:.2f} ')}passes\n{short(format_bytes(sum(sent[name].values())))}"
        above = max(top, level) + 0.03 * highest
        axes.text(place, above, said, size=theme.SMALL, color=theme.INK, ha="center", va="bottom")
    _name_axes(axes, list(sent))


def _name_axes(axes: Axes, names: Sequence[str]) -> None:
    axes.xaxis.set_major_locator(FixedLocator(range(len(names))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: str(names[round(place)]).replace(", ", "\n")))
    lines = [line for name in names for line in str(name).split(", ")]
    room, width = 72 * inches(axes)[0] / len(names), max(text_width(line, theme.TEXT) for line in lines)
    size = max(theme.TINY, theme.TEXT * min(1, 0.95 * room / width))
    axes.tick_params(axis="x", length=0, labelsize=size)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_ylabel("passes of Ψ(N − 1) elements", size=theme.TEXT, color=theme.INK)
