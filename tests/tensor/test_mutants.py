"""Wrong shardings, each caught, and each with what it breaks: the gradients before the place, and no others."""

from __future__ import annotations

import numpy as np
import pytest

import parlab.tensor.slices
from parlab import run
from parlab.arrays import namespace
from parlab.nn.config import EMBEDDING, HEAD
from parlab.tensor import COPY, NOTHING, REDUCE, vocabulary
from tests.nn.parity import relative_error
from tests.tensor.models import model, parallel_results, serial_results, text

FIRST, SECOND = "model.layers.0", "model.layers.1"
DOUBLED = REDUCE._replace(backward=COPY.backward)


def names_of(prefix: str) -> set[str]:
    """The weights of a layer, a part of it, or one weight."""
    return {name for name in model().weights if name.startswith(prefix)}


EVERYTHING = set(model().weights) | {"loss", "logits"}
BEFORE_LAST_MLP = names_of(FIRST) | names_of(f"{SECOND}.self_attn") | names_of(f"{SECOND}.input") | {EMBEDDING}
LAST_MLP_NORM = f"{SECOND}.post_attention_layernorm.weight"
ALL_NORMS = {name for name, weight in model().weights.items() if weight.ndim == 1}
ALL_KEYS_AND_VALUES = {name for name in model().weights if "k_proj" in name or "v_proj" in name}


def broken(change, size=2, heads=4, **options):
    """What is wrong, by name: more than a thousandth off."""
    serial, (tokens, targets) = model(num_key_value_heads=heads), text()
    found = parallel_results(serial, size, tokens, targets, change=change, **options)
    expected = serial_results(serial, tokens, targets)
    return {name for name, array in expected.items() if not relative_error(found[name], array) < 1e-3}


def set_operator(place, side, operator):
    def change(parallel):
        part = place(parallel)
        setattr(part, side, operator)

    return change


def last_mlp(parallel):
    return parallel.blocks[-1].mlp


def last_attention(parallel):
    return parallel.blocks[-1].attention


def head(parallel):
    return parallel.head.projection


def embedding(parallel):
    return parallel.embedding


def test_an_unbroken_model_is_right():
    assert broken(lambda parallel: None) == set()


def test_a_nonlinearity_after_a_row_split_is_not_the_serial_one():
    """tanh(a) + tanh(b) is not tanh(a + b): this is why columns come first."""
    draw = np.random.default_rng(0)
    x, weight = draw.normal(size=(1, 4, 8)), draw.normal(size=(8, 6))

    def program(comm, early):
        rows = slice(comm.rank * 4, comm.rank * 4 + 4)
        partial = x[..., rows] @ weight[rows, :]
        return comm.all_reduce(np.tanh(partial)) if early else np.tanh(comm.all_reduce(partial))

    expected = np.tanh(x @ weight)
    assert relative_error(run(program, 2, False).results[0], expected) <= 1e-12
    assert relative_error(run(program, 2, True).results[0], expected) > 0.1


@pytest.mark.parametrize("place", [last_mlp, last_attention, embedding])
def test_a_forgotten_all_reduce_forward_makes_the_loss_wrong(place):
    assert {"loss", "logits"} <= broken(set_operator(place, "leave", NOTHING))


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (last_mlp, BEFORE_LAST_MLP | {LAST_MLP_NORM}),
        (last_attention, names_of(FIRST) | names_of(f"{SECOND}.input") | {EMBEDDING}),
        (head, EVERYTHING - {"loss", "logits", HEAD}),
    ],
)
def test_a_forgotten_all_reduce_backward_leaves_the_loss_right_and_all_gradients_before_it_wrong(place, wrong):
    assert broken(set_operator(place, "enter", NOTHING)) == wrong


@pytest.mark.parametrize("place", [last_mlp, last_attention])
def test_another_all_reduce_backward_doubles_gradients_and_leaves_the_loss_right(place):
    wrong = broken(set_operator(place, "leave", DOUBLED))
    assert "loss" not in wrong
    assert names_of(f"{SECOND}.self_attn.o" if place is last_attention else f"{SECOND}.mlp") <= wrong


def test_norms_left_unsynchronised_under_sequence_parallelism_are_the_only_gradients_wrong():
    def change(parallel):
        for block in parallel.blocks:
            for name in ("attention_norm", "mlp_norm"):
                norm = getattr(block, name).inside
                block.parts[name] = norm
                setattr(block, name, norm)
        parallel.head.norm = parallel.head.norm.inside

    assert broken(change, sequence_parallel=True) == ALL_NORMS


def test_norms_averaged_instead_of_summed_are_the_only_gradients_wrong():
    """Data parallelism divides by the ranks. Here the loss is already the mean over all tokens."""
    norm = f"{SECOND}.input_layernorm.weight"

    def change(parallel):
        part = parallel.blocks[-1].attention_norm
        right = part.backward_weight
        part.backward_weight = lambda pending: {name: g / part.comm.size for name, g in right(pending).items()}

    assert broken(change, sequence_parallel=True) == {norm}


def test_key_and_value_gradients_not_summed_over_their_owners_are_the_only_ones_wrong():
    def change(parallel):
        for block in parallel.blocks:
            block.attention.sharers = None

    assert broken(change, size=4, heads=2) == ALL_KEYS_AND_VALUES


def test_key_and_value_heads_dealt_out_in_turn_are_wrong_where_8_query_heads_read_2(monkeypatch):
    right = parlab.tensor.slices.even_slice

    def dealt(shape, axis, rank, size, owners=1):
        return right(shape, axis, rank * owners % size + rank * owners // size, size, owners)

    monkeypatch.setattr(parlab.tensor.slices, "even_slice", dealt)
    assert {"loss", "logits"} <= broken(lambda parallel: None, size=4, heads=2)


class Forgetful:
    """A comm whose all-reduce number `forgotten` sends nothing."""

    def __init__(self, comm, forgotten):
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.forgotten, self.calls = forgotten, 0

    def all_reduce(self, x, op="sum"):
        self.calls += 1
        return x if self.calls == self.forgotten else self.comm.all_reduce(x, op)


@pytest.mark.parametrize("forgotten", [1, 2, 3], ids=["maximum", "target", "sum"])
def test_a_loss_without_one_of_its_three_all_reduces_is_wrong(monkeypatch, forgotten):
    right = vocabulary.vocab_parallel_cross_entropy
    monkeypatch.setattr(
        vocabulary, "vocab_parallel_cross_entropy", lambda comm, *rest: right(Forgetful(comm, forgotten), *rest)
    )
    wrong = broken(lambda parallel: None)
    assert "loss" in wrong
    assert "logits" not in wrong


def test_an_embedding_that_does_not_zero_other_ranks_tokens_is_wrong(monkeypatch):
    right = vocabulary._place

    def everywhere(tokens, owned):
        place, here = right(tokens, owned)
        return place, namespace(here).ones_like(here)

    monkeypatch.setattr(vocabulary, "_place", everywhere)
    assert {"loss", "logits", EMBEDDING} <= broken(lambda parallel: None)


def test_sequence_parallel_gathers_where_a_copy_would_do_are_caught_by_shapes():
    """A copy in the place of a gather hands S/t tokens on: the ranks' partial sums no longer fit together."""
    with pytest.raises(ValueError, match="sequence length 2 does not divide among 4 tensor-parallel ranks"):
        broken(set_operator(last_mlp, "enter", COPY), size=4, sequence_parallel=True)
