"""The film of data parallelism: pieces go to their owners and back, and in the end all towers are alike."""

from itertools import product

from parlab import views
from parlab.views.zero.film_of_copies import APART, BYTE, FIRST, OWN, TOP
from parlab.views.zero.model_state import COLORS
from tests.views.filmed import check_film, marks, parts, tree_of


def test_each_rank_sends_3_of_4_pieces_to_their_owners_and_then_its_sum_to_3_others():
    film = views.film_of_copies()
    check_film(film)
    ways = [(numbers["a"], numbers["x"], said) for numbers, said in marks(film, "go")]
    first, second = ([way for way in ways if way[0] == film.second(stop, leaves=True)] for stop in (1, 2))
    expected = sorted(APART * (other - one) for one, other in product(range(4), repeat=2) if one != other)
    assert [sorted(x for _, x, _ in legs) for legs in (first, second)] == [expected, expected]
    assert len(ways) == 24


def test_the_owner_of_a_quarter_has_its_sum_a_pass_before_the_others_and_all_have_four_at_the_end():
    film = views.film_of_copies()
    sums = [numbers["a"] for numbers, said in marks(film, "see") if said == ["Σ"]]
    assert sorted(sums) == 4 * [film.second(2)] + 12 * [film.second(3)]
    assert len([1 for numbers, said in marks(film, "see") if said == ["Σ"] and "b" not in numbers]) == 16


def test_a_rank_keeps_its_own_quarter_until_the_sum_comes_and_sends_the_others_away():
    film = views.film_of_copies()
    kept = [(numbers, said) for numbers, said in marks(film, "see") if said in (["0"], ["1"], ["2"], ["3"])]
    places = [rect for _, part in parts(film, "see") if (rect := part.find("rect")) is not None]
    drawn = [float(rect.get("x")) for rect in places if rect.get("fill") == OWN]
    assert len(kept) == len(drawn) == 16
    for (numbers, (said,)), x in zip(kept, drawn, strict=True):
        own = x == FIRST + (APART + 26) * int(said)  # a quarter of a tower is 26 wide
        assert numbers["b"] == film.second(2 if own else 1, leaves=True)


def test_a_tower_has_12_bytes_of_adam_above_4_of_a_gradient_above_2_of_the_weight():
    rects = [part.attrib for part in tree_of(views.film_of_copies()).iter("rect")]
    for part, high, tall in (("optimizer", 0, 12), ("weights", 16, 2)):
        drawn = [rect for rect in rects if rect.get("fill") == COLORS[part] and rect["width"] == "104"]
        places = {(float(rect["y"]), float(rect["height"])) for rect in drawn}
        assert places == {(TOP + BYTE * high, BYTE * tall)}
        assert {float(rect["x"]) for rect in drawn} == {FIRST + APART * rank for rank in range(4)}
