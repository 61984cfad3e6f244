"""What a block keeps for its backward against the number of ranks: counted, beside the closed forms."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle

from parlab.views.drawing import theme
from parlab.views.drawing.picture import Picture, curve, line_legend, plot, scale
from parlab.world.units import format_bytes

HEIGHT = 4.2  # inches
Bytes = Mapping[str, Mapping[int, int]]  # way of keeping: t: bytes
COLORS = ("#332288", "#AA4499", "#44AA99", "#999933", "#882255")  # no rank's. Source: Tol, "Colour schemes" (2021)


def kept_activations(counted: Bytes, formula: Bytes, *, headline: str | None = None) -> Picture:
    """Draw the bytes that a rank keeps of one block: closed forms as lines, what was counted as dots.

    Args:
        counted: `{way: {t: bytes}}`, such as `{"tensor parallel": {1: 8192, 2: 5120}}`.
        formula: the same from the closed form.
        headline: what stands above; None: whether the two agree.

    Raises:
        ValueError: the two have different ways or numbers of ranks, or none.
    """
    if not counted or {way: set(at) for way, at in counted.items()} != {way: set(at) for way, at in formula.items()}:
        raise ValueError("counted and formula must have the same ways of keeping and the same t, at least one")
    sizes = sorted({t for at in counted.values() for t in at})
    equal = all(counted[way][t] == formula[way][t] for way in counted for t in counted[way])
    verdict = f"Kept by one rank of one block: {'counted = closed form everywhere' if equal else 'NOT the closed form'}"
    width = max(map(len, counted))
    lines = [verdict, f"{'':<{width}}" + "".join(f"{f't = {t}':>12}" for t in sizes)]
    lines += [f"{way:<{width}}" + "".join(f"{at[t]:>12}" for t in sizes) for way, at in counted.items()]
    figure, axes = plot(lines, HEIGHT, headline or verdict, left=1.0, top=1.0)
    scale(axes.xaxis, log=2, ticks=sizes, says="t = {:g}".format)
    scale(axes.yaxis, log=2, says=format_bytes, grid=True)
    styles = dict(zip(formula, map(curve, cycle(COLORS), cycle(theme.DASHES)), strict=False))
    for way, style in styles.items():
        axes.plot(list(formula[way]), list(formula[way].values()), gid=f"formula {way}", **style)
        axes.plot(list(counted[way]), list(counted[way].values()), "o", color=style["color"], gid=f"counted {way}")
    line_legend(figure, list(styles.items()))
    return figure
