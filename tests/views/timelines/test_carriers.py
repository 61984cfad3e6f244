"""A message by several ways: the picture, its table and its text hold the times that were given."""

import pytest

from parlab import views

SECONDS = {
    "threads": {1024: 4e-6, 2**20: 20e-6, 100 * 2**20: 8e-3},
    "MPI": {1024: 2e-6, 2**20: 60e-6, 100 * 2**20: 12e-3},
    "socket": {1024: 10e-6, 2**20: 90e-6, 100 * 2**20: 160e-3},
}


def test_mpi_takes_half_as_long_for_1_kib_and_1_5_times_as_long_for_100_mib():
    figure = views.carried_times(SECONDS)
    lines = {line.get_gid(): line.get_xydata().tolist() for line in figure.axes[0].lines}
    assert lines == {way: [[n, seconds] for n, seconds in of_way.items()] for way, of_way in SECONDS.items()}
    assert [tick.get_text().split("\n") for tick in figure.axes[0].get_xticklabels()] == [
        ["1 KiB", "4 µs", "2 µs", "10 µs"],
        ["1 MiB", "20 µs", "60 µs", "90 µs"],
        ["100 MiB", "8 ms", "12 ms", "160 ms"],
    ]
    (said,) = [text.get_text() for text in figure.texts if text.get_gid() == "title"]
    assert said == "The time of threads is 1. 1 KiB: MPI 0.5, socket 2.5. 100 MiB: MPI 1.5, socket 20"
    first, *rows = repr(figure).splitlines()
    assert first == said
    table = [row.split() for row in rows]
    assert table[0] == ["message", "1", "KiB", "1", "MiB", "100", "MiB"]
    assert table[2] == ["MPI", "2", "µs", "60", "µs", "12", "ms"]


def test_of_one_size_the_headline_has_it_once():
    figure = views.carried_times({"a": {8: 1e-6}, "b": {8: 3e-6}})
    assert repr(figure).splitlines()[0] == "The time of a is 1. 8 B: b 3.0"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "seconds=None: must have the times of 2 or 3 ways by name"),
        ({"a": {8: 1.0}}, "must have the times of 2 or 3 ways by name"),
        ({way: {8: 1.0} for way in "abcd"}, "must have the times of 2 or 3 ways by name"),
        ({"a": {8: 1.0}, "b": 3}, r"seconds\['b'\]=3: must be a Mapping"),
        ({"a": {}, "b": {}}, "must have the same sizes for each way, one or more"),
        ({"a": {8: 1.0}, "b": {16: 1.0}}, "must have the same sizes for each way, one or more"),
        ({"a": {8: 1.0}, "b": {8: 0.0}}, "seconds=0.0: must be a number greater than 0"),
        ({"a": {0: 1.0}, "b": {0: 1.0}}, "nbytes=0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(seconds, said):
    with pytest.raises(ValueError, match=said):
        views.carried_times(seconds)
