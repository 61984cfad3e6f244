"""MPI without parlab in between, for lesson 09: messages that are posted, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from parlab.world import Comm

PROCESS_GUESSES = {  # the usual wrong guesses of lesson 09, and the reasoning that leads there
    "loss": (1.2, "as on threads: it is the same program"),
    "sends": (4, "a send is buffered"),
    "posted": (4, "both ends are posted, and half a MiB needs far less than 0.2 seconds"),
}


def posted_by_mpi(comm: Comm, arrays: Sequence[Any]) -> list[Any]:
    """Post a message for each array, from rank 0 to rank 1, and return this rank's ends: MPI's requests.

    Rank 1 posts first. Rank 0 waits until it has, and 20 ms longer, so that rank 1 is out of MPI again. Rank 1 sleeps
    200 ms meanwhile, so that rank 0 has posted on a crowded machine, too.
    """
    from mpi4py import MPI

    if comm.rank == 1:
        ends = [MPI.COMM_WORLD.Irecv(x, 0) for x in arrays]
        MPI.COMM_WORLD.Send(np.empty(0), 0)  # ready
        time.sleep(0.2)
        return ends
    ready = MPI.COMM_WORLD.Irecv(np.empty(0), 1)
    while not ready.Test():
        time.sleep(0.001)  # a wait that spins uses up this rank's share of a crowded machine: it would post late
    time.sleep(0.02)
    return [MPI.COMM_WORLD.Isend(x, 1) for x in arrays]
