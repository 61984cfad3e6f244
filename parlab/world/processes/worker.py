"""A process that `run` starts: it fetches the program by a socket, and ends when the process that called `run` does."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Client, Connection

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
    connection = None
    data = b""
    if transport.rank == 0:
        connection = Client(f"{folder}/listener")
        data = connection.recv_bytes()
        shutil.rmtree(folder, ignore_errors=True)  # the process that made it may be killed
        ended = threading.Event()
        threading.Thread(target=_end_with, args=(connection, ended), daemon=True).start()
    job, errors = unpack_program(transport.share(data))
    with np.errstate(**errors):  # as the caller's, which threads inherit
        reply = run_this_rank(job, transport)
    sys.stdout.flush()
    transport.share(b"")  # the others stay until rank 0 has all records
    if connection:
        ended.set()
        connection.send_bytes(pickle.dumps(reply))


def _refuse(folder: str, why: str) -> None:
    """Let `run` raise a ValueError. The caller listens to the first process that says so."""
    with suppress(OSError, EOFError), Client(f"{folder}/listener") as connection:
        connection.recv_bytes()
        connection.send_bytes(pickle.dumps(ValueError(why)))


def _end_with(connection: Connection, ended: threading.Event) -> None:
    """End all processes when the connection ends: the process that called `run` is gone."""
    with suppress(EOFError, OSError):
        connection.recv_bytes()
    if not ended.is_set():
        os._exit(1)
