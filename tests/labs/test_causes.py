"""A refusal names the mistake that was made, not one that looks alike."""

import re

import numpy as np
import pytest

from parlab.labs import EXERCISES
from parlab.pipeline import gpipe, naive
from parlab.zero import shard_range
from tests.labs import answers
from tests.labs.answers import refused


def padded(comm, weights, gradient, state, update):
    pad = -weights.size % comm.size
    length = (weights.size + pad) // comm.size
    mean = comm.reduce_scatter(np.pad(gradient, (0, pad))) / comm.size
    shard = np.pad(weights, (0, pad))[comm.rank * length :][:length]
    update(shard, mean, *state.setdefault("moments", (np.zeros(length), np.zeros(length))))
    return comm.all_gather(shard)[: weights.size]


def off_by_a_billionth(comm, logits, targets, first):
    loss, dlogits = answers.parallel_loss(comm, logits, targets, first)
    return loss * (1 + 1e-9), dlogits


def without_the_maximum(comm, logits, targets, first):
    here = (targets >= first) & (targets < first + logits.shape[-1])
    place = np.where(here, targets - first, 0)
    own = np.take_along_axis(logits, place[..., None], axis=-1)[..., 0]
    chosen, weights = comm.all_reduce(np.where(here, own, 0.0)), np.exp(logits)
    total = comm.all_reduce(weights.sum(axis=-1))
    hit = here[..., None] & (np.arange(logits.shape[-1]) == place[..., None])
    return np.mean(np.log(total) - chosen), (weights / total[..., None] - hit) / targets.size


def exchange_in_two_halves(comm, x):
    """Even ranks send while odd ones receive, and the other way round."""
    if comm.size % 2:
        return answers.exchange(comm, x)
    found = {}
    for even_sends in (True, False):
        for there, back in ((comm.right, comm.left), (comm.left, comm.right)):
            if (comm.rank % 2 == 0) == even_sends:
                comm.send(x, there)
            else:
                found[back] = comm.recv(back, x)
    return found[comm.left], found[comm.right]


def overlap_by_gathering(comm, x, work):
    return sum(work(comm, block) for block in comm.all_gather(x[None]))


def the_asked_rank(waits, rank):
    return rank


def with_one_hop_too_few(comm, kv, attend_to, merge):
    found = attend_to(comm.rank, kv)
    for hop in range(1, comm.size - 1):
        kv = comm.sendrecv(kv, comm.right, comm.left)
        found = merge(*found, *attend_to((comm.rank - hop) % comm.size, kv))
    return found


def with_its_own_tile_alone(comm, kv, attend_to, merge):
    return attend_to(comm.rank, kv)


def on_2_ranks(right, otherwise):
    return lambda comm, *given: (right if comm.size == 2 else otherwise)(comm, *given)


def balanced_by(load=None, mean=None, change=lambda *step: step):
    """The solution with another load, another mean, or another result."""

    def balanced(scores, bias, k, gamma):
        chosen, gates, _ = answers.balanced(scores, bias, k, gamma)
        loads = (load or np.bincount)(chosen.ravel(), minlength=len(bias))
        target = loads.mean() if mean is None else mean(chosen, len(bias))
        return change(chosen, gates, bias + gamma * np.sign(target - loads))

    return balanced


