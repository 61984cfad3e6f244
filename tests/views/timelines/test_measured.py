"""Measured beside computed: what is drawn is the numbers that were given, and the text holds no time."""

import numpy as np
import pytest

from parlab import run, views
from parlab.world import Link, Timeline

LINK = Link(latency=1e-3, bandwidth=1e6)
MEASURED = {2: {1000: 0.006, 4000: 0.009}, 4: {1000: 0.0075, 4000: 0.03}}


def shifted(comm):
    with comm.compute("work", seconds=1e-3):
        return comm.sendrecv(np.ones(128), comm.right, comm.left)


def test_the_text_of_clocks_counts_messages_and_bytes_and_holds_no_time():
    done = run(shifted, 2)
    clocks = {"computed": done, "measured": Timeline(2, 5 * 10**9)}
    for rank in (None, 1):
        figure = views.wall_clock(clocks, headline="Two clocks", rank=rank)
        assert repr(figure).splitlines() == [
            "Two clocks",
            "computed: 2 ranks, 2 messages, 2.00 KiB",
            "measured: 2 ranks, 0 messages, 0 B",
        ]


def test_4_ranks_1000_bytes_are_drawn_and_tabled_at_6_latencies_and_6_quarters_of_1000_bytes():
    figure = views.measured_times(MEASURED, LINK, ranks=4, nbytes=1000)
    lines = {line.get_gid(): line.get_xydata().tolist() for line in figure.axes[0].lines}
    assert lines["measured"] == [[1000, 0.0075], [4000, 0.03]]
    assert lines["computed"] == [[1000, pytest.approx(6 * 1.25e-3)], [4000, pytest.approx(6 * 2e-3)]]
    assert [tick.get_text().split("\n") for tick in figure.axes[0].get_xticklabels()] == [
        ["1000 B", "7.5 ms", "7.5 ms", "1.0 ×"],
        ["3.91 KiB", "12 ms", "30 ms", "2.5 ×"],
    ]
    (said,) = [text.get_text() for text in figure.texts if text.get_gid() == "title"]
    assert said == "4 ranks, 1000 B: measured 1.0 times the computed time"
    assert "ms" not in repr(figure)


def test_the_sliders_hold_the_ranks_and_the_sizes_that_all_of_them_have():
    explorer = views.explore_measured_times({**MEASURED, 3: {4000: 0.02}}, LINK)
    assert [value for _, value in explorer.controls["ranks"].options] == [2, 3, 4]
    assert [value for _, value in explorer.controls["nbytes"].options] == [4000]
    explorer.controls["ranks"].value = 3
    assert repr(explorer.figure).startswith("all-reduce on 3 ranks")


@pytest.mark.parametrize(
    ("measured", "link", "ranks", "nbytes", "said"),
    [
        (MEASURED, LINK, 3, 1000, "ranks=3, nbytes=1000: nothing was measured there"),
        (MEASURED, LINK, 1, 1000, "ranks=1"),
        (MEASURED, 5, 2, 1000, "link=5: must be a Link"),
        ({2: {1000: 0.0}}, LINK, 2, 1000, "seconds=0.0: must be a number greater than 0"),
        (None, LINK, 2, 1000, "nothing was measured there"),
    ],
)
def test_what_cannot_be_drawn_is_refused(measured, link, ranks, nbytes, said):
    with pytest.raises(ValueError, match=said):
        views.measured_times(measured, link, ranks=ranks, nbytes=nbytes)


def test_sliders_over_nothing_are_refused():
    for nothing in ({}, {2: {8: 1.0}, 4: {16: 1.0}}):
        with pytest.raises(ValueError, match="must have a size that was measured on every number of ranks"):
            views.explore_measured_times(nothing, LINK)
