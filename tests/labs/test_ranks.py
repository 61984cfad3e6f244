"""The checkers of notebook 00 refuse what learners write on the way there."""

import pytest

from tests.labs.answers import exchange, overlap, refused


def exchange_with_two_sends_first(comm, x):
    comm.send(x, comm.right)
    comm.send(x, comm.left)
    return comm.recv(comm.left, x), comm.recv(comm.right, x)


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


def overlap_that_sends_first(comm, x, work):
    comm.send(x, comm.right)
    arriving = comm.irecv(comm.left, like=x)
    return work(comm, x) + work(comm, arriving.wait())


def overlap_that_sends_nothing(comm, x, work):
    arriving = comm.irecv(comm.left, like=x)
    return work(comm, x) + work(comm, arriving.wait())


def with_more_work(comm, x, work):
    comm.compute("more", seconds=1e-6)
    return overlap(comm, x, work)


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        ("00.exchange", exchange_with_two_sends_first, "likely cause: every rank sends first"),
        ("00.exchange", lambda comm, x: exchange(comm, x)[::-1], "likely cause: the two are swapped"),
        ("00.exchange", lambda comm, x: (comm.sendrecv(x, comm.right, comm.left),) * 2, "(item 1 of the tuple)"),
        ("00.exchange", lambda *given: (exchange(*given), exchange(*given))[0], "a rank sends: 4, should be 2|pass on"),
        ("00.overlap", rounds("isend work recv sent"), "rank 0 posted its receive at 10.0 µs only; both ends must"),
        ("00.overlap", rounds("irecv work send came"), "rank 1 posted its send at 10.0 µs only; both ends must"),
        ("00.overlap", rounds(first=1, last=0), "its own piece twice, and never on the piece that comes last"),
        ("00.overlap", with_more_work, "a rank does something else, too, that takes time"),
        ("00.overlap", rounds(last=0), "and it has its own: one of them is never worked on"),
        ("00.overlap", rounds(way=lambda comm: (comm.left, comm.right)), "rank 0 sends to rank 2|pass on to comm.rig"),
        ("00.overlap", rounds(then=lambda piece, request, came: request), "the piece is what wait() of irecv's"),
    ],
)
def test_a_wrong_answer_is_refused_with_its_reason(name, answer, said):
    refused(name, answer, said)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (overlap_that_waits, "it stands still until a message has passed"),
        (overlap_that_sends_first, "every rank sends first, and a send returns when"),
        (overlap_that_sends_nothing, "so nobody sends"),
    ],
)
def test_the_checker_of_the_overlap_names_the_cause_and_not_the_repair(answer, cause):
    said = refused("00.overlap", answer, cause).partition("likely cause: ")[2]
    assert [repair for repair in ("sendrecv", "then wait", "post") if repair in said] == []
