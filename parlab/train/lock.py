"""A lock on a folder, so that two runs never write into it at the same time.

The operating system holds the lock, on a file in the folder, and frees it when the process ends, however it ends: the
file of a process that was killed stops nobody. On a network file system the server holds the lock, for all hosts. The
text of the file names the process and the host that have the lock.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

if sys.platform == "win32":
    import msvcrt

    FAR = 2**30  # the locked byte: Windows lets nobody read it, and the file's text must be read

    def _lock(file: IO[str]) -> None:
        file.seek(FAR)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

    def _is_at(file: IO[str], path: Path) -> bool:
        return True  # an open file is never removed

    def _remove(file: IO[str], path: Path) -> None:
        file.close()  # an open file cannot be removed
        with suppress(PermissionError):  # another process has opened it meanwhile
            path.unlink(missing_ok=True)

else:
    import fcntl

    def _lock(file: IO[str]) -> None:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _is_at(file: IO[str], path: Path) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), path.stat())
        except FileNotFoundError:
            return False

    def _remove(file: IO[str], path: Path) -> None:
        path.unlink(missing_ok=True)  # while the lock is held: the file cannot be another process's yet
        file.close()


@contextmanager
def locked(folder: Path, purpose: str) -> Iterator[None]:
    """While this is entered for a folder and a purpose, no other process or thread enters it.

    Args:
        folder: made if it is not there, and removed again if nothing was written into it.
        purpose: names the file, `.{purpose}.lock`, which is removed at the end.

    Raises:
        ValueError: another process has entered it, or another thread of this one.
    """
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".{purpose}.lock"
    file = _open_locked(path, purpose)
    try:
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC")
        file.flush()
        yield
    finally:
        _remove(file, path)
        if made:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def _open_locked(path: Path, purpose: str) -> IO[str]:
    """The file at `path`, locked by this process."""
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            _lock(file)
        except (BlockingIOError, PermissionError):
            file.close()
            raise ValueError(
                f"folder={str(path.parent)!r}: another run is {purpose} there ({_holder(path)}): "
                "wait until it ends, or use another folder"
            ) from None
        except OSError as error:
            warnings.warn(f"{path}: there are no locks here ({error}); let no other run write there", stacklevel=4)
        if _is_at(file, path):
            return file
        file.close()  # its last holder has just removed it


def _holder(path: Path) -> str:
    """The process that has the lock, as the file names it."""
    with suppress(OSError):
        if text := path.read_text(encoding="utf-8"):
            return text
    return "its process has not said which it is"
