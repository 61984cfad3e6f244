"""A mesh in its places: a rank's groups are those that the mesh makes."""

from matplotlib.colors import to_hex

from parlab import views
from parlab.views.train.groups_on_mesh import COLORS, groups_of
from tests.views.drawn import artists, boxes, title

SIXTEEN = {"dp": 2, "pp": 2, "cp": 2, "tp": 2}


def filled(figure, rank):
    (box,) = artists(figure, f"rank {rank}")
    return to_hex(box.get_facecolor()[0]).upper()


def test_rank_37_of_2_by_4_by_2_by_4_has_the_groups_of_the_formula():
    """37 = ((1 · 4 + 0) · 2 + 1) · 4 + 1, with tp innermost, as Llama 3 (2024), section 3.3.2, orders the axes."""
    groups = groups_of(37, {"dp": 2, "pp": 4, "cp": 2, "tp": 4})
    assert groups["tp"] == [36, 37, 38, 39]
    assert groups["cp"] == [33, 37]
    assert groups["pp"] == [37, 45, 53, 61]
    assert groups["dp"] == [5, 37]
    assert groups["data"] == [1, 5, 33, 37]


def test_the_ranks_of_a_group_have_its_colour_and_those_of_dp_times_cp_a_frame():
    figure = views.groups_on_mesh(5, SIXTEEN)
    assert title(figure).startswith("Rank 5 is at d 0, p 1, c 0, t 1.")
    for axis, rank in {"tp": 4, "cp": 7, "pp": 1, "dp": 13}.items():
        assert filled(figure, rank) == COLORS[axis].upper()
    assert len({filled(figure, rank) for rank in (0, 2, 3, 6, 8, 9, 10, 11, 12, 14, 15)}) == 1
    assert len(boxes(figure, "frame")) == 4 + 1  # and rank 5 itself
    assert "dp × cp: ranks 5, 7, 13, 15" in figure.text_shown


def test_every_rank_has_a_place_of_its_own():
    figure = views.groups_on_mesh(0, SIXTEEN)
    assert len({tuple(box) for rank in range(16) for box in boxes(figure, f"rank {rank}")}) == 16
