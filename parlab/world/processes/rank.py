"""The rank of this process: its transport, its part of a run, and the end of all processes if the script fails here."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from parlab.world.processes import machine
from parlab.world.processes.deadlock import Report, failed
from parlab.world.processes.engine import ProcessEngine
from parlab.world.processes.records import pack_record
from parlab.world.program import carry_out

Program = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], bool]  # with its arguments; native collectives?
_here: dict[str, Any] = {}  # the transports of this process, by engine


def transport_of(engine: str) -> Any:
    """The transport of this process, which is made at the first run by this engine and kept for later ones."""
    if engine not in _here:
        os.environ.update(machine.ENVIRONMENT[engine] | os.environ)
        from parlab.world.processes.mpi import MPITransport  # starts MPI

        here: Any = MPITransport()
        sys.excepthook = partial(_end_all_on_error, here)
        if here.rank:
            _close_input()
        if engine == "nccl":
            from parlab.world.processes.nccl import NCCLTransport

            here = NCCLTransport(here, machine.gpu(here.node.rank, here.node.size))
        _here[engine] = here
    return _here[engine]


def _close_input() -> None:
    """Let standard input end at once: mpiexec gives it to rank 0 alone, and the others would wait for it for ever."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def carried_out(program: Program, here: Any) -> tuple[list[bytes], list[Report]]:
    """Run this process's rank. Returns the records of all ranks (on rank 0) and their last reports."""
    function, args, kwargs, native = program
    world = ProcessEngine(here, native)
    carry_out(world, function, args, kwargs)
    records = here.gather(pack_record(world))
    if failed(world.last_reports):
        here.renew()
    else:
        world.disconnect()
    return records, world.last_reports


def _end_all_on_error(here: Any, kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """An error that leaves the script ends all processes. The rank that raised it shows it."""
    if getattr(error, "rank", here.rank) == here.rank:
        sys.__excepthook__(kind, error, trace)
        sys.stderr.flush()
    else:
        time.sleep(10)  # that rank shows the error, and ends this process
    here.abort()
