"""Bytes sent and held against the length: measured dots on the formulas' curves."""

import pytest

from parlab.sequence import bytes_sent, forward_bytes_held, score_bytes
from tests.views.attention.ring_runs import D, G, H, both_ways, growth
from tests.views.drawn import artists


@pytest.fixture(scope="module")
def runs():
    return {size: {S: both_ways(S, size) for S in (16, 64, 256)} for size in (2, 4, 8)}


@pytest.mark.parametrize("size", [2, 4, 8])
def test_dots_are_the_measured_bytes_and_curves_the_formulas_through_them(runs, size):
    figure = growth(runs[size])
    lengths = sorted(runs[size])
    sent = [[runs[size][S][way].timeline.bytes_sent(0) for S in lengths] for way in (0, 1)]
    held = [max(map(runs[size][S][0].timeline.peak_bytes, range(size))) for S in lengths]
    assert [dots.get_xydata().tolist() for dots in artists(figure, "measured")] == [
        [[S, value] for S, value in zip(lengths, values, strict=True)] for values in (*sent, held)
    ]
    curves = [line.get_ydata() for axes in figure.axes for line in axes.lines if line.get_gid() != "measured"]
    assert [list(values) for values in curves] == [
        [bytes_sent(S, size, G, D, 4) for S in lengths],
        [bytes_sent(S, size, G, D, 4, backward=True) for S in lengths],
        [forward_bytes_held(S, size, H, G, D, 4) for S in lengths],
        [score_bytes(S, size, H, 4) for S in lengths],
    ]
    assert [list(values) for values in curves[:3]] == [*sent, held]
    assert figure.texts[-1].get_text() == f"A rank of {size}: measured = formula at every length"
    for S, f, b, h in zip(lengths, *sent, held, strict=True):
        assert f"{S} tokens: sends {f} forward, {b} backward; holds {h};" in repr(figure)


def test_a_formula_for_float64_beside_runs_in_float32_is_called_wrong(runs):
    assert "measured is NOT the formula" in growth(runs[4], itemsize=8).texts[-1].get_text()
