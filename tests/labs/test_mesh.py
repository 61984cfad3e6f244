"""The checkers of notebook 07 accept the solutions and refuse what learners write, with the cause."""

import time

import pytest

from parlab.labs.mesh import MeshCase
from tests.labs.answers import refused, reviewed, sum_gradient


def test_the_passing_texts_say_what_was_counted_on_16_ranks():
    assert (
        "With 16 ranks, dp=2, pp=2, cp=2, tp=2:\n  cut: dp and cp sum; norm and K/V: tp, too"
        in reviewed("07.who_sums", sum_gradient).text
    )


def test_a_case_says_its_ranks_and_the_places_count_tp_fastest():
    case = MeshCase((2, 1, 1, 3))
    assert str(case) == "6 ranks, dp=2, pp=1, cp=1, tp=3"
    assert case.places == [(d, 0, 0, t) for d in (0, 1) for t in (0, 1, 2)]


def a_sum(mesh, ends, kind, gradient):
    return sum_gradient(mesh, ends, kind, gradient) * mesh.data.size


def without_cp(mesh, ends, kind, gradient):
    return (
        sum_gradient(mesh, ends, kind, gradient) if mesh.cp.size == 1 else mesh.dp.all_reduce(gradient) / mesh.dp.size
    )


def without_dp(mesh, ends, kind, gradient):
    return mesh.cp.all_reduce(gradient) / mesh.cp.size


def divided_by_dp(mesh, ends, kind, gradient):
    return sum_gradient(mesh, ends, kind, gradient) * mesh.cp.size


def an_extra_mean(mesh, ends, kind, gradient):
    return sum_gradient(mesh, ends, kind, gradient) / mesh.cp.size


def summed_in_place(mesh, ends, kind, gradient):
    """As PyTorch's all_reduce would."""
    mesh.data.all_reduce(gradient)
    return gradient / mesh.data.size


def divided_alone(mesh, ends, kind, gradient):
    return gradient / mesh.data.size


def divided_by_two(mesh, ends, kind, gradient):
    """Right on the small ones, all of which have two."""
    return sum_gradient(mesh, ends, kind, gradient) * mesh.data.size / min(mesh.data.size, 2)


def heads_as_cut(mesh, ends, kind, gradient):
    return sum_gradient(mesh, ends, "cut" if kind == "K/V" else kind, gradient)


def mean_over_heads(mesh, ends, kind, gradient):
    return sum_gradient(mesh, ends, kind, gradient) / (mesh.tp.size if kind == "K/V" else 1)


def norms_as_cut(mesh, ends, kind, gradient):
    return sum_gradient(mesh, ends, "cut" if kind in ("norm", "K/V") else kind, gradient)


def ends_not_summed(mesh, ends, kind, gradient):
    return sum_gradient(mesh, ends, "cut" if kind == "tied" else kind, gradient)


def mean_over_tp(mesh, ends, kind, gradient):
    return sum_gradient(mesh, ends, kind, gradient) / (mesh.tp.size if kind in ("norm", "K/V") else 1)


def mean_over_ends(mesh, ends, kind, gradient):
    return sum_gradient(mesh, ends, kind, gradient) / (ends.size if kind == "tied" else 1)


def tp_for_all(mesh, ends, kind, gradient):
    found = sum_gradient(mesh, ends, kind, gradient)
    return found if kind in ("norm", "K/V") else mesh.tp.all_reduce(found)


def tp_for_tied_too(mesh, ends, kind, gradient):
    found = sum_gradient(mesh, ends, kind, gradient)
    return mesh.tp.all_reduce(found) if kind == "tied" else found


def mean_over_all_ranks(mesh, ends, kind, gradient):
    return (
        mesh.comm.all_reduce(gradient) / mesh.comm.size if kind == "cut" else sum_gradient(mesh, ends, kind, gradient)
    )


def model_for_norms(mesh, ends, kind, gradient):
    if kind in ("norm", "K/V"):
        return mesh.data.all_reduce(mesh.model.all_reduce(gradient)) / mesh.data.size
    return sum_gradient(mesh, ends, kind, gradient)


def pipeline_for_tied(mesh, ends, kind, gradient):
    return sum_gradient(mesh, mesh.pp, kind, gradient)


def nothing_returned(mesh, ends, kind, gradient):
    sum_gradient(mesh, ends, kind, gradient)


def own_and_no_message(mesh, ends, kind, gradient):
    return gradient


def of_the_last(mesh, ends, kind, gradient):
    return mesh.data.broadcast(gradient, root=mesh.data.size - 1)


