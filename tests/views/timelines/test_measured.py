"""Measured beside computed: what is drawn is the numbers that were given, and the text holds no time."""

import pytest

from parlab import views
from parlab.views.timelines.measured import from_first_computation, idle_parts
from parlab.world import Link, Timeline
from parlab.world.timeline import Span, Transfer

LINK = Link(latency=1e-3, bandwidth=1e6)
OURS = {2: {1000: 0.006, 4000: 0.009}, 4: {1000: 0.0075, 4000: 0.03}}
MEASURED = {ranks: {"ours": times} for ranks, times in OURS.items()}
LINKS = dict.fromkeys((2, 3, 4), LINK)


def real(**columns):
    """A measured timeline of 2 ranks."""
    return Timeline(2, 1000, cluster="the wall clock", **columns)


def test_a_clock_whose_first_computation_starts_at_120_begins_there():
    shown = from_first_computation(
        real(
            computes=((0, 1), (120, 150), (200, 250), ("a", "b")),
            transfers=((0, 1), (1, 0), (8, 8), (5, 90), (10, 100), (20, 130), ("barrier", "message"), (None, None)),
            waits=((1, 0), (10, 100), (110, 140), (0, 1), ("barrier", "receive"), (60, 130)),
        )
    )
    assert [(span.start, span.end) for span in shown.computes] == [(0, 80), (30, 130)]
    assert [(t.ready, t.start, t.end) for t in shown.transfers] == [(0, 0, 10)]
    assert [(w.start, w.came, w.end) for w in shown.waits] == [(0, 10, 20)]
    assert shown.makespan == 880


@pytest.mark.parametrize(
    ("busy", "left"),
    [
        ([], [(100, 200)]),
        ([(50, 120)], [(120, 200)]),
        ([(150, 160), (110, 130)], [(100, 110), (130, 150), (160, 200)]),
        ([(90, 150), (140, 300)], []),
        ([(150, 300)], [(100, 150)]),
        ([(200, 300)], [(100, 200)]),
    ],
)
def test_of_the_time_from_100_to_200_the_parts_without_work_are_left(busy, left):
    message = Transfer(0, 1, 8, 100, 100, 200, "message", None)
    assert idle_parts(message, [Span(0, start, end, "compute", "work") for start, end in busy]) == left


def test_4_ranks_1000_bytes_are_drawn_and_tabled_at_6_latencies_and_6_quarters_of_1000_bytes():
    figure = views.measured_times(MEASURED, LINKS, ranks=4, nbytes=1000)
    lines = {line.get_gid(): line.get_xydata().tolist() for line in figure.axes[0].lines}
    assert lines["measured ours"] == [[1000, 0.0075], [4000, 0.03]]
    first, *between, last = lines["computed"]  # a curve: on a logarithmic axis the ends do not say what lies between
    assert first == [1000, pytest.approx(6 * 1.25e-3)]
    assert last == [4000, pytest.approx(6 * 2e-3)]
    assert [2000, 6 * 1.5e-3] in [[pytest.approx(n), pytest.approx(seconds)] for n, seconds in between]
    assert lines["latency"][0] == [1000, pytest.approx(6e-3)]
    assert lines["latency"][-1] == [4000, pytest.approx(6e-3)]
    assert lines["bytes"][0] == [1000, pytest.approx(6 * 0.25e-3)]
    assert lines["bytes"][-1] == [4000, pytest.approx(6e-3)]  # 4000 = P · α · bandwidth
    assert [tick.get_text().split("\n") for tick in figure.axes[0].get_xticklabels()] == [
        ["1000 B", "7.5 ms", "7.5 ms"],
        ["3.91 KiB", "12 ms", "30 ms"],
    ]
    (said,) = [text.get_text() for text in figure.texts if text.get_gid() == "title"]
    assert said == "4 ranks, 1000 B. ours: 1.0 times the computed time, 80 % of which is latency"
    assert "ms" not in repr(figure)


def test_a_second_librarys_times_are_squares_and_a_row_of_the_table():
    both = {4: {"ours": OURS[4], "MPI's": {1000: 0.001, 4000: 0.002}}}
    figure = views.measured_times(both, LINKS, ranks=4, nbytes=4000)
    lines = {line.get_gid(): line for line in figure.axes[0].lines}
    assert lines["measured MPI's"].get_ydata().tolist() == [0.001, 0.002]
    assert lines["measured MPI's"].get_marker() == "s"
    assert figure.axes[0].get_xticklabels()[1].get_text().split("\n") == ["3.91 KiB", "12 ms", "30 ms", "2 ms"]


def test_the_sliders_hold_the_ranks_and_the_sizes_that_all_of_them_have():
    explorer = views.explore_measured_times({**MEASURED, 3: {"ours": {4000: 0.02}}}, LINKS)
    assert [value for _, value in explorer.controls["ranks"].options] == [2, 3, 4]
    assert [value for _, value in explorer.controls["nbytes"].options] == [4000]
    explorer.controls["ranks"].value = 3
    assert repr(explorer.figure).startswith("all-reduce on 3 ranks")


@pytest.mark.parametrize(
    ("measured", "links", "ranks", "nbytes", "said"),
    [
        (MEASURED, LINKS, 3, 1000, "ranks=3, nbytes=1000: nothing was measured there"),
        (MEASURED, LINKS, 1, 1000, "ranks=1"),
        (MEASURED, 5, 2, 1000, "links=5: must have a Link for 2 ranks"),
        (MEASURED, {4: LINK}, 2, 1000, "must have a Link for 2 ranks"),
        ({2: {"ours": {1000: 0.0}}}, LINKS, 2, 1000, "seconds=0.0: must be a number greater than 0"),
        (None, LINKS, 2, 1000, "nothing was measured there"),
    ],
)
def test_what_cannot_be_drawn_is_refused(measured, links, ranks, nbytes, said):
    with pytest.raises(ValueError, match=said):
        views.measured_times(measured, links, ranks=ranks, nbytes=nbytes)


def test_sliders_over_nothing_are_refused():
    for nothing in ({}, {2: {"ours": {8: 1.0}}, 4: {"ours": {16: 1.0}}}):
        with pytest.raises(ValueError, match="must have a size that was measured on every number of ranks"):
            views.explore_measured_times(nothing, LINKS)
