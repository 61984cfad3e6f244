"""MPI without parlab in between, for lesson 09."""

import sys

import numpy as np
import pytest

from parlab import labs, run

needs_mpi = pytest.mark.skipif(sys.platform == "win32", reason="the mpich wheel is for Linux and macOS")


def arrive(comm, sizes):
    arrays = [np.full(nbytes, 1 - comm.rank, dtype="uint8") for nbytes in sizes]  # ones on rank 0, zeros on rank 1
    ends = labs.posted_by_mpi(comm, arrays)
    for end in ends:
        end.Wait()
    return [int(x.sum()) for x in arrays], len(ends)


@needs_mpi
def test_messages_of_8_b_and_64_kib_are_posted_in_their_order_and_come_when_both_ends_wait():
    assert run(arrive, 2, [8, 2**16], engine="mpi").results[1] == ([8, 2**16], 2)
