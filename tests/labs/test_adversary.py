"""What an adversary tried: wrong answers that passed, hangs, escapes."""

import threading
import time
from contextlib import suppress

import numpy as np
import pytest

from parlab.labs import EXERCISES, time_limit
from tests.labs import answers
from tests.labs.answers import refused

# Wrong answers

SHARED = {}


def _meet(comm, x):
    """All ranks' x, through memory that only threads share."""
    SHARED[comm.rank] = x
    while len(SHARED) < comm.size or any(SHARED[rank].shape != x.shape for rank in range(comm.size)):
        time.sleep(1e-4)
    time.sleep(2e-3)
    return [SHARED[rank] for rank in range(comm.size)]


def exchange_through_a_global(comm, x):
    everyone = _meet(comm, x)
    return everyone[comm.left].copy(), everyone[comm.right].copy()


def exchange_through_a_global_with_messages_for_show(comm, x):
    comm.sendrecv(x, comm.right, comm.left)
    comm.sendrecv(x, comm.left, comm.right)
    return exchange_through_a_global(comm, x)


def scatter_from_the_checkers_seed(comm, x):
    """Draws the inputs again, as it has seen the checker draw them; sends what it should."""
    answers.reduce_scatter(comm, x)
    for exercise in [EXERCISES["01.reduce_scatter"]]:
        for case in exercise.cases:
            if case.size == comm.size and case.shape == x.shape and case.dtype == x.dtype:
                return np.split(sum(case.inputs()), comm.size)[comm.rank]
    return None


def overlap_that_never_works(comm, x, work):
    def alike(comm, block):
        with comm.compute("work", seconds=10e-6):
            return block * block

    return answers.overlap(comm, x, alike)


def zero_1_with_its_own_optimizer(comm, weights, gradient, state, update):
    def own(weights, gradient, mean, square):
        state["step"] = step = state.get("step", 0) + 1
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient**2 - square)
        weights -= 0.1 * (mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 0.1) + 0.01 * weights)

    return answers.zero_1(comm, weights, gradient, state, own)


def merge_that_zeroes_its_inputs(out_a, lse_a, out_b, lse_b):
    for x in (out_a, lse_a, out_b, lse_b):
        x[...] = 0
    return out_a, lse_a + np.log(2)


MEMORY = "ranks share memory"
WRONG = [
    ("00.exchange", exchange_through_a_global, "no message was sent: they did not come by messages"),
    ("00.exchange", exchange_through_a_global_with_messages_for_show, MEMORY),
    ("01.reduce_scatter", scatter_from_the_checkers_seed, MEMORY),
    ("00.overlap", overlap_that_never_works, "works of a rank: 0, should be P = 2"),
    ("06.zero_1", zero_1_with_its_own_optimizer, "`update` was not called"),
    ("02.merge", merge_that_zeroes_its_inputs, "out: returned"),
]


@pytest.mark.parametrize(("name", "answer", "cause"), WRONG)
def test_wrong_answers_that_passed_are_refused(name, answer, cause):
    SHARED.clear()
    refused(name, answer, cause)


def test_a_rule_whose_gradients_differ_is_refused(monkeypatch):
    from parlab.labs import zigzag_tile

    monkeypatch.setattr(zigzag_tile, "_gradient_error", lambda *given: 1e-3)
    refused("02.zigzag_tile", answers.zigzag_tile, "dq, dk and dv are off by 1.0e-03")


# Hangs and escapes: a limit of a quarter of a second. Loops end with the test: on a busy machine some are left behind,
# and would slow down all tests that come later


freed = threading.Event()


def endless(comm, x):
    print("round and round")
    while comm.rank == 1 and not freed.is_set():
        pass
    return comm.recv(1, like=x)


def endless_after_two_lines(comm, x):
    comm.print("round")
    comm.print("and round")
    while comm.rank == 0 and not freed.is_set():
        pass
    return comm.recv(0, like=x)


