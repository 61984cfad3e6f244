"""The cuts of a text: the attention that crosses each boundary, the map around one cut, and the words there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from parlab.arguments import checked, instance, whole
from parlab.arrays import to_numpy
from parlab.sequence import Chunk, LabAttention, analyse_attention, weight_cut
from parlab.views.arguments import RULES
from parlab.views.drawing import theme
from parlab.views.drawing.lanes import legend_of
from parlab.views.drawing.picture import Picture, panel, scale, sheet, write

CUT_COLORS = (theme.ALARM, theme.RIGHT)
HEIGHT, AROUND = 7.4, 9  # inches; words before and after the cut that is shown


@checked(RULES | {"lab": partial(instance, kind=LabAttention), "cut": whole})
def attention_cuts(lab: LabAttention, splits: Mapping[str, Sequence[Chunk]], cut: int = 0) -> Picture:
    """Draw the attention weight that crosses each boundary, the cuts of two splits, and the words around one cut.

    Args:
        lab: a text and its attention maps, from `lab_attention()`.
        splits: the chunks of two splits by name, with as many chunks each.
        cut: a cut of the second split, counted from 0. The map and the words around it are drawn.

    Raises:
        ValueError: not two splits, or no such cut.
    """
    two = isinstance(splits, Mapping) and len(splits) == 2
    if not two or len({len(chunks) for chunks in splits.values()}) != 1:
        raise ValueError(f"splits={splits!r:.60}: two are compared, with as many chunks each")
    stops = {name: [chunk.stop for chunk in chunks][:-1] for name, chunks in splits.items()}
    (first, second), S = splits, len(lab.words)
    if not 0 <= cut < len(stops[second]):
        raise ValueError(f"cut={cut!r}: there are the cuts 0 to {len(stops[second]) - 1}")
    lost = {name: weight_cut(lab.weights, chunks) / S for name, chunks in splits.items()}
    headline = f"{len(splits[first])} segments: {first} cuts {100 * lost[first]:.2f} % of the weight, {second} "
    headline += f"{100 * lost[second]:.2f} %: {lost[first] / lost[second]:.2f} × less"
    crossing = to_numpy(analyse_attention(lab.weights).crossing)  # [S+1]
    rows = [f"{name:<{max(map(len, splits))}} {_spoken(lab, crossing, at)}" for name in splits for at in stops[name]]
    figure = sheet([headline, *rows], HEIGHT, headline)
    above = panel(figure, 0.9, 0.85, theme.WIDTH - 1.25, 1.2)
    above.plot(np.arange(S + 1), crossing, color=theme.INK, linewidth=0.9)
    scale(above.xaxis, "boundary before word", ends=(0, S))
    scale(above.yaxis, "crosses")
    middle = stops[second][cut]
    low, high = max(middle - AROUND, 0), min(middle + AROUND, S)
    below = panel(figure, 2.2, HEIGHT - 4.25, 3.6, 3.6)
    shown = to_numpy(lab.weights).mean(axis=0)[low:high, low:high]
    grays = np.round(15 * (1 - 0.75 * np.sqrt(shown))) / 15  # few: of the 128 colours of a stored picture, each is gray
    below.imshow(grays, cmap="gray", vmin=0, vmax=1, extent=(low, high, high, low), aspect="auto")
    words = [word.strip() for word in lab.words[low:high]]
    columns = [low, middle, high - 1]
    named = [f"{at} {lab.words[at].strip()}" for at in columns]
    scale(below.xaxis, "key: the word looked at", ticks=[at + 0.5 for at in columns], says=named, dashes=False)
    scale(
        below.yaxis,
        "query: the word that looks",
        ticks=np.arange(low, high) + 0.5,
        says=words,
        size=theme.SMALL,
        dashes=False,
    )
    for (name, places), color, dashes in zip(stops.items(), CUT_COLORS, ("dashed", "solid"), strict=True):
        for at in places:
            above.axvline(at, color=color, linewidth=1.6, linestyle=dashes, gid=f"cut {name}")
            if low < at < high:
                below.axvline(at, color=color, linewidth=2, linestyle=dashes)
                below.axhline(at, color=color, linewidth=2, linestyle=dashes)
    for line, row in enumerate(rows):
        of_second = line >= len(stops[first])
        top = HEIGHT - 4.05 + 0.5 * line + 0.25 * of_second
        write(figure, 6.1, top, row.partition(" ")[2].strip(), color=CUT_COLORS[of_second], va="baseline")
    legend_of(figure, [(color, name, "") for name, color in zip(splits, CUT_COLORS, strict=True)])
    return figure


def _spoken(lab: LabAttention, crossing: np.ndarray, at: int) -> str:
    """The words at a cut, and the attention that crosses it."""
    sides = lab.words[at - 2 : at], lab.words[at : at + 2]
    before, after = (" ".join(word.strip() for word in words) for words in sides)
    return f"{at}: {before} | {after}, crossed by {crossing[at]:.2f}"
