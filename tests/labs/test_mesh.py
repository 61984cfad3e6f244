"""The checkers of notebook 07 accept the solutions and refuse what learners write, with the cause."""

import time

import pytest

from parlab.labs.mesh import MeshCase
from tests.labs.answers import refused, reviewed, sum_gradient
from tests.labs.lucky_answers import over_the_whole_pipeline


def test_the_passing_texts_say_what_was_counted_on_16_ranks():
    assert (
        "With 16 ranks, dp=2, pp=2, cp=2, tp=2:\n  cut: dp and cp sum; norm and K/V: tp, too"
        in reviewed("07.who_sums", sum_gradient).text
    )


def test_a_case_says_its_ranks_and_the_places_count_tp_fastest():
    case = MeshCase((2, 1, 1, 3))
    assert str(case) == "6 ranks, dp=2, pp=1, cp=1, tp=3"
    assert case.places == [(d, 0, 0, t) for d in (0, 1) for t in (0, 1, 2)]


def times(of):
    """The right sum, times a factor."""
    return lambda mesh, ends, kind, gradient: sum_gradient(mesh, ends, kind, gradient) * of(mesh, ends, kind)


def taken_for(other):
    """One kind of weight is summed as another kind."""
    return lambda mesh, ends, kind, gradient: sum_gradient(mesh, ends, other.get(kind, kind), gradient)


norms_as_cut = taken_for({"norm": "cut", "K/V": "cut"})


def without_cp(mesh, ends, kind, gradient):
    return (
        sum_gradient(mesh, ends, kind, gradient) if mesh.cp.size == 1 else mesh.dp.all_reduce(gradient) / mesh.dp.size
    )


def summed_in_place(mesh, ends, kind, gradient):
    """As PyTorch's all_reduce would."""
    mesh.data.all_reduce(gradient)
    return gradient / mesh.data.size


def divided_alone(mesh, ends, kind, gradient):
    return gradient / mesh.data.size


def tp_for_all(mesh, ends, kind, gradient):
    found = sum_gradient(mesh, ends, kind, gradient)
    return found if kind in ("norm", "K/V") else mesh.tp.all_reduce(found)


def mean_over_all_ranks(mesh, ends, kind, gradient):
    return (
        mesh.comm.all_reduce(gradient) / mesh.comm.size if kind == "cut" else sum_gradient(mesh, ends, kind, gradient)
    )


def model_for_norms(mesh, ends, kind, gradient):
    if kind in ("norm", "K/V"):
        return mesh.data.all_reduce(mesh.model.all_reduce(gradient)) / mesh.data.size
    return sum_gradient(mesh, ends, kind, gradient)


def nothing_returned(mesh, ends, kind, gradient):
    sum_gradient(mesh, ends, kind, gradient)


def largest(mesh, ends, kind, gradient):
    return mesh.data.all_reduce(gradient, op="max")


def on_the_first_alone(mesh, ends, kind, gradient):
    found = mesh.data.reduce(gradient)
    return None if found is None else found / mesh.data.size


SHARED = {}


def through_a_global(mesh, ends, kind, gradient):
    group = mesh.data
    key = (kind, mesh.pp.rank, mesh.tp.rank, group.size, mesh.comm.size)
    SHARED.setdefault(key, {})[group.rank] = gradient
    while len(SHARED[key]) < group.size:
        time.sleep(1e-4)
    return sum(SHARED[key].values()) / group.size


WRONG = [
    (times(lambda mesh, *_: mesh.data.size), "it is a sum over dp and cp; each rank's loss is a mean over its own"),
    (times(lambda mesh, *_: mesh.cp.size), "it is a sum over dp and cp"),
    (times(lambda mesh, *_: 1 / mesh.cp.size), "it is 0.5 times what it should be: divide once"),
    (times(lambda mesh, *_: mesh.data.size / min(mesh.data.size, 2)), "it is 1.5 times what it should be"),
    (times(lambda mesh, ends, kind: 1 / mesh.tp.size if kind == "K/V" else 1), "the sum over tp became a mean"),
    (times(lambda mesh, ends, kind: 1 / ends.size if kind == "tied" else 1), "the sum over the ends became a mean"),
    (without_cp, "the ranks of cp are not in it"),
    (lambda mesh, ends, kind, gradient: mesh.cp.all_reduce(gradient) / mesh.cp.size, "the ranks of dp are not in it"),
    (summed_in_place, "the sum over dp and cp was made and not used: all_reduce returns it"),
    (divided_alone, "nothing is summed over dp and cp; the division alone is no mean"),
    (taken_for({"K/V": "cut"}), "each rank of tp has the gradient of its own query heads: sum over tp"),
    (taken_for({"tied": "cut"}), "the two ends use the same table: their gradients add up"),
    (tp_for_all, "tp is in it, whose ranks have other parts"),
    (mean_over_all_ranks, "tp is in it, whose ranks have other parts"),
    (model_for_norms, "all of pp is in it, whose ranks have other layers"),
    (over_the_whole_pipeline, "only the two ends have the tied table and call the function: sum over `ends`"),
    (nothing_returned, "no `return` is reached for this kind: the sum was made, and not handed back"),
    (on_the_first_alone, "returned None, expected float64[5]|or `reduce` made it, which gives None to all ranks but"),
    (largest, "rank 0 (dp 0, pp 0, cp 0, tp 0), kind 'cut': returned ["),
    (lambda *given: sum_gradient(*given).astype("float32"), "returned float32[5], expected float64[5]"),
    (through_a_global, "no message was sent"),
]


@pytest.mark.parametrize(("answer", "said"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_answer_is_refused_and_explained(answer, said):
    SHARED.clear()
    text = refused("07.who_sums", answer)
    assert [part for part in said.split("|") if part not in text] == [], text


def test_a_rare_mistake_gets_its_numbers_and_no_cause_of_another():
    text = refused("07.who_sums", lambda mesh, *given: mesh.data.broadcast(given[2], root=mesh.data.size - 1))
    assert "expected [" in text
    assert "likely cause" not in text