def endless_that_holds_on(comm, x):
    while not freed.is_set():
        with suppress(BaseException):
            time.sleep(0.01)


def endless_rule(rank, source, length):
    while not freed.is_set():
        pass


def endless_messages(comm, x):
    while True:
        x = comm.sendrecv(x, comm.right, comm.left)


def endless_message(*arguments):
    class SlowError(Exception):
        def __str__(self):
            while not freed.is_set():
                pass
            return ""

    raise SlowError


def line(answer, number):
    """Where the line of an answer stands that has this number, counted from its `def`."""
    return f"at line {answer.__code__.co_firstlineno + number - 1} of {answer.__name__}"


@pytest.mark.parametrize(
    ("name", "answer", "says"),
    [
        ("00.exchange", endless, f"after 0.25 s with 2 ranks; rank 1 {line(endless, 3)}: `while comm.rank == 1 and"),
        ("00.exchange", endless_after_two_lines, "what it printed:\n  rank 0: round\n  rank 0: and round\n"),
        ("00.exchange", endless_that_holds_on, "restart the kernel"),
        ("02.zigzag_tile", endless_rule, f"still running after 0.25 s; {line(endless_rule, 2)}: `while not freed"),
        ("01.reduce_scatter", endless_messages, "still running after 0.25 s with 2 ranks"),
        ("00.exchange", endless_message, "still running"),
    ],
)
def test_an_endless_answer_ends_with_the_line_where_it_is(name, answer, says, monkeypatch):
    monkeypatch.setattr(time_limit, "GRACE", 0.25)
    freed.clear()
    try:
        refused(name, answer, says, seconds=0.25)
    finally:
        freed.set()


KINDS = ("00.exchange", "02.merge")  # on ranks, and a function


def leaving(comm, *arguments):
    raise SystemExit(3)


def pressing(comm, *arguments):
    raise KeyboardInterrupt


def ragged(comm, *arguments):
    return [[1.0], [2.0, 3.0]]


def halves(rank, source, length):
    return slice(0, length / 2), slice(0, length), True


def error_that_cannot_be_shown(*arguments):
    class Odd(BaseException):
        def __str__(self):
            raise RuntimeError

        def __setattr__(self, name, value):
            raise RuntimeError

    raise Odd


def one_branch_missing(comm, x):
    if comm.rank == 1:
        raise NotImplementedError
    return comm.sendrecv(x, comm.right, comm.left)


def a_size_missing(comm, x):
    if comm.size == 3:
        raise NotImplementedError
    return answers.exchange(comm, x)


def yielding(comm, *arguments):
    yield 1


async def coroutine(comm, *arguments):
    return 1


@pytest.mark.parametrize(
    ("name", "answer", "says"),
    [
        *[(name, leaving, "raised SystemExit: 3, at line") for name in KINDS],
        *[(name, pressing, "raised KeyboardInterrupt") for name in KINDS],
        ("00.exchange", ragged, "returned list"),
        ("06.prefetch", ragged, "worked on blocks []"),
        ("02.zigzag_tile", halves, "`/` gives a float"),
        ("00.exchange", error_that_cannot_be_shown, "raised Odd"),
        ("00.exchange", one_branch_missing, "rank 1 raised NotImplementedError"),
        ("00.exchange", a_size_missing, "raised NotImplementedError"),
        ("00.exchange", yielding, "it holds a `yield`"),
        ("00.exchange", coroutine, "it is an `async def`"),
        ("02.merge", 3, "answer=3: must be the function that you wrote"),
    ],
)
def test_whatever_an_answer_does_becomes_a_sentence(name, answer, says):
    refused(name, answer, says)


def chatty(comm, x):
    for number in range(5_000):
        print(number)


def test_printing_has_a_cap_and_errors_are_printed_too():
    def complains(comm, x):
        import sys

        print("to stderr", file=sys.stderr)

    assert len(refused("00.exchange", chatty, " more lines")) < 3000
    refused("00.exchange", complains, "to stderr")
