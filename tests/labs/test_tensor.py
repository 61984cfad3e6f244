"""The checkers of notebook 05 refuse each omission, with what it breaks."""

from dataclasses import replace

import numpy as np
import pytest

from parlab.labs.block import BLOCK
from parlab.labs.loss import LossCase
from parlab.nn.cross_entropy import cross_entropy, cross_entropy_backward
from tests.labs.answers import EXERCISES, block_step, mlp_step, parallel_loss, refused


def without_a_maximum(comm, logits, targets, first):
    return parallel_loss(comm, logits, targets, first, forget=("max",))


def largest_forgotten(comm, logits, targets, first):
    largest = comm.all_reduce(logits.max(axis=-1), op="max")
    loss, dlogits = parallel_loss(comm, logits, targets, first)
    return loss - np.mean(largest), dlogits


def summed_before_relu(comm, x, A, C, dy):
    z = np.maximum(comm.all_reduce(x @ A), 0)
    _, *others = mlp_step(comm, x, A, C, dy)
    return comm.all_reduce(z @ C), *others


def without_relu(comm, x, A, C, dy):
    z = x @ A
    return comm.all_reduce(z @ C), *mlp_step(comm, x, A, C, dy)[1:]


def without_mask(comm, x, A, C, dy):
    z, dz = np.maximum(x @ A, 0), dy @ C.T
    return comm.all_reduce(z @ C), comm.all_reduce(dz @ A.T), x.T @ dz, z.T @ dy


def with_gradients_summed(comm, x, A, C, dy):
    y, dx, dA, dC = mlp_step(comm, x, A, C, dy)
    return y, dx, comm.all_reduce(dA), comm.all_reduce(dC)


def with_means(comm, x, A, C, dy):
    return mlp_step(Mean(comm), x, A, C, dy)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda *given: mlp_step(*given, without="y"), "y is wrong|likely cause: behind the rows each rank has a"),
        (lambda *given: mlp_step(*given, twice="dx"), "dx is wrong|2 times too much: ranks summed something that was"),
        (summed_before_relu, "y is wrong|likely cause: x A is summed before relu: a rank's columns are finished"),
        (without_relu, "y is wrong|likely cause: relu is missing: z is relu(x A)"),
        (without_mask, "dA is wrong|likely cause: dz must be 0 where z is 0"),
        (with_gradients_summed, "dC is wrong|it is summed over the ranks: a rank has all of the gradient of its own"),
        (with_means, "y is wrong|likely cause: the sum is divided by 2: partial sums add up to the whole"),
        (lambda *given: mlp_step(*given)[:2], "returned tuple|expected (y, dx, dA, dC)"),
    ],
)
def test_each_mistake_in_an_mlps_step_is_named(answer, says):
    refused("05.mlp_step", answer, says)


def step(without="", behind="", summed_too="", missing=""):
    """A block's step without a sum, or with one of dm or da behind the norm, or where a residual is summed, too, or is
    missing."""

    def answer(comm, block, x, dy):
        def summed(partial, place):
            return partial if place == without else comm.all_reduce(partial)

        a, first_norm = block.attention_norm.forward(x)
        a, attention = block.attention.forward(a)
        h = comm.all_reduce(x + a) if "a" in summed_too else (missing != "x") * x + summed(a, "a")
        m, second_norm = block.mlp_norm.forward(h)
        m, mlp = block.mlp.forward(m)
        y = comm.all_reduce(h + m) if "m" in summed_too else (missing != "h") * h + summed(m, "m")
        d, gradients = block.mlp.backward(dy, mlp)
        d, of_second = block.mlp_norm.backward(d if behind == "dm" else summed(d, "dm"), second_norm)
        dh = dy + (comm.all_reduce(d) if behind == "dm" else d)
        d, of_attention = block.attention.backward(dh, attention)
        d, of_first = block.attention_norm.backward(d if behind == "da" else summed(d, "da"), first_norm)
        dx = (missing != "dh") * dh + (comm.all_reduce(d) if behind == "da" else d)
        return y, dx, gradients | of_second | of_attention | of_first

    return answer


@pytest.mark.parametrize(("which", "norm"), [("dm, at 6←,", "post_attention"), ("da, at 2←,", "input")])
def test_a_forgotten_copy_and_a_sum_behind_the_norm_give_one_number_and_have_causes_of_their_own(which, norm):
    """The gradient of the norm's weights is the same in both; dh, or dx, is right in one of them alone."""
    forgot = refused("05.block_step", step(without=which[:2]))
    behind = refused("05.block_step", step(behind=which[:2]))
    first = [text.partition("likely cause")[0] for text in (forgot, behind)]
    assert first[0] == first[1]
    assert f"the gradient of {norm}_layernorm.weight is wrong" in first[0]
    assert "likely cause: *copy* is forgotten" in forgot
    assert "likely cause: the sum stands behind the norm's backward: this is linear" in behind
    assert all(f"sum {which} before the norm reads it" in text for text in (forgot, behind))


def with_its_weights_updated(comm, block, x, dy):
    found = block_step(comm, block, x, dy)
    block.mlp_norm.weights["model.layers.0.post_attention_layernorm.weight"] *= 0.9
    return found


