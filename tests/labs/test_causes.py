"""A refusal names the mistake that was made, not one that looks alike."""

import numpy as np
import pytest

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


@pytest.mark.parametrize(
    ("name", "answer", "says", "says_not"),
    [
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
