"""A refusal names the mistake that was made, not one that looks alike."""

import re

import pytest

from parlab.labs import EXERCISES
from tests.labs import answers, lucky_answers
from tests.labs.answers import refused


def off_by_a_billionth(comm, logits, targets, first):
    loss, dlogits = answers.parallel_loss(comm, logits, targets, first)
    return loss * (1 + 1e-9), dlogits


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


def with_numbers_from_1(scores, bias, k, gamma):
    chosen, gates, moved = answers.balanced(scores, bias, k, gamma)
    return chosen + 1, gates, moved


@pytest.mark.parametrize(
    ("name", "answer", "says", "says_not"),
    [
        ("00.to_blame", lambda waits, rank: rank, "returned 0, expected 1|had waited itself, for rank 1", "not on it"),
        ("10.balanced", lucky_answers.with_loads_of_those_that_were_chosen, "nobody chose the last", "nothing moved"),
        ("10.mean_gradient", lucky_answers.ep_times_too_large, "2 times too large", "nothing was summed"),
        ("10.balanced", with_numbers_from_1, "token 0 goes to expert 1, expected expert 0", "argsort"),
        ("05.parallel_loss", off_by_a_billionth, "1.0e-09 of its largest entry off|it is nearly right", "0%"),
        ("05.parallel_loss", lucky_answers.without_the_largest, "exp overflows", "each need all ranks"),
        ("00.exchange", exchange_in_two_halves, "post both sends and both receives", "waits for the one before"),
        ("00.overlap", overlap_by_gathering, "build it from comm.isend, comm.irecv", "comm.send,"),
    ],
)
def test_causes_are_those_of_the_mistake(name, answer, says, says_not):
    assert says_not not in refused(name, answer, says)


def test_a_case_of_one_is_named_in_the_singular():
    """1 microbatches, 1 K/V heads, 1 activations and 1 tokens were read here once."""
    cases = [str(case) for exercise in EXERCISES.values() for case in exercise.cases]
    drawn = [str(case) for exercise in EXERCISES.values() for seed in range(4) for case in exercise._drawn(seed, 4)]
    plurals = r"\b1 (microbatches|K/V heads|query heads|activations|tokens|ranks|rows|experts|stages)\b"
    assert [case for case in [*cases, *drawn] if re.search(plurals, case)] == []
