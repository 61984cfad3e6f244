"""How this process joins the others: by MPI, whichever library carries the messages afterwards. It joins them once, for
all runs of its script.
"""

from __future__ import annotations

import os
import sys
import time
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from parlab.world.processes import machine
from parlab.world.processes.transport import Transport

if TYPE_CHECKING:
    from parlab.world.processes.mpi import MPITransport  # which starts MPI


@cache
def transport_of(library: str) -> Transport:
    """The transport of this process: "mpi" or "nccl"."""
    os.environ.update(machine.ENVIRONMENT[library] | os.environ)
    mpi = _joined()
    if library == "mpi":
        return mpi
    from parlab.world.processes.nccl import NCCLTransport

    return NCCLTransport(mpi, machine.cupy_on_gpu(mpi.node.rank, mpi.node.size))


@cache
def _joined() -> MPITransport:
    """Start MPI. From now on an error that leaves the script ends all processes, and rank 0 alone has input."""
    from parlab.world.processes.mpi import MPITransport

    mpi = MPITransport()
    sys.excepthook = partial(_end_all_on_error, mpi)
    if mpi.rank:
        _close_input()
    return mpi


def _end_all_on_error(transport: Transport, kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """An error that leaves the script ends all processes. The rank that raised it shows it."""
    if getattr(error, "rank", transport.rank) == transport.rank:
        sys.__excepthook__(kind, error, trace)
        sys.stderr.flush()
    else:
        time.sleep(10)  # that rank shows the error, and ends this process
    transport.abort()


def _close_input() -> None:
    """Let standard input end at once: mpiexec gives it to rank 0 alone, and the others would wait for it for ever."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
