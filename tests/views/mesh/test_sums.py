"""The film of sums is drawn from what the groups of a mesh add."""

import pytest

from parlab import labs, run, views
from parlab.views.mesh.sums import BROKEN, WHOLE, contributions
from tests.views.filmed import check_film, marks


def test_a_cut_weight_has_2_gradients_at_the_end_a_norm_4_of_one_stage_and_a_table_4_of_one_slice():
    last = [steps[-1] for steps in run(contributions, 8).results]
    assert last[0] == {"cut": [0, 4], "norm": [0, 1, 4, 5], "tied": [0, 2, 4, 6]}
    assert last[7] == {"cut": [3, 7], "norm": [2, 3, 6, 7], "tied": [1, 3, 5, 7]}


def test_each_sum_changes_its_own_weight_alone_and_the_mean_comes_last():
    steps = run(contributions, 8).results[5]
    assert [len(step["norm"]) for step in steps] == [1, 2, 2, 4]
    assert [len(step["tied"]) for step in steps] == [1, 1, 2, 4]
    assert [len(step["cut"]) for step in steps] == [1, 1, 1, 2]


def test_the_film_says_each_sum_and_is_small():
    film = views.film_of_sums()
    assert "a cut weight needs the gradients of 2 of 8 ranks, a norm of 4, a tied table of 4" in repr(film)
    assert len(film.lines) == 3
    assert len(film.html.encode()) < 30_000
    assert len(marks(film, "go")) == 8 + 8 + 8 + 16 + 16  # chips that travel: of norms, of tables, then of all
    check_film(film)


def test_without_the_sum_over_both_ends_each_end_of_a_table_keeps_its_own_two_gradients():
    last = [steps[-1] for steps in run(contributions, 8, 1).results]
    assert [last[rank]["tied"] for rank in (0, 2)] == [[0, 4], [2, 6]]
    assert last[0]["norm"] == [0, 1, 4, 5]


@pytest.mark.parametrize("bug", labs.BUGS)
def test_a_bug_that_the_copies_show_loses_8_chips_and_the_others_none(bug):
    film, sees = views.film_of_sums(bug), labs.Suspect(bug).sees("copies")
    assert len(marks(film, "go")) == 56 - (8 + 8) * sees  # of its own sum, and of the mean, which has half of it
    assert film.headline.endswith("sees it" if sees else "is blind")
    check_film(film)


def test_the_film_knows_the_labs_bugs_and_refuses_another():
    assert {*BROKEN, *WHOLE} == {"none", *labs.BUGS}
    with pytest.raises(ValueError, match="bug='norm': "):
        views.film_of_sums("norm")
