"""The checkers of notebook 05 accept the solutions and refuse each omission, with what it breaks."""

import numpy as np
import pytest

from parlab.labs import EXERCISES


def block_step(comm, block, x, dy, without="", twice="", shares=True):
    def summed(partial, place):
        if place == without:
            return partial
        total = comm.all_reduce(partial)
        return comm.all_reduce(total) if place == twice else total

    a, first_norm = block.attention_norm.forward(x)
    a, attention = block.attention.forward(a)
    h = x + summed(a, "attention forward")
    m, second_norm = block.mlp_norm.forward(h)
    m, mlp = block.mlp.forward(m)
    y = h + summed(m, "mlp forward")

    dm, gradients = block.mlp.backward(dy, mlp)
    dm, more = block.mlp_norm.backward(summed(dm, "mlp backward"), second_norm)
    gradients |= more
    dh = dy + dm
    da, more = block.attention.backward(dh, attention)
    if block.kv_sharers is not None and shares:
        more = {
            name: block.kv_sharers.all_reduce(gradient) if "k_proj" in name or "v_proj" in name else gradient
            for name, gradient in more.items()
        }
    gradients |= more
    da, more = block.attention_norm.backward(summed(da, "attention backward"), first_norm)
    return y, dh + da, gradients | more


def parallel_loss(comm, logits, targets, first, forget=()):
    largest = logits.max(axis=-1)
    if "max" not in forget:
        largest = comm.all_reduce(largest, op="max")
    here = (targets >= first) & (targets < first + logits.shape[-1])
    place = np.where(here, targets - first, 0)
    chosen = np.where(here, np.take_along_axis(logits, place[..., None], axis=-1)[..., 0], 0.0)
    if "target" not in forget:
        chosen = comm.all_reduce(chosen)
    weights = np.exp(logits - largest[..., None])
    total = weights.sum(axis=-1)
    if "sum" not in forget:
        total = comm.all_reduce(total)
    dlogits = weights / total[..., None]
    dlogits -= here[..., None] * (np.arange(logits.shape[-1]) == place[..., None])
    return np.mean(largest + np.log(total) - chosen), dlogits / targets.size


def by_gathering(comm, logits, targets, first):
    """Right, but the logits of all ranks travel."""
    lengths = comm.all_gather(np.array([logits.shape[-1]]))
    whole = comm.all_gather(logits, axis=2, counts=[int(n) for n in lengths])
    weights = np.exp(whole - whole.max(axis=-1, keepdims=True))
    probabilities = weights / weights.sum(axis=-1, keepdims=True)
    hit = np.arange(whole.shape[-1]) == targets[..., None]
    # from the logits: log of a probability that is 0 would be infinite
    loss = np.mean(np.log(weights.sum(axis=-1)) + whole.max(axis=-1) - np.sum(whole * hit, axis=-1))
    return loss, ((probabilities - hit) / targets.size)[..., first : first + logits.shape[-1]]


def without_a_maximum(comm, logits, targets, first):
    return parallel_loss(comm, logits, targets, first, forget=("max",))


@pytest.mark.parametrize(("name", "answer"), [("05.block_step", block_step), ("05.parallel_loss", parallel_loss)])
def test_a_right_answer_passes_and_shows_bytes_beside_the_closed_form(name, answer):
    review = EXERCISES[name].review(answer)
    assert review.status == "passed", review.text
    assert "closed form: " in review.text


def stub(comm, block, x, dy):
    raise NotImplementedError


class Alone:
    """A comm that sends nothing."""

    def all_reduce(self, x):
        return x


def bare(comm, block, x, dy):
    return block_step(Alone(), block, x, dy, shares=False)


def nothing(comm, logits, targets, first):
    """A stub without its raise."""


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("05.block_step", stub),
        ("05.block_step", bare),
        ("05.parallel_loss", stub),
        ("05.parallel_loss", nothing),
    ],
)
def test_stubs_are_not_written_yet(name, answer):
    assert EXERCISES[name].review(answer).text == f"{name}: not written yet"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"without": "attention forward"}, "y is wrong"),
        ({"without": "mlp forward"}, "y is wrong"),
        ({"without": "mlp backward"}, "the gradient of post_attention_layernorm.weight is wrong"),
        ({"without": "attention backward"}, "the gradient of input_layernorm.weight is wrong"),
        ({"shares": False}, "the gradient of self_attn.v_proj.weight is wrong"),
        ({"twice": "mlp forward"}, "y is wrong"),
        ({"twice": "mlp backward"}, "2 times too much: something that every rank has already was summed once more"),
    ],
    ids=str,
)
def test_each_omission_and_each_message_too_many_is_refused_and_named(options, says):
    review = EXERCISES["05.block_step"].review(lambda *args: block_step(*args, **options))
    assert review.status == "not yet"
    assert says in review.text


def test_key_value_heads_owned_twice_are_first_missed_at_t_2_with_one_head():
    review = EXERCISES["05.block_step"].review(lambda *args: block_step(*args, shares=False))
    assert review.text.startswith("05.block_step: not yet. It fails with t = 2, H = 2, G = 1:")
    assert "see block.kv_sharers" in review.text


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (without_a_maximum, "the loss is"),
        (lambda *args: parallel_loss(*args, forget=("target",)), "the loss is wrong"),
        (lambda *args: parallel_loss(*args, forget=("sum",)), "the loss is wrong"),
        (lambda *args: parallel_loss(*args)[0], "expected (loss, dlogits)"),
        (lambda comm, logits, targets, first: parallel_loss(comm, logits, targets, 0), "is wrong"),
        (by_gathering, "the results are right, but not what was counted"),
        (lambda *args: list(parallel_loss(*args)), "rank 0 returned list, expected (loss, dlogits)"),
        (lambda comm, logits, targets, first: (0.0, logits[0]), "the loss is wrong"),
        (lambda comm, logits, targets, first: 1 / 0, "rank 0 raised ZeroDivisionError: division by zero, at line"),
    ],
)
def test_wrong_losses_are_refused(answer, says):
    review = EXERCISES["05.parallel_loss"].review(answer)
    assert review.status == "not yet", review.text
    assert says in review.text, review.text
