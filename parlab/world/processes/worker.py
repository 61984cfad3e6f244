"""A process that `run` starts: it fetches the program by a socket, and ends when the process that called `run` does."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Client

import numpy as np

from parlab.world.processes import machine
from parlab.world.processes.job import run_this_rank
from parlab.world.processes.joining import transport_of
from parlab.world.processes.pickling import unpack_program


def main(library: str, folder: str, size: str) -> None:
    """The main function of a process that `run` has started: fetch the program by a socket, and run it."""
    transport = transport_of(library)
    if transport.size != int(size):
        found = f"{size} processes were started, and each finds {transport.size}"
        _refuse(folder, f"size={size}: {found}: {machine.DIFFERENT_MPIS}")
        return
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    caller = _Caller(folder) if transport.rank == 0 else None
    job, errors = unpack_program(transport.share(b"" if caller is None else caller.program))
    with np.errstate(**errors):  # as the caller's, which threads inherit
        reply = run_this_rank(job, transport)
    sys.stdout.flush()
    transport.share(b"")  # the others stay until rank 0 has all records
    if caller is not None:
        caller.answer(reply)


class _Caller:
    """The process that called `run`, and its program. If it ends before it has an answer, all processes end."""

    def __init__(self, folder: str):
        self._connection = Client(f"{folder}/listener")
        self.program = self._connection.recv_bytes()
        shutil.rmtree(folder, ignore_errors=True)  # the process that made it may be killed
        self._answered = threading.Event()
        threading.Thread(target=self._end_when_caller_ends, daemon=True).start()

    def answer(self, reply: object) -> None:
        """Send the records and reports of all ranks."""
        self._answered.set()
        self._connection.send_bytes(pickle.dumps(reply))

    def _end_when_caller_ends(self) -> None:
        """End this process, and so all of them, if the connection ends before there is an answer."""
        with suppress(EOFError, OSError):
            self._connection.recv_bytes()
        if not self._answered.is_set():
            os._exit(1)


def _refuse(folder: str, why: str) -> None:
    """Let `run` raise a ValueError. The caller listens to the first process that says so."""
    with suppress(OSError, EOFError), Client(f"{folder}/listener") as connection:
        connection.recv_bytes()
        connection.send_bytes(pickle.dumps(ValueError(why)))
