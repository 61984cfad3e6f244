"""The table of checks and bugs shows what was given, counts it, and follows the limit of clipping."""

import numpy as np
import pytest

from parlab import views
from parlab.labs import PRICES as OF_LESSON
from parlab.labs import checks_by_limit
from tests.views.drawn import artists, boxes, check_text, title

PRICES = {"copies": 1, "norm": 2, "losses": 20}
NORMS = [4.0, 2.0]
CHECKED = {
    "extra mean": ({"copies": 0.0, "norm": 0.5, "losses": 0.0}, NORMS, [2.0, 1.0]),
    "norms not summed": ({"copies": 4.0, "norm": 0.1, "losses": 0.12}, NORMS, [4.1, 1.9]),
}


def middle(box):
    left, right, low, high = box
    return round((left + right) / 2), round((low + high) / 2)  # column, row


def words(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_each_check_that_sees_a_bug_is_filled_in_its_place_and_the_others_are_pale():
    figure = views.who_sees(CHECKED, PRICES, 0.1)
    assert {middle(box) for box in boxes(figure, "sees")} == {(1, 0), (0, 1), (1, 1), (2, 1)}
    assert {middle(box) for box in boxes(figure, "blind")} == {(0, 0), (2, 0)}
    assert len(artists(figure, "sees")) == 4
    check_text(figure)


def test_the_headline_names_the_limit_the_check_that_sees_most_and_the_dearest():
    figure = views.who_sees(CHECKED, PRICES, 0.1)
    assert title(figure) == 'Limit 0.1: "norm", for 2, sees 2 of 2 bugs; "losses", for 20, sees 1'
    written = [text.get_text() for text in figure.texts]
    assert [text for text in written if " of " in text and "bugs" not in text and "norm" not in text] == [
        "1 of 2",
        "2 of 2",
        "1 of 2",
    ]


def test_of_checks_that_see_as_much_the_cheaper_is_named_and_one_check_stands_alone():
    same = {"a bug": ({"dear": 1.0, "cheap": 1.0}, NORMS, NORMS)}
    assert title(views.who_sees(same, {"dear": 3, "cheap": 1}, 2)).startswith('Limit 2: "cheap", for 1, sees 1 of 1')
    assert title(views.who_sees(same, {"dear": 3}, 2)) == 'Limit 2: "dear", for 3, sees 1 of 1 bugs'


@pytest.mark.parametrize(
    ("difference", "said"), [(0.0, "blind"), (0.123, "12 %"), (0.0016, "0.2 %"), (1.2e-6, "10⁻⁶"), (3e-12, "10⁻¹²")]
)
def test_each_check_says_by_how_much_it_is_wrong_and_a_count_that_it_sees(difference, said):
    one = {"a bug": ({"copies": 3.0, "norm": 0.5, "losses": difference}, NORMS, NORMS)}
    figure = views.who_sees(one, PRICES, 1.0)
    assert words(figure)[:3] == ["sees", "50 %", said]


def test_the_text_is_the_table_and_counts_the_clipped_steps():
    *_, last, one_rank, bugs = repr(views.who_sees(CHECKED, PRICES, 1.95)).splitlines()
    assert last.split() == ["norms", "not", "summed", "sees", "10", "%", "12", "%"]
    assert one_rank == "steps that are clipped: 2 of 2 on one rank"
    assert bugs == "extra mean: 1 of 2; norms not summed: 1 of 2"


def test_rings_and_dots_stand_in_the_row_of_their_bug_at_their_norms_and_the_line_at_the_limit():
    figure = views.who_sees(CHECKED, PRICES, 0.5)
    for gid, place in (("one rank", 1), ("eight ranks", 2)):
        for row, (drawn, of_bug) in enumerate(zip(artists(figure, gid), CHECKED.values(), strict=True)):
            assert list(drawn.get_xdata()) == of_bug[place]
            assert set(np.round(drawn.get_ydata())) == {row}
    (line,) = artists(figure, "limit")
    assert set(line.get_xdata()) == {0.5}


def test_the_slider_goes_through_all_limits_and_begins_with_that_of_the_exercise():
    explorer = views.explore_who_sees(checks_by_limit(), OF_LESSON)
    slider = explorer.controls["limit"]
    assert [value for _, value in slider.options] == [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]
    assert slider.value == 0.1
    seen = {}
    for _, limit in slider.options:
        slider.value = limit
        check_text(explorer.figure)
        seen[limit] = title(explorer.figure)[-1]
    assert list(seen.values()) == list("55566665")
    assert repr(explorer) == f"explore_who_sees: {views.who_sees(checks_by_limit()[10.0], OF_LESSON, 10.0)!r}"
    ends = {tuple(axes.get_xlim()) for axes in explorer.figure.axes[1:]}
    slider.value = 0.1
    assert {tuple(axes.get_xlim()) for axes in explorer.figure.axes[1:]} == ends


def test_every_norm_of_the_lesson_is_on_the_axis():
    for of_limit in checks_by_limit().values():
        low, high = views.who_sees(of_limit, OF_LESSON, 1.0).axes[1].get_xlim()
        assert all(low < norm < high for checked in of_limit.values() for norms in checked[1:] for norm in norms)


@pytest.mark.parametrize(
    ("checked", "prices", "limit", "said"),
    [
        ({}, PRICES, 1.0, "checked={}: must be"),
        (CHECKED, {}, 1.0, "prices={}: must be"),
        (CHECKED, PRICES | {"loss": 2}, 1.0, r"checked\['extra mean'\] lacks 'loss'"),
        (CHECKED, PRICES | {"norm": -1}, 1.0, r"prices\['norm'\]=-1"),
        (CHECKED, PRICES, 0, "limit=0: must be a number greater than 0"),
        ({"a bug": ({"norm": -0.5}, NORMS, NORMS)}, {"norm": 1}, 1.0, r"checked\['a bug'\]=-0.5"),
        ({"a bug": ({"norm": 0.5}, NORMS, [float("nan")])}, {"norm": 1}, 1.0, r"checked\['a bug'\]=nan"),
        ({str(bug): {} for bug in range(13)}, PRICES, 1.0, "1 to 12 of them"),
    ],
)
def test_an_empty_table_a_check_without_an_answer_and_numbers_below_0_are_refused(checked, prices, limit, said):
    with pytest.raises(ValueError, match=said):
        views.who_sees(checked, prices, limit)


def test_a_slider_of_one_limit_is_refused():
    with pytest.raises(ValueError, match=r"by_limit=.*: must be .* 2 or more"):
        views.explore_who_sees({0.1: CHECKED}, PRICES)