def largest(mesh, ends, kind, gradient):
    return mesh.data.all_reduce(gradient, op="max")


def on_the_first_alone(mesh, ends, kind, gradient):
    found = mesh.data.reduce(gradient)
    return None if found is None else found / mesh.data.size


def first_rank_enters(mesh, ends, kind, gradient):
    return mesh.data.all_reduce(gradient) / mesh.data.size if mesh.comm.rank == 0 else gradient


def in_single_precision(mesh, ends, kind, gradient):
    return sum_gradient(mesh, ends, kind, gradient).astype("float32")


def as_a_list(mesh, ends, kind, gradient):
    return list(sum_gradient(mesh, ends, kind, gradient))


def a_kind_forgotten(mesh, ends, kind, gradient):
    return sum_gradient(mesh, ends, kind, gradient) if kind != "tied" else None


SHARED = {}


def through_a_global(mesh, ends, kind, gradient):
    group = mesh.data
    key = (kind, mesh.pp.rank, mesh.tp.rank, group.size, mesh.comm.size)
    SHARED.setdefault(key, {})[group.rank] = gradient
    while len(SHARED[key]) < group.size:
        time.sleep(1e-4)
    return sum(SHARED[key].values()) / group.size


WRONG = [
    ("07.who_sums", a_sum, "it is a sum over dp and cp; each rank's loss is a mean over its own tokens"),
    ("07.who_sums", without_cp, "the ranks of cp are not in it"),
    ("07.who_sums", without_dp, "the ranks of dp are not in it"),
    ("07.who_sums", divided_by_dp, "it is a sum over dp and cp"),
    ("07.who_sums", an_extra_mean, "it is 0.5 times what it should be: divide once"),
    ("07.who_sums", summed_in_place, "the sum over dp and cp was made and not used: all_reduce returns it"),
    ("07.who_sums", divided_alone, "nothing is summed over dp and cp; the division alone is no mean"),
    ("07.who_sums", divided_by_two, "it is 1.5 times what it should be: divide once"),
    ("07.who_sums", heads_as_cut, "each rank of tp has the gradient of its own query heads: sum over tp"),
    ("07.who_sums", mean_over_heads, "the sum over tp became a mean: each rank's query heads add to the gradient"),
    ("07.who_sums", norms_as_cut, "the gradient of a norm is only of this rank's tokens: sum over tp"),
    ("07.who_sums", ends_not_summed, "the two ends use the same table: their gradients add up"),
    ("07.who_sums", mean_over_tp, "the sum over tp became a mean"),
    ("07.who_sums", mean_over_ends, "the sum over the ends became a mean"),
    ("07.who_sums", tp_for_all, "tp is in it, whose ranks have other parts"),
    ("07.who_sums", tp_for_tied_too, "kind 'tied': "),
    ("07.who_sums", mean_over_all_ranks, "tp is in it, whose ranks have other parts"),
    ("07.who_sums", model_for_norms, "all of pp is in it, whose ranks have other layers"),
    ("07.who_sums", pipeline_for_tied, "only the two ends have the tied table and call the function: sum over `ends`"),
    ("07.who_sums", nothing_returned, "no `return` is reached for this kind: the sum was made, and not handed back"),
    ("07.who_sums", own_and_no_message, "the ranks of dp are not in it"),
    ("07.who_sums", of_the_last, "it is the gradient of (dp 1, pp 0, cp 0, tp 0) alone"),
    ("07.who_sums", largest, "rank 0 (dp 0, pp 0, cp 0, tp 0), kind 'cut': returned ["),
    (
        "07.who_sums",
        on_the_first_alone,
        "returned None, expected float64[5]\n  likely cause: `reduce` gives its sum to one rank, and None to all",
    ),
    ("07.who_sums", first_rank_enters, "all_reduce"),
    ("07.who_sums", in_single_precision, "returned float32[5], expected float64[5]"),
    ("07.who_sums", as_a_list, "returned list, expected float64[5]"),
    ("07.who_sums", a_kind_forgotten, "no `return` is reached for this kind"),
    ("07.who_sums", through_a_global, "no message was sent"),
]


@pytest.mark.parametrize(("name", "answer", "said"), WRONG, ids=[answer.__name__ for _, answer, _ in WRONG])
def test_a_wrong_answer_is_refused_and_explained(name, answer, said):
    SHARED.clear()
    text = refused(name, answer)
    assert said in text, text


def test_each_exercise_has_twelve_wrong_answers_or_more():
    names = [name for name, _, _ in WRONG]
    assert all(names.count(name) >= 12 for name in set(names)), names
