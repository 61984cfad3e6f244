"""The film of sums is drawn from what the reader's function adds on eight ranks."""

import pytest

from parlab import views
from parlab.views.train.film_of_sums import OF_THE_LIBRARY
from tests.labs import right_answers
from tests.labs.answers import raises, sum_gradient
from tests.labs.test_mesh import taken_for, times, tp_for_all
from tests.views.filmed import check_film, marks, tree_of


def told(film):
    """The chips that travel, and the places that are marked as wrong at the end."""
    travels = [words for numbers, words in marks(film, "go")]
    looks = [part.get("class") for part in tree_of(film).iter("rect")]
    return sum(map(len, travels)), looks.count("letter open")


def test_the_sums_are_shown_one_by_one_so_that_16_chips_travel_at_most():
    film = views.film_of_sums()
    at = {}
    for numbers, words in marks(film, "go"):
        at[numbers["a"]] = at.get(numbers["a"], 0) + len(words)
    assert list(at.values()) == [8, 8, 16, 8, 16, 8, 16]
    assert film.headline.endswith("a cut weight needs the gradients of 2 of 8 ranks, each other of 4")
    assert told(film) == (80, 0)
    assert len(film.html.encode()) < 35_000
    check_film(film)
    clock = ["cut", "norm tp", "norm data", "K/V tp", "K/V data", "tied ends", "tied data", "done"]
    words = ["".join(part.itertext()) for part in tree_of(film).iter() if part.tag.endswith("text")]
    assert words[-len(clock) :] == clock  # each where its sum begins


def test_without_the_sum_over_tp_each_rank_lacks_two_gradients_of_a_norm_and_copies_differ():
    film = views.film_of_sums(taken_for({"norm": "cut"}))
    assert film.headline == "norm: rank 0 has the gradients of 0, 4, and needs those of 0, 1, 4, 5"
    assert told(film) == (8 + 8 + 24 + 8 + 16, 8 * 2)
    assert "Norm: the function adds over data." in film.html  # no reason for what is wrong
    assert "Cut: the ranks of data saw other tokens. They add." in film.html
    assert "norm: copies are not equal" in film.html
    check_film(film)


def test_a_sum_too_many_leaves_equal_copies_and_frames_its_chips():
    film = views.film_of_sums(tp_for_all)
    needs = "cut: rank 0 has the gradients of 0, 1, 4, 5, and needs those of 0, 4"
    assert film.headline == f"cut and tied are wrong. {needs}"
    assert "cut, tied: equal copies, but one is too many" in film.html
    assert film.html.count('width="11" height="20" class="frame"') == 8 * 2 + 8 * 4  # of cut weights and of the table
    check_film(film)


def test_a_mean_that_is_forgotten_moves_every_chip_and_is_said():
    film = views.film_of_sums(times(lambda mesh, *_: mesh.data.size))
    assert film.headline == "cut, norm, K/V and tied are wrong. cut: a gradient counts 1, not 0.5"
    assert "cut, norm, K/V, tied: equal copies, but a gradient counts 1, not 0.5" in film.html
    assert told(film) == (80, 0)
    assert "×" not in film.html


def test_beside_each_row_of_chips_stands_by_how_much_one_counts():
    film = views.film_of_sums()
    signs = [(numbers["a"], words) for numbers, words in marks(film, "see") if "×½" in words]
    assert [words.count("×½") for _, words in signs] == [8, 8, 8, 8]  # of each kind
    goes = [numbers["b"] for numbers, _ in marks(film, "go")]
    assert all(any(at == pytest.approx(end, abs=0.02) for end in goes) for at, _ in signs)  # with the sum over data

    def own_counts_more(mesh, ends, kind, gradient):
        return (mesh.data.all_reduce(gradient) + gradient) / 3

    assert "≠" in views.film_of_sums(own_counts_more).html
    assert "×0.333" in views.film_of_sums(lambda mesh, ends, kind, gradient: gradient / 3).html


def test_equal_copies_may_all_lack_the_same_gradient():
    def without_the_last(mesh, ends, kind, gradient):
        return sum_gradient(mesh, ends, kind, gradient * (mesh.dp.rank == 0))

    assert "cut, norm, K/V, tied: equal copies, but a gradient is missing" in views.film_of_sums(without_the_last).html


def test_the_result_is_shown_where_no_group_tells_how_it_was_made():
    def by_hand(mesh, ends, kind, gradient):
        return mesh.comm.all_gather(gradient[None])[0]

    film = views.film_of_sums(by_hand)
    assert "Cut: the function returns this." in repr(film)
    assert film.headline.endswith("are wrong. cut: rank 0 has the gradients of 0, and needs those of 0, 4")


def test_every_right_answer_of_the_exercise_is_right_in_the_film():
    answers = right_answers.RIGHT["07.who_sums"]
    assert len(answers) > 3
    for answer in answers:
        assert views.film_of_sums(answer).headline.startswith("Who sums what"), answer.__name__


def test_the_librarys_sums_stand_in_while_nothing_is_written():
    film = views.film_of_sums(raises)
    assert film.headline.startswith("Not written yet, so the library's: who sums what")
    (note,) = [
        part
        for part in tree_of(film).iter()
        if "".join(part.itertext()) == OF_THE_LIBRARY and part.tag.endswith("text")
    ]
    assert not note.get("style")  # it neither comes nor goes
    assert OF_THE_LIBRARY == "sums of the library: yours are not written yet"
    assert told(film) == told(views.film_of_sums())
    assert "of the library" not in views.film_of_sums(sum_gradient).html
