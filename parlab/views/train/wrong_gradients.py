"""The gradients that a mistake breaks, and those that it leaves right."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from parlab.arguments import checked
from parlab.arrays import to_numpy
from parlab.views.engine import marks, theme
from parlab.views.engine.arguments import RULES
from parlab.views.engine.picture import Picture, panel, sheet, write

RIGHT = 1e-12  # relative error of a right gradient
MOST = 9  # boxes in a row: the weights of a Llama's block
LEFT, TOP, HIGH, WIDE, BETWEEN = 1.0, 0.82, 0.86, 0.98, 0.07  # inches: of the first box, of a box, between two
LETTER = 0.08  # inches of a letter of a name
ORDER = "in the order of the backward, row by row; a number is the error, as a share of the largest entry"
LAYER = re.compile(r"layers\.(\d+)\.")


@checked(RULES)
def wrong_gradients(found: Mapping[str, Any], expected: Mapping[str, Any]) -> Picture:
    """Draw a box for each array, in the order of the backward: which ones does a mistake break, and which stay right?

    The first box is the last of `expected`, because a backward reaches last what a forward reaches first. Each layer
    begins a row.

    Args:
        found: gradients (or a loss) by name, whole.
        expected: the serial ones, in the order of the forward.

    Raises:
        ValueError: nothing to compare, a name of `expected` is missing, or its shape differs.
    """
    errors = {name: _relative_error(name, found, expected) for name in expected}
    wrong = [name for name, error in errors.items() if not error <= RIGHT]
    verdict = (
        f"{len(wrong)} of {len(errors)} gradients are wrong" if wrong else f"all {len(errors)} gradients are right"
    )
    width = max(map(len, errors))
    lines = [verdict, *(f"{name:<{width}}  {_said(error, expected[name])}" for name, error in errors.items())]
    rows = _rows(list(reversed(errors)))
    figure = sheet(lines, TOP + len(rows) * (HIGH + 2 * BETWEEN) + 0.1, verdict)
    write(figure, 0.15, 0.47, ORDER)
    axes = panel(figure, 0, 0, *figure.get_size_inches())
    axes.set(xlim=(0, figure.get_figwidth()), ylim=(figure.get_figheight(), 0))
    for row, (layer, names) in enumerate(rows):
        top = TOP + row * (HIGH + 2 * BETWEEN)
        marks.word(axes, 0.15, top + HIGH / 2, f"layer {layer} →" if layer else "→", va="center")
        lefts = [LEFT + WIDE * column for column in range(len(names))]
        colors = [theme.ALARM if name in wrong else theme.RIGHT for name in names]
        marks.rectangles(axes, f"row {row}", lefts, [x + WIDE - BETWEEN for x in lefts], top, top + HIGH, colors)
        for x, name, color in zip(lefts, names, colors, strict=True):
            center, ink = x + (WIDE - BETWEEN) / 2, theme.text_color(color)
            marks.word(axes, center, top + 0.06, _short(name), va="top", ha="center", color=ink)
            bold = {"va": "bottom", "ha": "center", "weight": "bold"}
            marks.word(axes, center, top + HIGH - 0.07, _in_a_box(errors[name]), theme.TEXT, color=ink, **bold)
    return figure


def _rows(names: list[str]) -> list[tuple[str, list[str]]]:
    """The number of a layer, or nothing, and its names; a long row goes on in the next."""
    rows: list[tuple[str, list[str]]] = []
    for name in names:
        found = LAYER.search(name)
        layer = found[1] if found else ""
        if not rows or rows[-1][0] != layer or len(rows[-1][1]) == MOST:
            rows.append((layer, []))
        rows[-1][1].append(name)
    return rows


def _short(name: str) -> str:
    """The last part of a name, without `weight`, in lines that fit into a box."""
    last = name.removesuffix(".weight").rpartition(".")[2]
    lines = [""]
    for part in re.findall("[^_]+_?", last):
        if lines[-1] and len(lines[-1] + part) * LETTER > WIDE - BETWEEN:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _in_a_box(error: float) -> str:
    return "right" if error <= RIGHT else f"{error:.0%}" if math.isfinite(error) else "wrong"


def _relative_error(name: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    if name not in found:
        raise ValueError(f"found lacks {name}: it needs every name of expected")
    one, other = to_numpy(found[name]), to_numpy(expected[name])
    if one.shape != other.shape:
        raise ValueError(f"found[{name!r}] has shape {one.shape}: expected has {other.shape}")
    if not other.size:
        raise ValueError(f"expected[{name!r}] has shape {other.shape}: must have one number or more")
    error, largest = np.max(np.abs(one - other)), np.max(np.abs(other))
    if largest == 0:
        return math.inf if error else 0.0
    return float(error / largest)


def _said(error: float, expected: Any) -> str:
    if error <= RIGHT:
        return f"right, ≤ {RIGHT:g}"
    return f"WRONG by {error:.0%} of its largest entry" if np.any(to_numpy(expected)) else "WRONG: it should be 0"