def with_sums_of_slices(comm, block, x, dy):
    y, dx, gradients = block_step(comm, block, x, dy)
    return y, dx, {name: comm.all_reduce(gradient) for name, gradient in gradients.items()}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (with_its_weights_updated, "rank 0: it changed the weights model.layers.0.post_attention_layernorm.weight: a"),
        (lambda comm, *given: block_step(Mean(comm), *given), "the sums are divided by 2: partial sums add up to the"),
        (with_sums_of_slices, "the gradient of mlp.down_proj.weight is wrong|it is summed over the ranks: a rank"),
    ],
)
def test_a_wrong_step_of_a_block_is_refused_and_named(answer, says):
    refused("05.block_step", answer, says)


@pytest.mark.parametrize(
    ("otherwise", "says"),
    [
        ({"summed_too": "a"}, "S(x + a) = 2·x + S(a); sum a alone"),
        ({"summed_too": "m"}, "S(h + m) = 2·h + S(m)"),
        ({"missing": "x"}, "x is missing: h is x plus the sum of a"),
        ({"missing": "h"}, "h is missing: y is h plus the sum of m"),
        ({"missing": "dh"}, "dh is missing: dx is dh plus what comes back through attention"),
    ],
    ids=str,
)
def test_a_residual_that_is_summed_too_or_is_missing_is_named_and_not_a_partial_sum(otherwise, says):
    assert "has a partial sum" not in refused("05.block_step", step(**otherwise), says)


class Mean:
    """A comm whose sums are divided by the ranks."""

    def __init__(self, comm):
        self.comm = comm

    def all_reduce(self, x):
        return self.comm.all_reduce(x) / self.comm.size


def test_a_sum_behind_the_norms_backward_and_one_of_the_norms_gradient_are_named_as_two_for_one():
    """All results are right: the norm's backward is linear in dm. But its own gradient takes a message more."""

    def answer(comm, block, x, dy):
        y, dx, gradients = step(behind="dm")(comm, block, x, dy)
        (norm,) = (name for name in gradients if "post_attention" in name)
        return y, dx, gradients | {norm: comm.all_reduce(gradients[norm])}

    refused("05.block_step", answer, "or sum twice what one earlier sum would settle (dm or da, before its norm)")


def test_of_drawn_blocks_t_and_g_divide_h_and_one_the_other_and_g_is_less_than_t_or_t_or_more():
    draw = np.random.default_rng(0)
    cases = [BLOCK.draw(draw, size) for size in range(2, 14) for _ in range(9)]
    assert all(max(c.G, c.size) % min(c.G, c.size) == 0 == c.H % max(c.G, c.size) for c in cases)
    assert {np.sign(c.G - c.size) for c in cases} == {-1, 0, 1}


@pytest.mark.parametrize(("size", "seed", "rank", "largest"), [(3, 93, 2, 0), (5, 83, 1, 1e-310)])
def test_a_right_loss_passes_where_a_ranks_whole_gradient_is_0_or_1e_310(size, seed, rank, largest):
    case = LossCase(size, 2 * size, 2000.0, seed)
    draw = np.random.default_rng([seed, size, case.V])
    logits, targets = draw.uniform(-2000, 2000, size=(2, 3, case.V)), draw.integers(case.V, size=(2, 3))
    _, cache = cross_entropy(logits, targets)
    assert np.max(np.abs(cross_entropy_backward(1.0, cache)[..., 2 * rank : 2 * rank + 2])) <= largest
    review = replace(EXERCISES["05.parallel_loss"], cases=[case], draw=None).review(parallel_loss, 30.0)
    assert review.status == "passed", review.text


def changed(of):
    return lambda comm, logits, targets, first: of(*parallel_loss(comm, logits, targets, first), targets.size)


def with_dlogits(targets_from=0, **otherwise):
    """The right loss, and the gradient of another one."""

    def answer(comm, logits, targets, first):
        loss, _ = parallel_loss(comm, logits, targets, first)
        return loss, parallel_loss(comm, logits, targets - targets_from, first, **otherwise)[1]

    return answer


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (without_a_maximum, "the largest logit is this rank's alone: all ranks must subtract the same"),
        (largest_forgotten, "the largest logit is subtracted, and not added again"),
        (lambda *args: parallel_loss(*args, forget=("target",)), "the target's logit is this rank's alone: sum it"),
        (lambda *args: parallel_loss(*args, forget=("sum",)), "the sum of exp is this rank's alone: sum it over"),
        (lambda *args: parallel_loss(*args)[0], "expected (loss, dlogits)"),
        (changed(lambda loss, dlogits, n: (loss * n, dlogits)), "the mean over the B·S targets is missing"),
        (changed(lambda loss, dlogits, n: (loss, dlogits * n)), "it is not divided by B·S: the loss is a mean"),
        (with_dlogits(forget=("max", "sum")), "the softmax is over this rank's logits alone"),
        (with_dlogits(targets_from=99), "the one-hot is missing"),
        (lambda comm, logits, targets, first: parallel_loss(comm, logits, targets, 0), "`first` is not used"),
    ],
)
def test_wrong_losses_are_refused(answer, says):
    refused("05.parallel_loss", answer, says)
