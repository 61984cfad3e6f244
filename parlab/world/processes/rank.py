"""The rank of this process: its transport, its part of a run, and the end of all processes if the script fails here."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from parlab.world.processes import machine
from parlab.world.processes.deadlock import Report, failed
from parlab.world.processes.engine import ProcessEngine
from parlab.world.processes.native import Library, NativeEngine
from parlab.world.processes.records import pack_record
from parlab.world.processes.transport import Transport
from parlab.world.program import carry_out


class Job(NamedTuple):
    """A program with its arguments, as it goes to other processes."""

    program: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    native: bool  # with the library's own collectives


_transports: dict[str, Transport] = {}  # the transports of this process, by engine


def transport_of(engine: str) -> Transport:
    """The transport of this process. The first run by this engine makes it, and later ones find it.

    To make it starts MPI. From then on an error that leaves the script ends all processes, and rank 0 alone has input.
    """
    if engine not in _transports:
        os.environ.update(machine.ENVIRONMENT[engine] | os.environ)
        from parlab.world.processes.mpi import MPITransport  # starts MPI

        mpi = MPITransport()
        sys.excepthook = partial(_end_all_on_error, mpi)
        if mpi.rank:
            _close_input()
        _transports[engine] = mpi
        if engine == "nccl":
            from parlab.world.processes.nccl import NCCLTransport

            _transports[engine] = NCCLTransport(mpi, machine.cupy_on_gpu(mpi.node.rank, mpi.node.size))
    return _transports[engine]


def _close_input() -> None:
    """Let standard input end at once: mpiexec gives it to rank 0 alone, and the others would wait for it for ever."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def run_this_rank(job: Job, transport: Transport) -> tuple[list[bytes], list[Report]]:
    """Run this process's rank. Returns the records of all ranks (on rank 0) and their last reports."""
    if job.native:
        assert isinstance(transport, Library)  # `run` refuses it on others
        engine: ProcessEngine = NativeEngine(transport, transport)
    else:
        engine = ProcessEngine(transport)
    carry_out(engine, job.program, job.args, job.kwargs)
    records = transport.gather(pack_record(engine))
    if failed(engine.last_reports):
        transport.renew()
    elif isinstance(engine, NativeEngine):
        engine.disconnect()
    return records, engine.last_reports


def _end_all_on_error(transport: Transport, kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """An error that leaves the script ends all processes. The rank that raised it shows it."""
    if getattr(error, "rank", transport.rank) == transport.rank:
        sys.__excepthook__(kind, error, trace)
        sys.stderr.flush()
    else:
        time.sleep(10)  # that rank shows the error, and ends this process
    transport.abort()