BALANCED = [
    (balanced_by(lambda chosen, minlength: np.bincount(chosen)), "nobody chose the last expert", "nothing moved"),
    (balanced_by(mean=lambda chosen, N: chosen.size // N), "expected", "likely cause"),
    (balanced_by(change=lambda c, g, b: (c, g.astype("float32"), b)), "returned float32", "the bias is in the gates"),
    (balanced_by(change=lambda c, g, b: (c + 1, g, b)), "token 0 goes to expert 1, expected expert 0", "argsort"),
]


def in_float32(mesh, of_expert, gradient):
    return answers.mean_gradient(mesh, of_expert, gradient.astype("float32"))


def nearly_mixed(comm, *given):
    return answers.mixture(comm, *given) * (1 + 1e-9)


def with_kv_twice(mesh, ends, kind, gradient):
    return answers.sum_gradient(mesh, ends, kind, mesh.tp.all_reduce(gradient) if kind == "K/V" else gradient)


def reduced_to_one_rank(mesh, ends, kind, gradient):
    total = answers.sum_gradient(mesh, ends, kind, gradient) if kind != "norm" else mesh.tp.reduce(gradient, 0)
    return total if kind != "norm" else mesh.data.all_reduce(total) / mesh.data.size


def reduced_or_its_own(mesh, ends, kind, gradient):
    total = mesh.data.reduce(gradient, 0)
    return (gradient if total is None else total) / mesh.data.size


REDUCE = "`reduce` gives its sum to one rank, and None to all others; `all_reduce` gives it to all"


@pytest.mark.parametrize(
    ("name", "answer", "says", "says_not"),
    [
        ("00.to_blame", the_asked_rank, "rank 0 had waited itself, for rank 1 until 14", "not on it"),
        ("02.ring", with_one_hop_too_few, "no hop was made: one too few, or none is posted at all", "came"),
        ("02.ring", with_its_own_tile_alone, "no hop was made: one too few, or none is posted at all", "came"),
        ("02.ring", on_2_ranks(answers.ring, with_one_hop_too_few), "one hop too few: P − 1 hops bring", "came are"),
        ("02.ring", on_2_ranks(answers.ring, with_its_own_tile_alone), "attends its own K/V alone: P − 1 hops", "came"),
        *(("10.balanced", *rest) for rest in BALANCED),
        ("10.mean_gradient", in_float32, "float32 on the way", "a part of mesh.data"),
        ("10.mixture", nearly_mixed, "it is nearly right", "twice"),
        ("07.who_sums", with_kv_twice, "the sum over tp is made twice", "mesh.data"),
        ("07.who_sums", reduced_to_one_rank, REDUCE, "no `return`"),
        ("07.who_sums", reduced_or_its_own, REDUCE, "was made and not used"),
        ("06.zero_1", padded, "ranks send padding, too", "all_reduce is"),
        ("05.parallel_loss", off_by_a_billionth, "1.0e-09 of its largest entry off", "0%"),
        ("05.parallel_loss", without_the_maximum, "exp overflows", "each need all ranks"),
        ("00.exchange", exchange_in_two_halves, "post both sends and both receives", "waits for the one before"),
        ("00.overlap", overlap_by_gathering, "build it from comm.isend, comm.irecv", "comm.send,"),
        ("04.one_f_one_b", naive, "could do one more forward meanwhile", "could be done"),
        ("04.one_f_one_b", gpipe, "1F1 at 2, when 1B0 could be done", "where time goes"),
    ],
)
def test_causes_are_those_of_the_mistake(name, answer, says, says_not):
    text = refused(name, answer)
    assert says in text
    assert not says_not or says_not not in text


def test_numbers_that_print_alike_are_shown_with_all_digits():
    def nearly(comm, x):
        return tuple(array * (1 + 1e-9) for array in answers.exchange(comm, x.astype("float64")))

    assert ".000000" in refused("00.exchange", nearly)


def test_shards_of_the_answers_are_those_of_the_library():
    assert answers.counts_of(10, 4) == [len(shard_range(10, rank, 4)) for rank in range(4)] == [3, 3, 2, 2]


def test_a_case_of_one_is_named_in_the_singular():
    """1 microbatches, 1 K/V heads, 1 activations and 1 tokens were read here once."""
    cases = [str(case) for exercise in EXERCISES.values() for case in exercise.cases]
    drawn = [str(case) for exercise in EXERCISES.values() for seed in range(15) for case in exercise._drawn(seed, 4)]
    plurals = r"\b1 (microbatches|K/V heads|query heads|activations|tokens|ranks|rows|experts|stages)\b"
    assert [case for case in [*cases, *drawn] if re.search(plurals, case)] == []
