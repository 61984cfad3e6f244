"""A run on processes: `run` starts them, or they are there because mpiexec or Slurm started this script.

Processes that `run` starts fetch the program from a socket in a folder that only this user can open. First both ends
prove that they know a fresh random key. When the connection ends, the processes end. Programs and results are pickled:
they belong to this user, and come by this connection only.
"""

from __future__ import annotations

import codecs
import os
import pickle
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import IO, Any

import numpy as np

from parlab.world.errors import WorldError
from parlab.world.processes import machine
from parlab.world.processes.deadlock import Report, failed
from parlab.world.processes.engine import ProcessEngine
from parlab.world.processes.pickling import pack_program, unpack_program
from parlab.world.processes.records import merge_records, pack_record
from parlab.world.program import Outcome, carry_out

Job = subprocess.Popen[bytes]
Program = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], bool]  # with its arguments; native collectives?


def run_on_processes(program: Program, size: int, engine: str) -> Outcome:
    """Run a program on `size` processes.

    A WorldError, if they end too early. A ValueError, if this machine cannot start them, or if this script runs on
    another number of processes.
    """
    machine.check(engine, size)
    if not machine.inside():
        return _run_on_new_processes(program, size, engine)
    here = _transport(engine)
    if here.size != size:
        raise ValueError(
            f"size={size}: this script runs on {here.size} processes; use size={here.size}, or start it by "
            f"{machine.by_hand(size)} {sys.argv[0]}"
        )
    records, reports = _carried_out(program, here)
    outcome = merge_records(pickle.loads(here.share(pickle.dumps(records))), reports)
    outcome.shown = here.rank == 0
    return outcome


_here: dict[str, Any] = {}  # the transports of this process, by engine


def _transport(engine: str) -> Any:
    if engine not in _here:
        os.environ.update(machine.ENVIRONMENT[engine] | os.environ)
        _here[engine] = machine.transport(engine)
        if _here[engine].rank:
            _close_input()
        sys.excepthook = partial(_end_all_on_error, _here[engine])
    return _here[engine]


def _close_input() -> None:
    """Let standard input end at once: mpiexec gives it to rank 0 alone, and the others would wait for it for ever."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _carried_out(program: Program, here: Any) -> tuple[list[bytes], list[Report]]:
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


# The process that calls `run`


def _run_on_new_processes(program: Program, size: int, engine: str) -> Outcome:
    command = machine.command(engine, size)
    if not hasattr(socket, "AF_UNIX"):
        raise ValueError(f"engine={engine!r}: on Windows, start the script by {machine.by_hand(size)} {sys.argv[0]}")
    data, folder = pack_program((program, np.geterr())), Path(tempfile.mkdtemp(prefix="parlab"))  # of mode 700
    try:
        key = secrets.token_bytes(32)
        (folder / "key").write_bytes(key)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "listener"))
            listener.listen()
            listener.settimeout(0.05)
            command += [sys.executable, "-c", WORKER, engine, str(folder), str(size)]
            with _job(command, machine.ENVIRONMENT[engine]) as job, _first_connection(listener, key, job) as connection:
                connection.send_bytes(data)
                outcome = pickle.loads(connection.recv_bytes())
                with suppress(subprocess.TimeoutExpired):
                    job.wait(1)
        if isinstance(outcome, ValueError):
            raise outcome
        return merge_records(*outcome)
    except (EOFError, ConnectionError):
        raise WorldError(f"a process ended before its program did: the status is {job.returncode}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _first_connection(listener: socket.socket, key: bytes, job: Job) -> Connection:
    """The connection to rank 0, after both ends have proved that they know the key."""
    while job.poll() is None:
        with suppress(TimeoutError, AuthenticationError, EOFError, ConnectionError):
            connection = Connection(listener.accept()[0].detach())
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
            return connection
    raise EOFError


@contextmanager
def _job(command: list[str], environment: dict[str, str]) -> Iterator[Job]:
    """The processes of `command`, in a session of their own; their output is printed here, and they end here."""
    job = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**environment, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # Ctrl-C reaches this process alone, which ends them
    )
    reader = threading.Thread(target=_show, args=(job.stdout, over := threading.Event()), daemon=True)
    try:
        reader.start()
        yield job
        if job.poll() is None:
            over.set()  # from now on mpiexec alone prints: it calls the end of the job a failure
    finally:
        if job.poll() is None:
            job.terminate()
            with suppress(subprocess.TimeoutExpired):
                job.wait(1)
        with suppress(ProcessLookupError, PermissionError):  # macOS forbids it for a group that is gone
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        reader.join(1)


def _show(stdout: IO[bytes], over: threading.Event) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with stdout:
        for said in iter(partial(os.read, stdout.fileno(), 2**16), b""):
            if not over.is_set():
                print(decoder.decode(said), end="", flush=True)


# The processes that `run` starts


WORKER = "import sys; from parlab.world.processes.launch import worker; worker(*sys.argv[1:])"


def worker(engine: str, folder: str, size: str) -> None:
    """The main function of a process that `run` has started: fetch the program by a socket, and run it."""
    here = _transport(engine)
    if here.size != int(size):
        _refuse(folder, f"size={size}: {size} processes were started, and each finds {here.size}: {machine.STRANGERS}")
        return
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    connection = None
    data = b""
    if here.rank == 0:
        connection = _to_caller(folder)
        data = connection.recv_bytes()
        shutil.rmtree(folder, ignore_errors=True)  # the process that made it may be killed
        threading.Thread(target=_end_with, args=(connection, ended := threading.Event()), daemon=True).start()
    program, errors = unpack_program(here.share(data))
    with np.errstate(**errors):  # as the caller's, which threads inherit
        outcome = _carried_out(program, here)
    sys.stdout.flush()
    here.share(b"")  # no process ends before all know that the run is over
    if connection:
        ended.set()
        connection.send_bytes(pickle.dumps(outcome))


def _to_caller(folder: str) -> Any:
    return Client(f"{folder}/listener", "AF_UNIX", authkey=Path(folder, "key").read_bytes())


def _refuse(folder: str, why: str) -> None:
    """Let `run` raise a ValueError. The caller listens to the first process that says so."""
    with suppress(OSError, EOFError, AuthenticationError), _to_caller(folder) as connection:
        connection.recv_bytes()
        connection.send_bytes(pickle.dumps(ValueError(why)))


def _end_with(connection: Connection, ended: threading.Event) -> None:
    """End all processes when the connection ends: the process that called `run` is gone."""
    with suppress(EOFError, OSError):
        connection.recv_bytes()
    if not ended.is_set():
        os._exit(1)
