"""The gradients that a mistake breaks, and those that it leaves right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from parlab.arguments import checked
from parlab.arrays import to_numpy
from parlab.views.arguments import RULES
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import name_rows
from parlab.views.drawing.picture import Picture, plot, scale

RIGHT = 1e-12  # relative error of a right gradient
SMALLEST = 1e-17  # the left end of the axis


@checked(RULES)
def wrong_gradients(found: Mapping[str, Any], expected: Mapping[str, Any]) -> Picture:
    """Draw the error of each array, to show which ones a wrong sharding breaks and which stay right.

    Args:
        found: gradients (or a loss) by name, whole.
        expected: the serial ones.

    Raises:
        ValueError: nothing to compare, a name of `expected` is missing, or its shape differs.
    """
    errors = {name: _relative_error(name, found, expected) for name in expected}
    wrong = [name for name, error in errors.items() if not error <= RIGHT]
    verdict = f"{len(wrong)} of {len(errors)} arrays are wrong" if wrong else f"all {len(errors)} arrays are right"
    width = max(map(len, errors))
    lines = [verdict, *(f"{name:<{width}}  {_said(error, expected[name])}" for name, error in errors.items())]
    figure, axes = plot(lines, 1.15 + 0.24 * len(errors), verdict, left=0.35 + 0.082 * width, top=0.5, bottom=0.65)
    ends = [max(min(error, 10.0), SMALLEST) if np.isfinite(error) else 10.0 for error in errors.values()]
    colors = [theme.ALARM if name in wrong else theme.RIGHT for name in errors]
    says = "largest error over largest entry; right of the dashed line: wrong"
    scale(axes.xaxis, says, ends=(SMALLEST, 10), log=10, size=theme.SMALL)
    name_rows(axes, len(errors), list(errors), size=theme.SMALL)
    marks.bars(axes, "errors", SMALLEST, ends, colors)
    axes.axvline(RIGHT, color=theme.FAINT, linewidth=1, linestyle="dashed", gid="right")
    return figure


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
