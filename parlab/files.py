"""Files that are there as a whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write a file under a temporary name beside it, and let that take its place when all of it is on the disk.

    Args:
        path: an earlier file there stays whole until then.
        content: a text is written in UTF-8, its line ends as they are.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
