"""A wait in a film, a bar or a disc, drawn as in pictures: hatched for a rank, dotted for a transfer."""

from __future__ import annotations

import cmath
import math

from parlab.views.engine import theme
from parlab.views.engine.player import box, word

EDGE, LINES = "#888", "#AAA"  # around the bar, and of its pattern
APART, DOT = 6, 1.6  # from line to line and from dot to dot, and of a dot
TILTED = cmath.rect(1, math.pi / 4)  # turns an upright line: from the lower left to the upper right


def waiting(kind: str, x: float, y: float, width: float, height: float, text: object = "") -> str:
    """A bar of the kind "wait" or "transfer" with a word in its middle, light on a dark page too.

    A film's pattern is drawn line by line: the name of an SVG pattern would have to differ in all films of a page.
    """
    bar = box(x, y, width, height, theme.KINDS[kind].color, edge=EDGE)
    pattern = _hatch(x, y, width, height) if kind == "wait" else _dots(x, y, width, height)
    return bar + pattern + (word(x + width / 2, y + height / 2, text, "small dark") if str(text) else "")


def pattern_of(kind: str, middle: complex, radius: float) -> str:
    """The pattern of the kind "wait" or "transfer" in a disc."""
    lines = ""
    for along in range(APART - int(radius), int(radius), APART):  # how far a line or row is from the middle
        half = math.sqrt(radius**2 - along**2)
        if kind == "wait":
            start = middle + (along - half * 1j) * TILTED
            way = 2 * half * 1j * TILTED
            lines += f"M{start.real:.4g} {start.imag:.4g}l{way.real:.4g} {way.imag:.4g}"
        else:
            wide = half // APART * APART
            lines += f"M{middle.real - wide - DOT / 2:.4g} {middle.imag + along:.4g}h{2 * wide + DOT:g}"
    broken = "" if kind == "wait" else f' stroke-width="{DOT}" stroke-dasharray="{DOT} {APART - DOT:g}"'
    return f'<path d="{lines}" stroke="{LINES}"{broken}/>'


def _hatch(x: float, y: float, width: float, height: float) -> str:
    """Lines from the lower left to the upper right."""
    lines = ""
    for along in range(APART, int(width + height), APART):  # the sum of x and y on a line
        left, top = max(0, along - height), max(0, along - width)
        lines += f"M{x + left:.4g} {y + along - left:.4g}L{x + along - top:.4g} {y + top:.4g}"
    return f'<path d="{lines}" stroke="{LINES}"/>' if lines else ""


def _dots(x: float, y: float, width: float, height: float) -> str:
    """Rows of dots, each as wide as its line is thick; one dot a row on a narrow bar."""
    many = max(1, int(width / APART))
    wide = (many - 1) * APART + DOT
    rows = f"h{wide:g}m{-wide:g} 5" * len(range(4, int(height) - 1, 5))
    broken = f' stroke-dasharray="{DOT} {APART - DOT:g}"' if many > 1 else ""
    return f'<path d="M{x + (width - wide) / 2:.4g} {y + 4:.4g}{rows}" stroke="{LINES}" stroke-width="{DOT}"{broken}/>'
