"""The command `parlab`. Each of its words is a file of this folder, and each is a thin call of the library.

A word's `add` declares its options, and sets two things that `main` reads: `command`, a function of the parsed options
that returns the exit status; and `names`, the option that stands for each argument of the library in its errors.

Invariant: whatever is refused, by a word or by the library, is one line on standard error, and status 2. An error of a
program that `parlab run` started keeps its traceback.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from parlab.cli import doctor, grade, plan, run, trace, train

WORDS = (grade, doctor, run, train, trace, plan)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Raise the error: `main` prints it, without the list of all options."""
        raise ValueError(f"{message:.300} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `parlab ARGUMENTS`.

    What a rank program of `parlab run` raises is raised.

    Returns:
        The exit status: 0; 1 where `parlab doctor` finds that something needed is missing, or the last losses of
        `parlab train` are not numbers; 2 where the arguments cannot be used; 130 after Ctrl-C; 141 where nobody reads
        what is printed any more (`| head`).
    """
    parser = Parser(prog="parlab", description="A laboratory for large-model parallel training.")
    words = parser.add_subparsers(dest="word", required=True)
    for word in WORDS:
        word.add(words)
    chosen = argparse.Namespace(word="")
    try:
        parser.parse_args(arguments, chosen)
        return int(chosen.command(chosen))
    except BrokenPipeError:
        _close_output()
        return 141
    except (ValueError, OSError, MemoryError) as error:
        if chosen.word == "run" and hasattr(error, "run"):  # the program's own error: its author needs the place
            raise
        print(f"{f'parlab {chosen.word}'.strip()}: {_in_words(error, getattr(chosen, 'names', {}))}", file=sys.stderr)
        if isinstance(error, OSError):
            _close_output()
        return 2
    except KeyboardInterrupt:
        return 130


def _in_words(error: Exception, names: Mapping[str, str]) -> str:
    """The library's error, with the names of the command's options in place of its arguments'."""
    if isinstance(error, MemoryError):
        return f"there is not enough memory: {error}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    said = str(error)
    for name, option in names.items():
        said = re.sub(rf"(?<![\w-]){name}=", f"{option}=", said)
    return said


def _close_output() -> None:
    """Send what is still to be printed nowhere; else the interpreter tries to write it at its end, and fails again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
