"""The table of checks and bugs shows what was given, and counts it."""

import pytest

from parlab import views
from tests.views.drawn import artists, boxes, check_text, title

PRICES = {"copies": 1, "norm": 2, "losses": 20}
SEES = {
    "extra mean": {"copies": False, "norm": True, "losses": False},
    "norms not summed": {"copies": True, "norm": True, "losses": True},
}


def middle(box):
    left, right, low, high = box
    return round((left + right) / 2), round((low + high) / 2)  # column, row


def test_each_check_that_sees_a_bug_is_filled_in_its_place_and_the_others_are_pale():
    figure = views.who_sees(SEES, PRICES)
    assert {middle(box) for box in boxes(figure, "sees")} == {(1, 0), (0, 1), (1, 1), (2, 1)}
    assert {middle(box) for box in boxes(figure, "blind")} == {(0, 0), (2, 0)}
    assert len(artists(figure, "sees")) == 4
    check_text(figure)


def test_the_headline_names_the_check_that_sees_most_and_the_dearest():
    figure = views.who_sees(SEES, PRICES)
    assert title(figure) == '"norm", for 2, sees 2 of 2 bugs; "losses", for 20, sees 1'
    written = [text.get_text() for text in figure.texts]
    assert [text for text in written if " of " in text and "bugs" not in text] == ["1 of 2", "2 of 2", "1 of 2"]


def test_of_checks_that_see_as_much_the_cheaper_is_named_and_one_check_stands_alone():
    same = {"a bug": {"dear": True, "cheap": True}}
    assert title(views.who_sees(same, {"dear": 3, "cheap": 1})).startswith('"cheap", for 1, sees 1 of 1')
    assert title(views.who_sees(same, {"dear": 3})) == '"dear", for 3, sees 1 of 1 bugs'


def test_the_text_is_the_table():
    *_, last = repr(views.who_sees(SEES, PRICES)).splitlines()
    assert last.split() == ["norms", "not", "summed", "sees", "sees", "sees"]


@pytest.mark.parametrize(
    ("sees", "prices", "said"),
    [
        ({}, PRICES, "sees={}: must be"),
        (SEES, {}, "prices={}: must be"),
        (SEES, PRICES | {"loss": 2}, r"sees\['extra mean'\] lacks 'loss'"),
        (SEES, PRICES | {"norm": -1}, r"prices\['norm'\]=-1"),
        ({str(bug): {} for bug in range(13)}, PRICES, "1 to 12 of them"),
    ],
)
def test_an_empty_table_a_check_without_an_answer_and_a_price_below_0_are_refused(sees, prices, said):
    with pytest.raises(ValueError, match=said):
        views.who_sees(sees, prices)
