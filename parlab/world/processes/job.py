"""A job: a program with its arguments, of which each process carries out one rank. The records meet on rank 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from parlab.world.processes.deadlock import Report, failed
from parlab.world.processes.engine import ProcessEngine
from parlab.world.processes.native import NativeEngine
from parlab.world.processes.records import pack_record
from parlab.world.processes.transport import NativeTransport, Transport
from parlab.world.program import carry_out


class Job(NamedTuple):
    """A program with its arguments, as it goes to other processes."""

    program: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    native: bool  # with the library's own collectives


def run_this_rank(job: Job, transport: Transport) -> tuple[list[bytes], list[Report]]:
    """Run this process's rank. Returns the records of all ranks (on rank 0) and their last reports."""
    engine = _engine_for(job, transport)
    carry_out(engine, job.program, job.args, job.kwargs)
    records = transport.gather(pack_record(engine))
    if failed(engine.last_reports):
        transport.renew()
    elif isinstance(engine, NativeEngine):
        engine.disconnect()
    return records, engine.last_reports


def _engine_for(job: Job, transport: Transport) -> ProcessEngine:
    if not job.native:
        return ProcessEngine(transport)
    assert isinstance(transport, NativeTransport)  # `run` refuses other libraries
    return NativeEngine(transport)
