"""Bytes and numbers of parameters in words; the colours of the parts are told apart."""

import pytest

from parlab.views.zero.model_state import COLORS, decimal_bytes
from tests.views.engine.test_theme import NOTICEABLE, VISIONS, closest


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 KB"),
        (41.25e9, "41.3 GB"),
        (999.4e9, "999 GB"),
        (18e12, "18 TB"),
        (2e15, "2 PB"),
    ],
)
def test_bytes_in_powers_of_1000_to_three_digits(nbytes, said):
    assert decimal_bytes(nbytes) == said


@pytest.mark.parametrize("vision", VISIONS)
def test_the_parts_differ_by_more_than_15(vision):
    assert closest(list(COLORS.values()), vision) > NOTICEABLE
