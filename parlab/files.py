"""Files that are there as a whole, or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write a file under a temporary name beside it, and let that take its place when all of it is on the disk.

    Args:
        path: an earlier file there stays whole until then; what a link leads to is replaced, not the link; what is no
            file, such as /dev/stdout, is written to.
        content: a text is written in UTF-8, its line ends as they are.

    Raises:
        OSError: there is no such folder, or it is a folder, or the disk is full; `filename` is the path.
    """
    target, data = Path(path), content.encode() if isinstance(content, str) else content
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(target.resolve(), data)
    except OSError as error:  # that of a full disk has no path
        raise OSError(error.errno, error.strerror, error.filename or str(target)) from error


def _replace(target: Path, data: bytes) -> None:
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "There is no such folder", str(target.parent))
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")  # another writer has another one
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
