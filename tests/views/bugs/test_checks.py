"""The table of checks and bugs shows what was given, counts the models, and follows the tolerance."""

import pytest

from parlab import views
from parlab.labs import PRICES as OF_LESSON
from parlab.labs import many_models
from tests.views.drawn import artists, boxes, check_text, title

PRICES = {"copies": 1, "norm": 2, "losses": 20}
DIFFERENCES = {
    "extra mean": {"copies": [0.0, 0.0], "norm": [0.5, 0.5], "losses": [0.0, 0.0]},
    "norms not summed": {"copies": [4.0, 4.0], "norm": [0.004, 0.02], "losses": [0.12, 0.1]},
}


def middle(box):
    left, right, low, high = box
    return round((left + right) / 2), round((low + high) / 2)  # column, row


def words(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_a_check_that_sees_a_bug_in_all_models_in_some_or_in_none_has_its_own_look_in_its_place():
    figure = views.who_sees(DIFFERENCES, PRICES, 0.01)
    assert {middle(box) for box in boxes(figure, "sees")} == {(1, 0), (0, 1), (2, 1)}
    assert {middle(box) for box in boxes(figure, "some")} == {(1, 1)}
    assert {middle(box) for box in boxes(figure, "blind")} == {(0, 0), (2, 0)}
    assert len({artists(figure, name)[0].get_facecolor().tobytes() for name in ("sees", "some", "blind")}) == 3
    check_text(figure)


def test_the_headline_names_the_tolerance_the_check_that_sees_most_and_the_dearest():
    figure = views.who_sees(DIFFERENCES, PRICES, 0.01)
    assert title(figure) == 'Tolerance 0.01: "norm", for 2, sees 1 to 2 of 2 bugs; "losses", for 20, sees 1'
    below = [text.get_text() for text in figure.texts if text.get_text().endswith("2 bugs")]
    assert below == ["1 of 2 bugs", "1 to 2 of 2 bugs", "1 of 2 bugs"]


def test_of_checks_that_see_as_much_the_cheaper_is_named_and_one_check_stands_alone():
    same = {"a bug": {"dear": [1.5], "cheap": [1.5]}}
    assert title(views.who_sees(same, {"dear": 3, "cheap": 1}, 0.1)).startswith('Tolerance 0.1: "cheap", for 1, sees 1')
    assert title(views.who_sees(same, {"dear": 3}, 0.1)) == 'Tolerance 0.1: "dear", for 3, sees 1 of 1 bugs'


def test_a_difference_as_large_as_the_tolerance_is_rounding():
    one = {"a bug": {"norm": [0.01, 0.0100001]}}
    assert words(views.who_sees(one, {"norm": 2}, 0.01))[0] == "1 of 2"


@pytest.mark.parametrize(
    ("off", "said"),
    [
        ([0.123, 0.5], "12 to 50 %"),
        ([0.00044, 0.019], "0.044 to 1.9 %"),
        ([0.5, 0.5], "50 %"),
        ([4.0, 4.0], "4 weights"),
        ([1.0, 1.0], "1 weight"),
        ([0.0, 4.0], "0 to 4 weights"),
    ],
)
def test_each_box_says_by_how_much_the_check_is_off_and_a_count_in_weights(off, said):
    figure = views.who_sees({"a bug": {"norm": off}}, {"norm": 2}, 1e-3)
    assert words(figure)[-1] == said


def test_the_text_is_the_table():
    lines = repr(views.who_sees(DIFFERENCES, PRICES, 0.01)).splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["copies", "norm", "losses"],
        ["extra", "mean", "·", "2", "of", "2", "·"],
    ]
    assert lines[3].strip() == "50 %"
    assert lines[-2].endswith("         2 of 2         1 of 2         2 of 2")
    assert lines[-1].endswith("      4 weights     0.4 to 2 %     10 to 12 %")


def test_the_slider_has_three_tolerances_and_only_copies_see_the_same_at_each():
    explorer = views.explore_who_sees(many_models().differences, OF_LESSON)
    slider = explorer.controls["tolerance"]
    assert [value for _, value in slider.options] == [1e-12, 1e-6, 1e-2]
    assert slider.value == 1e-12
    seen = {}
    for _, tolerance in slider.options:
        slider.value = tolerance
        check_text(explorer.figure)
        seen[tolerance] = [text.get_text() for text in explorer.figure.texts if text.get_text().endswith("bugs")]
    assert seen[1e-12] == seen[1e-6] == [f"{bugs} of 6 bugs" for bugs in (3, 1, 6, 5, 5)]
    assert seen[1e-2] == [f"{bugs} of 6 bugs" for bugs in (3, "0 to 1", "4 to 6", 5, "3 to 5")]
    assert repr(explorer) == f"explore_who_sees: {views.who_sees(many_models().differences, OF_LESSON, 1e-2)!r}"


@pytest.mark.parametrize(
    ("differences", "prices", "tolerance", "said"),
    [
        ({}, PRICES, 1.0, "differences={}: must be"),
        (DIFFERENCES, {}, 1.0, "prices={}: must be"),
        (DIFFERENCES, PRICES | {"loss": 2}, 1.0, "every bug needs every check of prices"),
        (DIFFERENCES, PRICES | {"norm": -1}, 1.0, r"prices\['norm'\]=-1"),
        (DIFFERENCES, PRICES, 0, "tolerance=0: must be a number greater than 0"),
        ({"a bug": {"norm": []}}, {"norm": 1}, 1.0, "1 or more"),
        ({"a bug": {"norm": [-0.5]}}, {"norm": 1}, 1.0, r"differences\['a bug'\]\['norm'\]=-0.5"),
        ({"a bug": {"norm": [float("nan")]}}, {"norm": 1}, 1.0, r"differences\['a bug'\]\['norm'\]=nan"),
        ({str(bug): {} for bug in range(13)}, PRICES, 1.0, "1 to 12 bugs"),
    ],
)
def test_an_empty_table_a_check_without_an_answer_and_numbers_below_0_are_refused(differences, prices, tolerance, said):
    with pytest.raises(ValueError, match=said):
        views.who_sees(differences, prices, tolerance)
