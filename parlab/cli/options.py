"""The checks of all options: one table, applied before any work."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from parlab.arguments import one_of, optional, positive, whole

Rule = Callable[[str, Any], Any]
Words = argparse._SubParsersAction

MESH_RANKS = 256  # the most that `parlab train` cuts a model among: one thread a rank
MOST_ACTIONS = 2**18  # of a pipeline's schedule


def between(least: int, most: int) -> Rule:
    """The rule that accepts whole numbers from `least` to `most`."""

    def rule(name: str, value: int) -> None:
        if not least <= value <= most:
            raise ValueError(f"{name}={value}: must be a whole number from {least} to {most}")

    return rule


def path(text: str) -> Path:
    """The type of an option that is a path. An empty text would mean the current folder, and is refused."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def new_file(name: str, value: Path) -> None:
    """Refuse a path where no file can be written: a folder, or a path in a folder that is missing."""
    if value.is_dir():
        raise ValueError(f"{name}={str(value)!r}: it is a folder; a file is needed")
    if not value.parent.is_dir():
        raise ValueError(f"{name}={str(value)!r}: there is no folder {str(value.parent)!r}")
    if not os.access(value if value.exists() else value.parent, os.W_OK):
        raise ValueError(f"{name}={str(value)!r}: it cannot be written: permission denied")


def new_folder(name: str, value: Path) -> None:
    """Refuse a path where no folder can be made: it, or a folder above it, is a file or cannot be written."""
    nearest = next(folder for folder in (value, *value.absolute().parents) if folder.exists())
    if not nearest.is_dir():
        raise ValueError(f"{name}={str(value)!r}: {str(nearest)!r} is a file; a folder is needed")
    if not os.access(nearest, os.W_OK):
        raise ValueError(f"{name}={str(value)!r}: {str(nearest)!r} cannot be written: permission denied")


def old_folder(name: str, value: Path) -> None:
    """Refuse a path that is no folder."""
    if not value.is_dir():
        found = "it is a file; a folder is needed" if value.exists() else "there is no such folder"
        raise ValueError(f"{name}={str(value)!r}: {found}")


def old_file(name: str, value: Path) -> None:
    """Refuse a path where there is no file."""
    if not value.is_file():
        found = "it is a folder; a file is needed" if value.is_dir() else "there is no such file"
        raise ValueError(f"{name}={str(value)!r}: {found}")


_TRAINING: dict[str, Rule] = {  # of `train` and `trace`
    "--microbatches": optional(between(1, MOST_ACTIONS)),
    "--chunks": between(1, MOST_ACTIONS),
    "--zero": between(0, 3),
    "--attention": partial(one_of, choices=("ring", "ulysses", "allgather")),
    "--recompute": partial(one_of, choices=("none", "full")),
    "--config": optional(old_file),
    "--model": partial(one_of, choices=("llama-pocket", "mixtral-pocket")),
}

CHECKS: dict[str, dict[str, Rule]] = {  # by the command's word, and by the option
    "grade": {
        "folder": old_folder,
        "--seed": optional(partial(whole, least=0)),
        "--extra": between(0, 1000),
        "--seconds": positive,
        "--limit": positive,
        "--jobs": optional(between(1, 1000)),
    },
    "run": {
        "--ranks": between(1, 1024),  # one thread or process a rank
        "--engine": partial(one_of, choices=("threads", "mpi", "nccl")),
        "--collectives": partial(one_of, choices=("ours", "native")),
        "--trace": optional(new_file),
    },
    "train": {
        **_TRAINING,
        "--folder": optional(new_folder),
        "--every": partial(whole, least=1),
        "--steps": optional(partial(whole, least=1)),
    },
    "trace": {**_TRAINING, "file": new_file},
    "plan": {
        "--gpus": between(1, 10**6),
        "--batch": between(1, 10**9),
        "--sequence": between(1, 10**9),
        "--memory": optional(positive),
        "--top": between(1, 10**6),
    },
}

# The library's errors name its arguments; the command's errors name its options.
NAMES: dict[str, dict[str, str]] = {
    "grade": {"out": "--out"},
    "run": {"size": "--ranks", "engine": "--engine", "collectives": "--collectives"},
    "train": {"p": "pp", "m": "--microbatches", "schedule": "--schedule", "chunks": "--chunks"},
    "trace": {"p": "pp", "m": "--microbatches", "schedule": "--schedule", "chunks": "--chunks"},
    "plan": {
        "ranks": "--gpus",
        "products": "--products",
        "batch": "--batch",
        "sequence": "--sequence",
        "model": "--model",
        "cluster": "--cluster",
    },
}


def check(chosen: argparse.Namespace) -> None:
    """Apply the table to the options that were given.

    Raises:
        ValueError: an option cannot be used; the text has its name, its value, and what would be right.
    """
    for option, rule in CHECKS.get(chosen.word, {}).items():
        rule(option, getattr(chosen, option.lstrip("-")))


def say(text: str, end: str = "\n") -> None:
    """Print at once.

    Raises:
        OSError: standard output cannot be written; the error names it.
    """
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error
