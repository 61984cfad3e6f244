"""Types and checks of options that several words have, and the printing of all."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

Words = argparse._SubParsersAction


def path(text: str) -> Path:
    """The type of an option that is a path. An empty text would mean the current folder, and is refused."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def check_between(option: str, value: int, least: int, most: int) -> None:
    """Refuse a number that the command cannot serve."""
    if not least <= value <= most:
        raise ValueError(f"{option}={value}: must be a whole number from {least} to {most}")


def check_new_file(option: str, value: Path) -> None:
    """Refuse a path where no file can be written, before the work whose result it is to hold."""
    if value.is_dir():
        raise ValueError(f"{option}={str(value)!r}: it is a folder; a file is needed")
    if not value.parent.is_dir():
        raise ValueError(f"{option}={str(value)!r}: there is no folder {str(value.parent)!r}")
    if not os.access(value if value.exists() else value.parent, os.W_OK):
        raise ValueError(f"{option}={str(value)!r}: it cannot be written: permission denied")


def say(text: str, end: str = "\n") -> None:
    """Print at once.

    Raises:
        OSError: standard output cannot be written; the error names it.
    """
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error
