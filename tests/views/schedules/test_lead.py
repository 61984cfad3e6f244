"""The lead of a V against the time of a transfer: each line is simulated, and shaded where the V leads."""

import pytest

from parlab import views
from parlab.pipeline import Costs, lower_bound, simulate, v_min, zb_v
from tests.views.drawn import artists, check_refused, check_text

TIMES = (0, 0.5, 1)


@pytest.fixture(scope="module")
def figure():
    return views.lead_of_a_v(transfers=TIMES)


def line(figure, name):
    (found,) = artists(figure, name)
    return found.get_xydata().tolist()


@pytest.mark.parametrize(("make", "name"), [(v_min, "V-Min, keeps 2"), (zb_v, "ZB-V, keeps 4")])
def test_a_v_takes_as_long_as_its_simulation(figure, make, name):
    for c, span in line(figure, name):
        assert span == simulate(make(4, 8), Costs(0.5, 0.5, 0.5, c)).makespan


@pytest.mark.parametrize("room", [2, 4])
def test_straight_stages_are_not_below_their_bound(figure, room):
    found = line(figure, f"straight, room for {room}")
    assert [c for c, _ in found] == list(TIMES)
    assert all(span >= lower_bound(4, 8, Costs(transfer=c), memory_limit=room) for c, span in found)


@pytest.mark.parametrize(("folded", "straight"), [("V-Min, keeps 2", 2), ("ZB-V, keeps 4", 4)])
def test_with_room_for_2_and_for_4_the_v_is_ahead_at_half_and_behind_at_1(figure, folded, straight):
    lines = line(figure, folded), line(figure, f"straight, room for {straight}")
    ahead = [two - one for (_, one), (_, two) in zip(*lines, strict=True)]
    assert ahead[0] > ahead[1] > 0 > ahead[2]


def test_the_text_has_each_number_and_the_area_ends_where_the_lines_cross(figure):
    check_text(figure)
    rows = {row[:24].strip(): [float(number) for number in row[24:].split()] for row in repr(figure).splitlines()}
    for name in ("straight, room for 2", "V-Min, keeps 2", "straight, room for 4", "ZB-V, keeps 4"):
        assert rows[name] == [span for _, span in line(figure, name)]
    for area, (one, two) in zip(
        artists(figure, "ahead"),
        [("straight, room for 2", "V-Min, keeps 2"), ("straight, room for 4", "ZB-V, keeps 4")],
        strict=True,
    ):
        lead, lag = (rows[one][at] - rows[two][at] for at in (1, 2))
        crossing = 0.5 + 0.5 * lead / (lead - lag)
        (path,) = area.get_paths()
        assert path.vertices[:, 0].max() == pytest.approx(crossing)


@pytest.mark.parametrize(
    ("options", "value", "right"),
    [
        ({"transfers": (0,)}, "[0]", "two times or more"),
        ({"transfers": (1, 0)}, "[1, 0]", "ascending"),
        ({"transfers": (-1, 0)}, "-1", "transfers"),
        ({"p": 1}, "p=1", "2"),
        ({"m": 0}, "m=0", "1"),
    ],
)
def test_other_arguments_are_refused(options, value, right):
    check_refused(lambda: views.lead_of_a_v(**options), value, right)
