"""One look for every figure: a colour a rank, a colour a kind of action, and the sizes of text and lanes.

Colour is never the only sign. Lanes have the name of their rank, waits are hatched, and curves have different dashes.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from matplotlib.colors import to_hex, to_rgb

PAPER = "#FFFFFF"
INK = "#222222"  # text and axes
FAINT = "#666666"  # less important text
GRID = "#DDDDDD"
PATTERN = "#BBBBBB"  # the lines of a hatched bar
ALARM = "#B30000"  # an error: a deadlock's cycle, a count that is not the formula's, a loss that is too high
RIGHT = "#009E73"  # a right result beside a wrong one

RANKS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#5C4033", "#F0E442")
"""The colours of Okabe and Ito, "Color universal design" (2008), in an order in which neighbours differ most. Brown
replaces their black, because text is black."""

DASHES = ("solid", "dashed", "dotted", "dashdot")


class Kind(NamedTuple):
    """The look of one kind of action: the colour of its bar, its name in a legend, and the pattern on the bar."""

    color: str
    name: str
    hatch: str = ""


KINDS = {
    "compute": Kind("#8CC4EF", "compute"),
    "forward": Kind("#8CC4EF", "forward"),
    "backward": Kind("#E08214", "backward"),
    "backward_input": Kind("#F7D488", "backward for the input"),
    "backward_weight": Kind("#1F7A5C", "backward for the weights"),
    "send": Kind("#4A2A7F", "send"),
    "receive": Kind("#B388FF", "receive"),
    "wait": Kind("#F4F4F4", "waits: other rank not there", "////"),
    "port": Kind("#FFF6DC", "waits: port busy with another transfer", "----"),
    "transfer": Kind("#F1EAFF", "waits: transfer under way", "...."),
    "idle": Kind("#FFFFFF", "idle"),
}

WIDTH = 10.0  # inches: all figures have this width, so that a reader can compare their time axes
DPI = 100
ON_PAGE = f"min(100%, {WIDTH * DPI:.0f}px)"  # the largest width of a widget's picture, and of a stored picture
TITLE, TEXT, SMALL, TINY = 13, 11, 9.5, 7  # points


def rank_color(rank: int) -> str:
    """The colour of `rank`, the same in every figure. Ranks 0, 8, 16, ... have the same colour, but different lanes."""
    return RANKS[rank % len(RANKS)]


def paler(color: str, white: float) -> str:
    """`color` mixed with a share `white` of white, from 0 to 1."""
    return to_hex([channel + (1 - channel) * white for channel in to_rgb(color)]).upper()


@cache
def text_color(background: str) -> str:
    """The colour of text on `background`: ink or paper, the one with more contrast."""
    return INK if contrast(INK, background) >= contrast(PAPER, background) else PAPER


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, from 1 to 21.

    Source: Web Content Accessibility Guidelines 2.2 (W3C, 2023), "contrast ratio"; text needs 4.5, drawings 3.
    """
    dark, bright = sorted((_luminance(one), _luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color))
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


class Line(NamedTuple):
    """The look of one algorithm's curve."""

    color: str
    dashes: str
    name: str


ALGORITHMS = {
    "ring": Line("#0072B2", "solid", "ring"),
    "recursive_doubling": Line("#D55E00", "dashed", "recursive doubling"),
    "circulant": Line("#CC79A7", "solid", "circulant"),
    "rabenseifner": Line("#009E73", "dashdot", "halving and doubling"),
    "hierarchical": Line("#000000", "dotted", "hierarchical"),
}
