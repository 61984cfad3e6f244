"""A run on processes: `run` starts them, or they are there because mpiexec or Slurm started this script.

Processes that `run` starts fetch the program from a socket in a folder that only this user can open. When the
connection ends, the processes end. Programs and results are pickled: they belong to this user, and come by this
connection only. `worker.py` is the other end.
"""

from __future__ import annotations

import codecs
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

import numpy as np

from parlab.world.errors import WorldError
from parlab.world.processes import machine
from parlab.world.processes.job import Job, run_this_rank
from parlab.world.processes.joining import transport_of
from parlab.world.processes.pickling import pack_program
from parlab.world.processes.records import merge_records
from parlab.world.program import Outcome

Mpiexec = subprocess.Popen[bytes]  # one process, which starts those of the ranks
WORKER = "import sys; from parlab.world.processes.worker import main; main(*sys.argv[1:])"


def run_on_processes(job: Job, size: int, library: str) -> Outcome:
    """Run a program, with its arguments, on `size` processes; `library`, "mpi" or "nccl", carries their messages.

    A WorldError, if they end too early. A ValueError, if this machine cannot start them, or if this script runs on
    another number of processes.
    """
    machine.check(library, size)
    if machine.inside_mpiexec():
        return _on_these_processes(job, size, library)
    return _on_new_processes(job, size, library)


def _on_these_processes(job: Job, size: int, library: str) -> Outcome:
    """The processes that mpiexec or Slurm has started: each calls this."""
    transport = transport_of(library)
    if transport.size != size:
        raise ValueError(
            f"size={size}: this script runs on {transport.size} processes; use size={transport.size}, or start it by "
            f"{machine.by_hand(size)} {sys.argv[0]}"
        )
    records, reports = run_this_rank(job, transport)
    outcome = merge_records(pickle.loads(transport.share(pickle.dumps(records))), reports)
    outcome.shown = transport.rank == 0
    return outcome


def _on_new_processes(job: Job, size: int, library: str) -> Outcome:
    """Start them, hand them the program, and merge the records of all ranks, which rank 0 sends back."""
    command = machine.command(library, size)
    if not hasattr(socket, "AF_UNIX"):
        raise ValueError(f"engine={library!r}: on Windows, start the script by {machine.by_hand(size)} {sys.argv[0]}")
    data, folder = pack_program((job, np.geterr())), Path(tempfile.mkdtemp(prefix="parlab"))  # of mode 700
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "listener"))
            listener.listen()
            listener.settimeout(0.05)  # seconds between two looks at mpiexec, which may have ended
            command += [sys.executable, "-c", WORKER, library, str(folder), str(size)]
            with (
                _started(command, machine.ENVIRONMENT[library]) as mpiexec,
                _connection_to_rank_0(listener, mpiexec) as connection,
            ):
                connection.send_bytes(data)
                reply = pickle.loads(connection.recv_bytes())
                with suppress(subprocess.TimeoutExpired):
                    mpiexec.wait(1)
        if isinstance(reply, ValueError):
            raise reply
        return merge_records(*reply)
    except (EOFError, ConnectionError):
        raise WorldError(f"a process ended before its program did: the status is {mpiexec.returncode}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _connection_to_rank_0(listener: socket.socket, mpiexec: Mpiexec) -> Connection:
    """The first connection. An EOFError, if the processes end before they connect."""
    while mpiexec.poll() is None:
        with suppress(TimeoutError):
            return Connection(listener.accept()[0].detach())
    raise EOFError


@contextmanager
def _started(command: list[str], environment: dict[str, str]) -> Iterator[Mpiexec]:
    """mpiexec and the ranks, in a session of their own. Their output is printed here, and they end here."""
    mpiexec = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**environment, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # Ctrl-C reaches this process alone, which ends them
    )
    quiet = threading.Event()
    reader = threading.Thread(target=_show, args=(mpiexec.stdout, quiet), daemon=True)
    try:
        reader.start()
        yield mpiexec
        if mpiexec.poll() is None:
            quiet.set()  # from now on mpiexec alone prints: it calls the end of the job a failure
    finally:
        if mpiexec.poll() is None:
            mpiexec.terminate()
            with suppress(subprocess.TimeoutExpired):
                mpiexec.wait(1)
        with suppress(ProcessLookupError, PermissionError):  # macOS forbids it for a group that is gone
            os.killpg(mpiexec.pid, signal.SIGKILL)
        mpiexec.wait()
        reader.join(1)


def _show(stdout: IO[bytes], quiet: threading.Event) -> None:
    """Print what mpiexec and the ranks say, until `quiet` is set."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with stdout:
        for said in iter(partial(os.read, stdout.fileno(), 2**16), b""):
            if not quiet.is_set():
                print(decoder.decode(said), end="", flush=True)
