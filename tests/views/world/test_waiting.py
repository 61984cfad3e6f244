"""The bars of waits in films: the signs of the pictures, seen on a dark page as on a light one."""

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
