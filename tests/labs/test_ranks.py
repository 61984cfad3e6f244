"""The checkers of notebook 00 accept the solutions and refuse what learners write on the way there."""

import numpy as np
import pytest

from tests.labs.answers import exchange, overlap, refused, reviewed


@pytest.mark.parametrize(("name", "answer"), [("00.exchange", exchange), ("00.overlap", overlap)])
def test_a_right_answer_passes_with_counts_that_equal_the_closed_forms(name, answer):
    review = reviewed(name, answer)
    assert review.status == "passed", review.text
    for line in review.text.splitlines()[1:]:
        counted, _, closed_form = line.partition("; closed form: ")
        assert counted.split(": ")[1] == closed_form.split(" = ")[-1], line


def exchange_with_two_sends_first(comm, x):
    comm.send(x, comm.right)
    comm.send(x, comm.left)
    return comm.recv(comm.left, x), comm.recv(comm.right, x)


def exchange_one_way(comm, x):
    from_left = comm.sendrecv(x, comm.right, comm.left)
    return from_left, from_left


def exchange_in_a_chain(comm, x):
    if comm.rank:
        from_left = comm.recv(comm.left, x)
        comm.send(x, comm.right)
    else:
        comm.send(x, comm.right)
        from_left = comm.recv(comm.left, x)
    return from_left, comm.sendrecv(x, comm.left, comm.right)


def exchange_by_gathering(comm, x):
    blocks = comm.all_gather(np.reshape(x, (1, *x.shape)))
    return blocks[comm.left], blocks[comm.right]


def exchange_passed_on(comm, x):
    from_left = comm.sendrecv(x, comm.right, comm.left)
    block = x
    for _ in range(comm.size - 1):
        block = comm.sendrecv(block, comm.right, comm.left)
    return from_left, block


def exchange_without_waiting(comm, x):
    comm.isend(x, comm.right)
    return comm.recv(comm.left, x), x


def overlap_that_waits(comm, x, work):
    total, block = work(comm, x), x
    for _ in range(comm.size - 1):
        block = comm.sendrecv(block, comm.right, comm.left)
        total = total + work(comm, block)
    return total


def rounds(
    steps="isend irecv work sent came",
    more=0,
    way=lambda comm: (comm.right, comm.left),
    then=lambda piece, request, came: came,
    first=0,
    last=1,
):
    """The overlap with other steps in a round, more rounds, another way, another piece for the next round, or other
    works around the loop."""

    def overlap(comm, x, work):
        (to, source), piece, arriving = way(comm), x, None
        total = work(comm, x) if first else 0
        for _ in range(comm.size - 1 + more):
            for step in steps.split():
                match step:
                    case "isend":
                        sending = comm.isend(piece, to)
                    case "irecv":
                        arriving = comm.irecv(source, like=piece)
                    case "work":
                        total = total + work(comm, piece)
                    case "sent":
                        sending.wait()
                    case "came":
                        came = arriving.wait()
                    case "send":
                        comm.send(piece, to)
                    case "recv":
                        came = comm.recv(source, like=piece)
            piece = then(piece, arriving, came)
        return total + work(comm, piece) if last else total

    return overlap


overlap_that_comes_home = rounds(more=1, last=0)


def overlap_with_everything_posted_at_the_start(comm, x, work):
    """No rank would ever wait for a stall of 18 ms: each has P − 1 pieces ahead, and a buffer for each."""
    sent = [comm.isend(x, (comm.rank + k) % comm.size) for k in range(1, comm.size)]
    arriving = [comm.irecv((comm.rank - k) % comm.size, like=x) for k in range(1, comm.size)]
    pieces = [work(comm, x)] + [work(comm, request.wait()) for request in arriving]
    for request in sent:
        request.wait()
    return sum(pieces)


def overlap_that_sends_first(comm, x, work):
    comm.send(x, comm.right)
    arriving = comm.irecv(comm.left, like=x)
    return work(comm, x) + work(comm, arriving.wait())


def overlap_that_sends_nothing(comm, x, work):
    arriving = comm.irecv(comm.left, like=x)
    return work(comm, x) + work(comm, arriving.wait())


def overlap_without_work(comm, x, work):
    return overlap(comm, x, lambda comm, block: block * block)


@pytest.mark.parametrize(
    ("name", "answer", "reason"),
    [
        ("00.exchange", exchange_with_two_sends_first, "likely cause: every rank sends first"),
        ("00.exchange", lambda comm, x: exchange(comm, x)[::-1], "likely cause: the two are swapped"),
        ("00.exchange", exchange_one_way, "(item 1 of the tuple)"),
        ("00.exchange", exchange_in_a_chain, "steps: 3, should be 2"),
        ("00.exchange", exchange_by_gathering, "comm.all_gather did the work"),
        ("00.exchange", exchange_passed_on, "messages a rank sends: 3, should be 2"),
        ("00.exchange", exchange_without_waiting, "isend(to 1): call wait()"),
        ("00.overlap", rounds("isend work recv sent"), "rank 0 posted its receive at 10.0 µs only; both ends must"),
        (
            "00.overlap",
            rounds("irecv work send came"),
            "rank 1 posted its send at 10.0 µs only; both ends must be there",
        ),
        ("00.overlap", rounds("isend irecv sent work came"), "from 0 s to 1.03 µs rank 0 does not work: it"),
        ("00.overlap", rounds(first=1, last=0), "own piece twice, and never on the piece that comes last"),
        ("00.overlap", rounds(then=lambda piece, request, came: piece), "comes last: the one that wait() of irecv"),
        ("00.overlap", rounds(last=0), "and it has its own: one of them is never worked on"),
        ("00.overlap", rounds(way=lambda comm: (comm.left, comm.right)), "rank 0 sends to rank 2, should be to its"),
        ("00.overlap", overlap_with_everything_posted_at_the_start, "pass on to comm.right what comes from comm.left"),
        ("00.overlap", rounds(then=lambda piece, request, came: request), "the piece is what wait() of irecv's"),
        ("00.overlap", overlap_that_sends_first, "likely cause: every rank sends first, and a send returns when"),
        ("00.overlap", overlap_that_sends_nothing, "so nobody sends"),
        ("00.overlap", overlap_without_work, "works of a rank: 0, should be P = 2"),
    ],
)
def test_a_wrong_answer_is_refused_with_its_reason(name, answer, reason):
    assert reason in refused(name, answer)


@pytest.mark.parametrize("answer", [overlap_that_waits, overlap_that_sends_first, overlap_that_sends_nothing])
def test_the_checker_of_the_overlap_names_the_cause_and_not_the_repair(answer):
    said = refused("00.overlap", answer).partition("likely cause: ")[2]
    assert said
    for repair in ("sendrecv", "then wait", "post"):
        assert repair not in said
