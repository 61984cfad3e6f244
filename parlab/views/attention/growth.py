"""What ring attention sends and holds as the sequence grows: formulas as curves, measured runs as points on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from parlab import sequence
from parlab.views.drawing import theme
from parlab.views.drawing.lanes import timeline_of
from parlab.views.drawing.picture import Picture, framed, line_legend, short, title
from parlab.world import Run, Timeline
from parlab.world.units import format_bytes

FORWARD = {"color": "#0072B2", "linestyle": "solid", "linewidth": 2}
BACKWARD = {"color": "#D55E00", "linestyle": "dashed", "linewidth": 2}
SCORES = {"color": "#000000", "linestyle": "dotted", "linewidth": 2}
POINT = {"marker": "o", "markersize": 7, "linestyle": "none", "markeredgecolor": theme.PAPER}


def ring_growth(
    forward: Mapping[int, Run], backward: Mapping[int, Run], H: int, G: int, D: int, itemsize: int, B: int = 1
) -> Picture:
    """Draw the bytes that a rank sends and holds, against the length of the sequence.

    Args:
        forward: for each sequence length, the run of `ring_attention`.
        backward: for the same lengths, the run of `ring_attention_backward`.
        H, G, D, B: query heads, key/value heads, head size and batch of these runs.
        itemsize: bytes of an element of q, k and v.

    Raises:
        ValueError: no runs, runs of other lengths or ranks than the others, or on one rank.
    """
    done = {"forward": _timelines("forward", forward), "backward": _timelines("backward", backward)}
    lengths = sorted(forward)
    sizes = {shown.size for timelines in done.values() for shown in timelines.values()}
    if not lengths or sorted(backward) != lengths or len(sizes) != 1:
        raise ValueError(
            f"forward has the lengths {lengths}, backward {sorted(backward)}, on {sorted(sizes)} ranks: "
            "they must be the same lengths, and one number of ranks"
        )
    if sizes == {1}:
        raise ValueError("forward and backward ran on 1 rank, which sends nothing: run them on 2 or more")
    size = sizes.pop()
    sent = {
        way: [(S, max(map(timelines[S].bytes_sent, range(size)))) for S in lengths] for way, timelines in done.items()
    }
    held = [(S, max(map(done["forward"][S].peak_bytes, range(size)))) for S in lengths]
    curves = {
        "forward": [sequence.bytes_sent(S, size, G, D, itemsize, B) for S in lengths],
        "backward": [sequence.bytes_sent(S, size, G, D, itemsize, B, backward=True) for S in lengths],
        "held": [sequence.forward_bytes_held(S, size, H, G, D, itemsize, B) for S in lengths],
        "scores": [sequence.score_bytes(S, size, H, itemsize, B) for S in lengths],
    }
    equal = all([value for _, value in points] == curves[name] for name, points in (*sent.items(), ("held", held)))
    verdict = "measured = formula at every length" if equal else "measured is NOT the formula"
    headline = f"A rank of {size}: {verdict}"
    rows = [
        f"{S} tokens: sends {f} forward, {b} backward; holds {h}; its rows of scores would be {s}"
        for (S, f), (_, b), (_, h), s in zip(sent["forward"], sent["backward"], held, curves["scores"], strict=True)
    ]
    figure = Picture("\n".join([headline, *rows]), theme.WIDTH, 4.6)
    left, right = (framed(figure, (edge, 0.15, 0.38, 0.63)) for edge in (0.1, 0.595))
    _panel(left, lengths, [(curves["forward"], FORWARD), (curves["backward"], BACKWARD)], "bytes that a rank sends")
    _panel(right, lengths, [(curves["held"], FORWARD), (curves["scores"], SCORES)], "bytes that a rank holds, forward")
    for axes, points, style in (
        (left, sent["forward"], FORWARD),
        (left, sent["backward"], BACKWARD),
        (right, held, FORWARD),
    ):
        axes.plot(*zip(*points, strict=True), color=style["color"], gid="measured", **POINT)
    line_legend(
        figure,
        [
            ("forward", FORWARD),
            ("backward", BACKWARD),
            ("whole rows of scores, never made", SCORES),
            ("measured run", {**POINT, "color": theme.INK}),
        ],
    )
    title(figure, headline)
    return figure


def _timelines(name: str, runs: Any) -> dict[int, Timeline]:
    if not isinstance(runs, Mapping):
        raise ValueError(f"{name}={runs!r}: must be {{length: run}}")
    return {S: timeline_of(done, f"{name}[{S}]") for S, done in runs.items()}


def _panel(axes: Axes, lengths: Sequence[int], curves: Sequence[tuple[Sequence[int], Any]], what: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for values, style in curves:
        axes.plot(lengths, values, **style)
    axes.xaxis.set_major_locator(FixedLocator(list(lengths)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda S, _: f"{S:g}"))
    axes.yaxis.set_major_locator(LogLocator(base=4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: short(format_bytes(nbytes))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(color=theme.GRID, linewidth=0.7)
    axes.set_xlabel("tokens in the sequence", size=theme.TEXT, color=theme.INK)
    axes.set_title(what, size=theme.TEXT, color=theme.INK, loc="left", pad=8)
