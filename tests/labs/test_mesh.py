"""The checkers of notebook 07 refuse what learners write, with the cause."""

import pytest

from tests.labs.answers import refused, sum_gradient


def times(of):
    """The right sum, times a factor."""
    return lambda mesh, ends, kind, gradient: sum_gradient(mesh, ends, kind, gradient) * of(mesh, ends, kind)


def taken_for(other):
    """One kind of weight is summed as another kind."""
    return lambda mesh, ends, kind, gradient: sum_gradient(mesh, ends, other.get(kind, kind), gradient)


def with_a_mean_over(axis):
    """The right sum, and a mean over one more axis."""

    def answer(mesh, ends, kind, gradient):
        group = getattr(mesh, axis)
        return sum_gradient(mesh, ends, kind, group.all_reduce(gradient) / group.size)

    return answer


norms_as_cut = taken_for({"norm": "cut", "K/V": "cut"})


def summed_in_place(mesh, ends, kind, gradient):
    """As PyTorch's all_reduce would."""
    mesh.data.all_reduce(gradient)
    return gradient / mesh.data.size


def divided_alone(mesh, ends, kind, gradient):
    return gradient / mesh.data.size


def tp_for_all(mesh, ends, kind, gradient):
    found = sum_gradient(mesh, ends, kind, gradient)
    return found if kind in ("norm", "K/V") else mesh.tp.all_reduce(found)


def model_for_norms(mesh, ends, kind, gradient):
    if kind in ("norm", "K/V"):
        return mesh.data.all_reduce(mesh.model.all_reduce(gradient)) / mesh.data.size
    return sum_gradient(mesh, ends, kind, gradient)


def nothing_returned(mesh, ends, kind, gradient):
    sum_gradient(mesh, ends, kind, gradient)


def largest(mesh, ends, kind, gradient):
    return mesh.data.all_reduce(gradient, op="max")


WRONG = [
    (times(lambda mesh, *_: mesh.data.size), "it is a sum over dp and cp; each rank's loss is a mean over its own"),
    (times(lambda mesh, *_: 1 / mesh.cp.size), "it is 0.5 times what it should be: divide once"),
    (times(lambda mesh, ends, kind: 1 / mesh.tp.size if kind == "K/V" else 1), "the sum over tp became a mean"),
    (times(lambda mesh, ends, kind: 1 / ends.size if kind == "tied" else 1), "the sum over the ends became a mean"),
    (lambda mesh, ends, kind, gradient: mesh.cp.all_reduce(gradient) / mesh.cp.size, "the ranks of dp are not in it"),
    (summed_in_place, "the sum over dp and cp was made and not used: all_reduce returns it"),
    (divided_alone, "nothing is summed over dp and cp; the division alone is no mean"),
    (taken_for({"K/V": "cut"}), "each rank of tp has the gradient of its own query heads: sum over tp"),
    (taken_for({"tied": "cut"}), "the two ends use the same table: their gradients add up"),
    (tp_for_all, "tp is in it, whose ranks have other parts"),
    (with_a_mean_over("tp"), "tp is in it, whose ranks have other parts"),
    (with_a_mean_over("pp"), "all of pp is in it, whose ranks have other layers"),
    (model_for_norms, "all of pp is in it, whose ranks have other layers"),
    (nothing_returned, "returned None, expected float64[5]|no `return` is reached for this kind|or `reduce` made it"),
    (largest, "rank 0 (dp 0, pp 0, cp 0, tp 0), kind 'cut': returned ["),
    (lambda *given: sum_gradient(*given).astype("float32"), "returned float32[5], expected float64[5]"),
]


@pytest.mark.parametrize(("answer", "said"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_answer_is_refused_and_explained(answer, said):
    refused("07.who_sums", answer, said)


def test_a_rare_mistake_gets_its_numbers_and_no_cause_of_another():
    text = refused("07.who_sums", lambda mesh, *given: mesh.data.broadcast(given[2], root=mesh.data.size - 1))
    assert "expected [" in text
    assert "likely cause" not in text
