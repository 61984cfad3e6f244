"""Ranks in processes of their own, started here, or by whoever started this script.

Those that are started here fetch the program from a socket in a folder that only this user may enter, after both ends
have proved that they know a key that is fresh and random; when that connection ends, the processes end. Code and
results are pickled: they are this user's own, and come by this connection only.
"""

from __future__ import annotations

import importlib.util
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from parlab.world.errors import WorldError
from parlab.world.handover import packed, unpacked
from parlab.world.processes import ProcessEngine
from parlab.world.program import Outcome, carry_out
from parlab.world.records import packed as packed_records
from parlab.world.records import together
from parlab.world.verdict import Report, failed

INSIDE = ("PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE")  # variables of processes that an MPI has started
POLITE = {  # ranks that wait let others compute, and there may be more ranks than cores
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
INSTALL = "python -m pip install mpi4py mpich"
Job = subprocess.Popen[str]
Program = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], bool]  # with its arguments; native collectives?


def elsewhere(program: Program, size: int) -> Outcome:
    """Run a program on `size` processes.

    Raises:
        ValueError: there is no MPI, or it has started another number of processes.
        WorldError: the processes ended too early.
    """
    if importlib.util.find_spec("mpi4py") is None:
        raise ValueError(f"engine='mpi': mpi4py is not installed; {INSTALL}")
    if not any(name in os.environ for name in INSIDE):
        return _started(program, size)
    here = _transport()
    if here.size != size:
        raise ValueError(
            f"size={size}: this script runs on {here.size} processes; use size={here.size}, or start it by "
            f"mpiexec -n {size} python {sys.argv[0]}"
        )
    blobs, reports = _carried_out(program)
    outcome = together(pickle.loads(here.share(pickle.dumps(blobs))), reports)
    outcome.shown = here.rank == 0
    return outcome


_here: Any = None  # the transport of this process, if an MPI has started it


def _transport() -> Any:
    global _here
    if _here is None:
        os.environ.update(POLITE)
        from parlab.world.mpi import MPITransport

        _here = MPITransport()
        sys.excepthook = _last_words
    return _here


def _carried_out(program: Program) -> tuple[list[bytes], list[Report]]:
    """Run this process's part; returns what each process knows of it, on rank 0, and the last reports of all."""
    function, args, kwargs, native = program
    world = ProcessEngine(_transport(), native)
    carry_out(world, function, args, kwargs)
    blobs = world.transport.gather(packed_records(world))
    if failed(world.last_reports):
        world.transport.renew()
    else:
        world.disconnect()
    return blobs, world.last_reports


def _last_words(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """An error that nobody caught ends all processes; the rank that raised it shows it."""
    if getattr(error, "rank", _here.rank) == _here.rank:
        sys.__excepthook__(kind, error, trace)
        sys.stderr.flush()
    else:
        time.sleep(1)  # the other one ends us
    _here.abort()


# The side that starts


def _started(program: Program, size: int) -> Outcome:
    beside_python = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside_python) if beside_python.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise ValueError(f"engine='mpi': there is no mpiexec here; {INSTALL}")
    if not hasattr(socket, "AF_UNIX"):
        raise ValueError(f"engine='mpi': on Windows, start the script by mpiexec -n {size} python {sys.argv[0]}")
    data, folder = packed(program), Path(tempfile.mkdtemp(prefix="parlab"))  # of mode 700
    try:
        key = secrets.token_bytes(32)
        (folder / "key").write_bytes(key)
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(folder / "door"))
            door.listen()
            door.settimeout(0.05)
            start = [sys.executable, "-c", "import sys; from parlab.world.launch import work; work(sys.argv[1])"]
            command = [mpiexec, "-n", str(size), *start, str(folder)]
            with _job(command) as job, _welcomed(door, key, job) as connection:
                connection.send_bytes(data)
                outcome = pickle.loads(connection.recv_bytes())
                with suppress(subprocess.TimeoutExpired):
                    job.wait(2)
        return together(*outcome)
    except (EOFError, ConnectionError):
        raise WorldError(f"a process ended before its program did: mpiexec's status is {job.returncode}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _welcomed(door: socket.socket, key: bytes, job: Job) -> Connection:
    """The connection to the first process, when it has proved that it knows the key, and we have."""
    while job.poll() is None:
        with suppress(TimeoutError, AuthenticationError, EOFError, ConnectionError):
            connection = Connection(door.accept()[0].detach())
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
            return connection
    raise EOFError


@contextmanager
def _job(command: list[str]) -> Iterator[Job]:
    """The processes of `command`, in a session of their own; what they print is printed here, and they end here."""
    job = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**POLITE, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # Ctrl-C is for us; we end them
    )
    assert job.stdout is not None
    reader = threading.Thread(target=_show, args=(job.stdout,), daemon=True)
    try:
        reader.start()
        yield job
    finally:
        if job.poll() is None:
            job.terminate()
            with suppress(subprocess.TimeoutExpired):
                job.wait(1)
        with suppress(ProcessLookupError, PermissionError):  # macOS forbids it for a group that is gone
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        reader.join(1)
        job.stdout.close()


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, end="", flush=True)


# The side that is started


def work(folder: str) -> None:
    """Carry out the program that waits behind the door in `folder`: what each process does that `run` has started."""
    here = _transport()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    connection = None
    data = b""
    if here.rank == 0:
        connection = Client(f"{folder}/door", "AF_UNIX", authkey=Path(folder, "key").read_bytes())
        data = connection.recv_bytes()
        shutil.rmtree(folder, ignore_errors=True)  # whoever opened the door may be killed
        threading.Thread(target=_end_with, args=(connection, ended := threading.Event()), daemon=True).start()
    outcome = _carried_out(unpacked(here.share(data)))
    if connection:
        ended.set()
        connection.send_bytes(pickle.dumps(outcome))


def _end_with(connection: Connection, ended: threading.Event) -> None:
    """End all processes when the connection ends, because whoever wanted the result is gone."""
    with suppress(EOFError, OSError):
        connection.recv_bytes()
    if not ended.is_set():
        os._exit(1)
