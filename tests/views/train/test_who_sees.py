"""The table of checks and bugs shows what was given, and counts the models that are further off than a right mesh."""

from matplotlib.colors import to_hex

from parlab import views
from parlab.labs import PRICES as OF_LESSON
from parlab.labs import many_models
from parlab.views.engine import theme
from tests.views.drawn import artists, boxes, title, words

PRICES = {"copies": 1, "norm": 2, "losses": 20}
RIGHT = {"copies": [0.0, 0.0], "norm": [0.01, 0.001], "losses": [0.07, 0.02]}
DIFFERENCES = {
    "none": RIGHT,
    "extra mean": {"copies": [0.0, 0.0], "norm": [0.5, 0.5], "losses": [0.0, 0.0]},
    "norms not summed": {"copies": [4.0, 4.0], "norm": [0.004, 0.02], "losses": [0.12, 0.1]},
}


def middle(box):
    left, right, low, high = box
    return round((left + right) / 2), round((low + high) / 2)  # column, row


def below(figure):
    """The numbers of bugs below the columns."""
    lowest = min(text.get_position()[1] for text in figure.texts)
    said = [text.get_text() for text in figure.texts if text.get_position()[1] == lowest]
    return [text for text in said if "bugs" not in text]


def test_a_check_that_sees_a_bug_in_all_models_in_some_or_in_none_has_its_own_look_in_its_place():
    figure = views.who_sees(DIFFERENCES, PRICES, "bf16")
    assert {middle(box) for box in boxes(figure, "right")} == {(0, 0), (1, 0), (2, 0)}
    assert {middle(box) for box in boxes(figure, "sees")} == {(1, 1), (0, 2), (2, 2)}
    assert {middle(box) for box in boxes(figure, "some")} == {(1, 2)}
    assert {middle(box) for box in boxes(figure, "blind")} == {(0, 1), (2, 1)}
    looks = [to_hex(artists(figure, name)[0].get_facecolor()[0]) for name in ("sees", "some", "blind", "right")]
    dark = [theme.contrast(look, theme.PAPER) for look in looks]
    assert dark == sorted(set(dark), reverse=True)  # the more it sees, the darker
    assert theme.contrast(looks[0], looks[1]) > 3
    assert words(figure)[:3] == ["no difference", "up to 1 %", "up to 7 %"]


def test_the_headline_names_the_arithmetic_the_check_that_sees_most_and_the_dearest():
    figure = views.who_sees(DIFFERENCES, PRICES, "bf16")
    assert title(figure) == 'bf16: "norm", for 2, sees 1 to 2 of 2 bugs; "losses", for 20, sees 1'
    assert below(figure) == ["1", "1 to 2", "1"]
    assert "of 2 bugs" in [text.get_text() for text in figure.texts]


def test_of_checks_that_see_as_much_the_cheaper_is_named_and_one_check_stands_alone():
    same = {"none": {"dear": [0.0], "cheap": [0.0]}, "a bug": {"dear": [1.5], "cheap": [1.5]}}
    assert title(views.who_sees(same, {"dear": 3, "cheap": 1}, "bf16")).startswith('bf16: "cheap", for 1, sees 1')
    assert title(views.who_sees(same, {"dear": 3}, "bf16")) == 'bf16: "dear", for 3, sees 1 of 1 bugs'


def test_a_difference_as_large_as_that_of_the_worst_right_mesh_is_rounding():
    one = {"none": {"norm": [0.002, 0.01]}, "a bug": {"norm": [0.01, 0.0100001]}}
    assert words(views.who_sees(one, {"norm": 2}, "bf16"))[1] == "1 of 2"


def test_where_a_right_mesh_has_no_difference_one_up_to_1e_12_is_none():
    one = {"none": {"norm": [0.0, 0.0]}, "a bug": {"norm": [1e-12, 2e-12]}}
    assert words(views.who_sees(one, {"norm": 2}, "float64"))[1] == "1 of 2"


def test_the_slider_has_three_arithmetics_and_only_copies_see_the_same_in_each():
    explorer = views.explore_who_sees(many_models().differences, OF_LESSON)
    slider = explorer.controls["arithmetic"]
    assert [value for _, value in slider.options] == ["float64", "float32", "bf16"]
    assert slider.value == "bf16"
    seen = {}
    for _, arithmetic in reversed(slider.options):
        slider.value = arithmetic
        seen[arithmetic] = below(explorer.figure)
    assert seen["float64"] == ["3", "1", "6", "5", "5"]
    assert seen["float32"] == seen["float64"]
    assert seen["bf16"] == ["3", "0 to 1", "4 to 6", "5", "0 to 1"]
    last = views.who_sees(many_models().differences["float64"], OF_LESSON, "float64")
    assert repr(explorer) == f"explore_who_sees: {last!r}"
