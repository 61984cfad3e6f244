"""The colours can be told apart, by readers who are colour-blind too, and text on them can be read."""

from itertools import combinations

import numpy as np
import pytest

from parlab.views.engine import theme

# Machado et al., "A physiologically-based model for simulation of color vision deficiency" (2009), severity 1.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
NOTICEABLE = 15  # CIE76; a just noticeable difference is 2.3


def lab(color, vision):
    srgb = np.array([int(color[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(np.array(TO_XYZ) @ np.clip(np.array(VISIONS[vision]) @ linear, 0, 1) / [0.95047, 1, 1.08883])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def closest(colors, vision):
    return min(np.linalg.norm(lab(a, vision) - lab(b, vision)) for a, b in combinations(colors, 2))


ACTIONS = ("forward", "backward", "backward_input", "backward_weight", "send", "receive", "wait")


@pytest.mark.parametrize("vision", VISIONS)
def test_kinds_of_action_differ_by_more_than_15(vision):
    assert closest([theme.KINDS[kind].color for kind in ACTIONS], vision) > NOTICEABLE


@pytest.mark.parametrize("vision", VISIONS)
def test_eight_ranks_and_four_algorithms_differ_by_more_than_15(vision):
    assert closest(theme.RANKS, vision) > NOTICEABLE
    assert closest([line.color for line in theme.ALGORITHMS.values()], vision) > NOTICEABLE


@pytest.mark.parametrize("vision", VISIONS)
def test_each_rank_differs_from_messages_and_waits_by_more_than_15_and_right_from_wrong(vision):
    for other in (*(theme.KINDS[kind].color for kind in ("send", "receive", "wait")), theme.INK, theme.ALARM):
        assert min(closest([rank, other], vision) for rank in theme.RANKS) > NOTICEABLE
    assert closest([theme.RIGHT, theme.ALARM], vision) > NOTICEABLE


def test_red_and_green_of_one_lightness_would_be_refused():
    assert closest(["#C04040", "#3F7F3F"], "normal") > NOTICEABLE
    assert closest(["#A05050", "#6E6E40"], "deuteranopia") < NOTICEABLE


def test_text_has_a_contrast_of_at_least_4_5_in_bars_and_on_paper_and_of_4_on_the_colours_of_ranks():
    bars = [kind.color for kind in theme.KINDS.values()]
    on = {4.5: [(theme.text_color(bar), bar) for bar in bars], 4: [(theme.text_color(x), x) for x in theme.RANKS]}
    on[4.5] += [(ink, theme.PAPER) for ink in (theme.INK, theme.FAINT, theme.ALARM)]
    for least, pairs in on.items():
        assert [pair for pair in pairs if theme.contrast(*pair) < least] == []


def test_contrast_of_black_on_white_is_21_and_of_a_colour_on_itself_1():
    assert theme.contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert theme.contrast("#E69F00", "#E69F00") == 1


def test_neighbours_on_a_ring_differ_in_colour_unless_the_last_begins_a_new_round():
    for size in range(2, 66):
        same = [rank for rank in range(size) if theme.rank_color(rank) == theme.rank_color((rank + 1) % size)]
        assert same == ([size - 1] if size % 8 == 1 else [])
