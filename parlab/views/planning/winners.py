"""Who wins where: the best layout of each model on each number of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parlab.arguments import whole
from parlab.plan import MODELS, Estimate, search
from parlab.views.drawing import marks, theme
from parlab.views.drawing.picture import BAR, Picture, line_legend, plot, scale
from parlab.world import DGX_H100, Cluster

SHADES = {t: theme.paler("#0072B2", white) for t, white in ((1, 0.95), (2, 0.75), (4, 0.55), (8, 0.3), (16, 0))}
NOTHING = "#EEEEEE"
KNOBS: dict[str, Any] = {"microbatch": [1, 2], "sequence_parallel": True, "zero": [1, 3], "schedule": "1f1b"}


def winners(
    models: Sequence[str] = ("llama-8b", "llama-70b", "llama-405b"),
    gpus: Sequence[int] = (64, 256, 1024, 4096, 16384),
    *,
    tokens: int = 2**24,
    sequence: int = 8192,
    cluster: Cluster = DGX_H100,
) -> Picture:
    """Draw a map: the best layout's tensor parallelism as a shade, and all of its mesh in words.

    Args:
        models: names in `MODELS`, the smallest first.
        gpus: how many.
        tokens: of a step, the same for all.
        sequence: of these, in a sequence.
        cluster: the hardware.

    Raises:
        ValueError: an unknown model, or tokens that are not whole sequences.
    """
    if unknown := [name for name in models if name not in MODELS]:
        raise ValueError(f"models: {unknown[0]!r}: choose from {', '.join(MODELS)}")
    if whole("tokens", tokens, 1) % whole("sequence", sequence, 1):
        raise ValueError(f"tokens={tokens}: must be a multiple of sequence {sequence}")
    found = {
        (name, ranks): _best(name, ranks, tokens // sequence, sequence, cluster) for name in models for ranks in gpus
    }
    headline = f"The best layouts of {tokens / 2**20:g} Mi tokens a step, {sequence} in a sequence, on {cluster.name}"
    lines = [
        f"{name:12} {ranks:6} "
        + (f"{best.total_seconds:8.2f} s  MFU {best.mfu:.1%}  {best.layout}" if best else "nothing fits")
        for (name, ranks), best in found.items()
    ]
    figure, axes = plot([headline, *lines], 1.5 + 0.95 * len(models), headline, left=1.15, top=0.85, bottom=0.65)
    says = [str(ranks) for ranks in gpus]
    scale(axes.xaxis, "GPUs", ends=(-0.5, len(gpus) - 0.5), ticks=range(len(gpus)), says=says, dashes=False)
    scale(axes.yaxis, ends=(-0.5, len(models) - 0.5), ticks=range(len(models)), says=list(models), dashes=False)
    for (name, ranks), best in found.items():
        x, y = list(gpus).index(ranks), list(models).index(name)
        color = SHADES.get(best.layout.tp, SHADES[16]) if best else NOTHING
        marks.rectangles(axes, f"{name} {ranks}", [x - 0.48], [x + 0.48], [y - 0.47], [y + 0.47], [color])
        ink = theme.text_color(color)
        axes.text(x, y, _words(best), ha="center", va="center", size=theme.SMALL, color=ink, linespacing=1.3)
    line_legend(figure, [(f"t {t}" + " or more" * (t == 16), {"color": color, **BAR}) for t, color in SHADES.items()])
    return figure


def _best(name: str, ranks: int, batch: int, sequence: int, cluster: Cluster) -> Estimate | None:
    plans = search(MODELS[name], cluster, ranks, batch=batch, sequence=sequence, **KNOBS)
    return plans.best if len(plans) else None


def _words(best: Estimate | None) -> str:
    if best is None:
        return "nothing fits"
    of = best.layout
    again = "" if of.recompute == "none" else f", {of.recompute}"
    return f"t {of.tp} c {of.cp} p {of.pp} d {of.dp}\nv {of.chunks}, ZeRO-{of.zero}{again}\nMFU {best.mfu:.0%}"
