"""The film of a block passes eight places and back, and says nothing of sums."""

import re

from parlab import views
from parlab.views.engine import theme
from tests.views.filmed import check_film, marks, parts, tree_of


def test_the_film_of_a_block_passes_1_to_8_and_back_and_no_word_says_where_ranks_add():
    film = views.film_of_block()
    check_film(film)
    shown = [part.text for part in tree_of(film).iter("text")]
    assert [text for text in shown if text in "12345678"][:1] == ["1"]
    numbered = [text for text in shown if text.isdigit()]
    assert [numbered.count(str(place)) - 4 * (place == 1) for place in range(1, 9)] == [1] * 8  # rank 1 goes four times
    assert re.search("add|sum|reduce|copy|message", repr(film)) is None


def test_both_ranks_pass_four_places_in_each_of_four_legs_rightward_twice_then_leftward_twice():
    film = views.film_of_block()
    legs = [numbers for numbers, _ in marks(film, "go")]
    assert [numbers["x"] > 0 for numbers in legs] == [True, True, False, False]
    assert [said for _, said in marks(film, "go")] == 2 * [["0", "→", "1", "→"]] + 2 * [["0", "←", "1", "←"]]
    chips = [part for _, leg in parts(film, "go") for part in leg.iter("rect")]
    assert [(chip.get("y"), chip.get("height")) for chip in chips] == 8 * [("-10", "20")]  # around its number, at 0
    frames = sorted(part["a"] for part, said in marks(film, "see") if "b" in part and not said)
    assert len(frames) == 16
    for number, leg in enumerate(legs):
        inside = frames[4 * number : 4 * number + 4]
        assert leg["a"] < inside[0] < inside[-1] < leg["b"]


def test_a_matrix_in_front_is_cut_into_columns_and_one_behind_into_rows_in_the_ranks_colours():
    boxes_of = [part.attrib for part in tree_of(views.film_of_block()).iter("rect") if "fill" in part.attrib]
    sizes = [(float(part["width"]), float(part["height"])) for part in boxes_of]
    for shape, kind in (((32, 68), "columns"), ((68, 32), "rows")):
        fills = [part["fill"] for part, size in zip(boxes_of, sizes, strict=True) if size == shape]
        assert sorted(fills) == sorted(2 * [theme.rank_color(0), theme.rank_color(1)]), kind
    copies = [float(part["y"]) for part, size in zip(boxes_of, sizes, strict=True) if size in ((48, 48), (12, 48))]
    assert copies == [y for middle in (118, 294) for _ in "xn" for y in (middle - 31, middle - 24)]  # rank 0's in front
