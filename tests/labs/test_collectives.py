"""The checkers of notebook 01 refuse what learners write on the way there."""

import numpy as np
import pytest

from tests.labs.answers import circulant, reduce_scatter, refused
from tests.labs.right_answers import halved_if_a_power_of_two, straight_to_the_owners


def without_adding(comm, x):
    return reduce_scatter(comm, x, add=lambda own, partial: partial)


def with_the_whole_array_travelling(comm, x):
    total, block = x, x
    for _ in range(comm.size - 1):
        block = comm.sendrecv(block, comm.right, comm.left)
        total = total + block
    return np.split(total, comm.size)[comm.rank]


def that_writes_into_x(comm, x):
    blocks = np.split(x, comm.size)
    for step in range(comm.size - 1):
        outgoing, incoming = (comm.rank - step - 1) % comm.size, (comm.rank - step - 2) % comm.size
        blocks[incoming] += comm.sendrecv(blocks[outgoing], comm.right, comm.left)
    return blocks[comm.rank]


def sent_each_time(which, to_the_left=False):
    """A rank adds what comes to its own piece, and sends a piece of its own x each time."""

    def answer(comm, x):
        to, source = (comm.left, comm.right) if to_the_left else (comm.right, comm.left)
        total, pieces = 0, np.split(x, comm.size)
        for step in range(comm.size - 1):
            outgoing = {"own": comm.rank, "theirs": to, "the next": comm.rank - (step + 1) * (-1) ** to_the_left}
            total = total + comm.sendrecv(pieces[outgoing[which] % comm.size], to, source)
        return total + pieces[comm.rank]

    return answer


def whose_sums_stay_behind(comm, x):
    before, pieces = np.split(x, comm.size), np.split(x, comm.size)
    for step in range(comm.size - 1):
        outgoing, incoming = (comm.rank - step - 1) % comm.size, (comm.rank - step - 2) % comm.size
        pieces[incoming] = pieces[incoming] + comm.sendrecv(before[outgoing], comm.right, comm.left)
    return pieces[comm.rank]


def with_the_indices_of_the_all_gather(comm, x):
    return reduce_scatter(comm, x, shift=1)


def added_to_the_last_pieces(comm, x):
    window = np.roll(np.stack(np.split(x, comm.size)), -comm.rank, axis=0)
    while len(window) > 1:
        half = -(-len(window) // 2)
        came = comm.sendrecv(window[half:], (comm.rank + half) % comm.size, (comm.rank - half) % comm.size)
        window = window[:half].copy()
        window[-len(came) :] += came
    return window[0]


def with_an_empty_message_more(comm, x):
    comm.sendrecv(x[:0], comm.right, comm.left)
    return reduce_scatter(comm, x)


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        ("01.reduce_scatter", with_an_empty_message_more, "a rank sends: 2, should be P − 1 = 1|in several messages"),
        ("01.reduce_scatter", straight_to_the_owners, "goes straight to its owner; in the ring"),
        ("01.reduce_scatter", halved_if_a_power_of_two, "a rank talks to its two neighbours only"),
        ("01.reduce_scatter", lambda comm, x: comm.reduce_scatter(x), "comm.reduce_scatter did the work: build it fro"),
        ("01.reduce_scatter", that_writes_into_x, "write `a = a + b`, not `a += b`"),
        ("01.reduce_scatter", sent_each_time("own"), "send the sum so far"),
        ("01.reduce_scatter", sent_each_time("theirs"), "send the sum so far"),
        ("01.reduce_scatter", sent_each_time("the next", to_the_left=True), "send the sum so far"),
        ("01.reduce_scatter", whose_sums_stay_behind, "send the sum so far"),
        ("01.reduce_scatter", lambda comm, x: reduce_scatter(comm, x) / comm.size, "2 times too little: divided by"),
        ("01.reduce_scatter", lambda comm, x: reduce_scatter(comm, x) * comm.size, "2 times too much: divide by the"),
        (
            "01.reduce_scatter",
            lambda comm, x: reduce_scatter(comm, x) + np.split(x, comm.size)[comm.rank],
            "is counted",
        ),
        ("01.reduce_scatter", lambda comm, x: reduce_scatter(comm, x).fill(0), "a path through the program without a"),
        ("01.circulant", lambda *given: circulant(*given, add=lambda own, came: came), "rank 0's contribution is m"),
        ("01.circulant", reduce_scatter, "a rank sends: 3, should be ⌈log₂P⌉ = 2|keeps half of its pieces in a step"),
        ("01.circulant", lambda comm, x: circulant(comm, x, roll=0), "pieces are numbered from 0 on every rank"),
        ("01.circulant", lambda comm, x: circulant(comm, x, roll=-1), "roll by minus the rank"),
        ("01.circulant", added_to_the_last_pieces, "what comes is added to the last pieces"),
        ("01.circulant", lambda *given: circulant(*given, half_of=lambda n: n // 2), "of 3 pieces a rank keeps 2"),
        ("01.circulant", lambda comm, x: circulant(comm, np.stack([x, x], -1))[..., 0], "sends pieces that it keeps"),
        ("01.circulant", that_writes_into_x, "write `a = a + b`, not `a += b`"),
    ],
)
def test_a_wrong_answer_is_refused_with_its_reason(name, answer, said):
    refused(name, answer, said)


def test_whether_a_piece_left_too_early_is_not_asked_of_an_answer_that_sends_nothing():
    own = refused("01.reduce_scatter", lambda comm, x: np.split(x, comm.size)[comm.rank], "nothing was added to it")
    assert "did it leave" not in own
