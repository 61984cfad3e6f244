"""What smaller chunks cost: the bubble of 1F1B with 1, 2 and 4 chunks a rank against the time of a transfer."""

from __future__ import annotations

from itertools import pairwise

from parlab.arguments import amount, whole
from parlab.pipeline import Costs, interleaved_one_f_one_b, one_f_one_b, simulate
from parlab.views.drawing import theme
from parlab.views.drawing.picture import Picture, curve, line_legend, note, plot, scale
from parlab.views.widgets.explorer import Explorer, steps

CHUNKS = (1, 2, 4)
COLORS = ("#0072B2", "#D55E00", "#CC79A7")  # 1F1B and its interleaving as in `bubble_and_memory`
TRANSFERS = [step / 32 for step in range(65)]  # up to twice the forward of a rank


def interleaving(p: int = 4, m: int = 8, backward: float = 2) -> Picture:
    """Draw how much of the time ranks are idle, against the transfer time; what `explore_interleaving` shows.

    Args:
        p: ranks.
        m: microbatches, a multiple of p.
        backward: B of all layers of a rank, whose forward takes 1.

    Raises:
        ValueError: m is no multiple of p, fewer than 2 ranks, or a negative time.
    """
    if whole("m", m, 1) % whole("p", p, 2):
        raise ValueError(f"m={m}: must be a multiple of p={p}, because chunks take microbatches in groups of p")
    amount("backward", backward)
    idle = {chunks: [_idle_percent(p, m, chunks, backward, c) for c in TRANSFERS] for chunks in CHUNKS}
    best = [min((percents[at], v) for v, percents in idle.items())[1] for at in range(len(TRANSFERS))]
    changes = [(c, one, other) for c, (one, other) in zip(TRANSFERS[1:], pairwise(best), strict=True) if one != other]
    until = [f"v = {one} is best below c = {c:.2g}" for c, one, _ in changes]
    headline = "; ".join([*until, f"v = {best[-1]} " + ("from there on" if changes else "is best for all of these")])
    columns = range(0, len(TRANSFERS), 8)
    rows = ["transfer c" + "".join(f"{TRANSFERS[at]:>7g}" for at in columns)]
    rows += [f"v = {v}: %   " + "".join(f"{percents[at]:7.1f}" for at in columns) for v, percents in idle.items()]
    figure, axes = plot([headline, *rows], 3.9, headline, top=0.85, bottom=0.65)
    styles = dict(zip(CHUNKS, map(curve, COLORS, theme.DASHES), strict=True))
    for v, percents in idle.items():
        axes.plot(TRANSFERS, percents, gid=f"v = {v}", **styles[v])
    for c, _, _ in changes:
        axes.axvline(c, color=theme.FAINT, linewidth=0.8)
    scale(axes.xaxis, "c, the time of a transfer; the forward of a rank takes 1", ends=(0, TRANSFERS[-1]))
    scale(axes.yaxis, "% of the makespan idle", ends=(0, 100), grid=True)
    line_legend(figure, [(f"{v} chunk{'s' * (v > 1)} a rank", style) for v, style in styles.items()])
    note(figure, f"p = {p}, m = {m}, B = {backward:g} F")
    return figure


def _idle_percent(p: int, m: int, chunks: int, backward: float, transfer: float) -> float:
    made = interleaved_one_f_one_b(p, m, chunks) if chunks > 1 else one_f_one_b(p, m)
    return 100 * simulate(made, Costs(1 / chunks, backward / chunks, 0, transfer)).bubble_fraction()


def explore_interleaving() -> Explorer:
    """Sliders for `interleaving`: ranks, microbatches a rank, and what a backward takes."""
    controls = {
        "p": steps("ranks p", (2, 4, 6, 8), 4),
        "k": steps("microbatches m", (1, 2, 3, 4), 2, "{} p".format),
        "backward": steps("backward B", (1, 1.5, 2, 3), 2, "{:g} F".format),
    }
    return Explorer("explore_interleaving", controls, lambda p, k, backward: interleaving(p, k * p, backward))
