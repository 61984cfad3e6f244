"""The bars of waits in films: the signs of the pictures, seen on a dark page as on a light one."""

import re
import xml.etree.ElementTree as ET

import pytest

from parlab.views.engine import theme
from parlab.views.world.waiting import EDGE, LINES, waiting


@pytest.mark.parametrize("kind", ["wait", "transfer"])
def test_a_bar_is_bright_on_a_dark_page_and_its_pattern_is_seen_on_it(kind):
    bar, pattern = ET.fromstring(f"<g>{waiting(kind, 10, 20, 30, 22)}</g>")
    assert bar.get("fill") == theme.KINDS[kind].color
    assert theme.contrast(bar.get("fill"), "#111111") > 15
    assert theme.contrast(EDGE, bar.get("fill")) >= 3
    assert bar.get("stroke") == EDGE
    assert pattern.get("stroke") == LINES


@pytest.mark.parametrize(("width", "height"), [(30, 22), (6, 22), (140, 24), (22, 14), (3, 9)])
def test_the_lines_of_a_hatched_bar_rise_and_stay_inside(width, height):
    drawn = waiting("wait", 10, 20, width, height)
    lines = re.findall(r"M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)", drawn)
    assert lines
    for left, low, right, high in (map(float, line) for line in lines):
        assert 10 <= left <= right <= 10 + width + 0.1
        assert 20 <= high <= low <= 20 + height + 0.1


def test_a_word_is_dark_because_the_bar_is_light():
    assert ET.fromstring(f"<g>{waiting('wait', 0, 0, 30, 22, 5)}</g>")[-1].get("class") == "small dark"
