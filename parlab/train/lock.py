"""A lock on a folder, so that two runs never write into it at the same time.

`filelock` asks the operating system for it, which frees it when the process ends, however it ends: the file of a
process that was killed stops nobody. On a network file system the server holds the lock, for all hosts.
"""

from __future__ import annotations

import errno
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP)  # errors of a file system that has none


@contextmanager
def locked(folder: Path, purpose: str) -> Iterator[None]:
    """While this is entered for a folder and a purpose, no other process or thread enters it.

    Args:
        folder: made if it is not there, and removed again if nothing was written into it.
        purpose: names two files, which are removed at the end: `.{purpose}.lock`, and `.{purpose}.holder`, which says
            the process and the host that have the lock. (Windows lets nobody read a locked file.)

    Raises:
        ValueError: another process has entered it, or another thread of this one.
    """
    from filelock import FileLock, Timeout  # not at the top: in a browser, which has no locks, the import warns

    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    path, holder = folder / f".{purpose}.lock", folder / f".{purpose}.holder"
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(
            f"folder={str(folder)!r}: another run is {purpose} there ({_named_in(holder)}): "
            "wait until it ends, or use another folder"
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        warnings.warn(f"{path}: there are no locks here ({error}); let no other run write there", stacklevel=3)
    try:
        since = f"since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()}, {since}", encoding="utf-8")
        yield
    finally:
        holder.unlink(missing_ok=True)
        with suppress(OSError):  # Windows removes no open file; there the release does
            path.unlink(missing_ok=True)  # while the lock is held: the file cannot be another process's yet
        lock.release()
        if made:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def _named_in(holder: Path) -> str:
    """The process that has the lock, as it has said itself."""
    with suppress(OSError):
        if text := holder.read_text(encoding="utf-8"):
            return text
    return "its process has not said which it is"
