"""`parlab run`: run a rank program."""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
import traceback
from typing import Any

from parlab.cli.options import Words, check_between, check_new_file, path, say

MOST_RANKS = 1024  # one thread or process a rank


def add(words: Words) -> None:
    """Add the word and its options."""
    word = words.add_parser("run", help="run a rank program", description=run.__doc__)
    word.add_argument("program", help="module:function, whose only parameter is the rank's comm")
    word.add_argument("--ranks", type=int, required=True)
    word.add_argument("--engine", default="threads", help="threads, mpi or nccl")
    word.add_argument("--collectives", default="ours", help="ours, or on mpi native")
    word.add_argument("--trace", type=path, help="write the timeline, the measured one if there is one, for Perfetto")
    names = {"size": "--ranks", "engine": "--engine", "collectives": "--collectives"}
    word.set_defaults(command=run, names=names)


def run(chosen: argparse.Namespace) -> int:
    """Run module:function on ranks; print what it printed, and the timelines."""
    from parlab.world import run as run_ranks

    check_between("--ranks", chosen.ranks, 1, MOST_RANKS)
    if chosen.trace is not None:
        check_new_file("--trace", chosen.trace)
    program = _program(chosen.program)
    try:
        done = run_ranks(program, chosen.ranks, engine=chosen.engine, collectives=chosen.collectives)
    except SystemExit as ended:
        raise ValueError(f"program={chosen.program!r}: a rank calls sys.exit({ended.code!r})") from ended
    timelines = [done.timeline, *([done.wallclock] if done.wallclock else [])]
    for timeline in timelines:
        say(str(timeline))
    if chosen.trace:
        timelines[-1].save_chrome_trace(chosen.trace)
    return 0


def _program(named: str) -> Any:
    """The function `module:function`.

    Raises:
        ValueError: it cannot be imported, or is no function that takes the rank's comm alone.
    """
    module, _, name = named.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise ValueError(f"program={named!r}: module:function is needed")
    sys.path.insert(0, "")  # modules of this folder too, as python -m has it
    try:
        program = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"program={named!r}: {error}; module:function is needed") from error
    except SystemExit as ended:
        raise ValueError(f"program={named!r}: {module} calls sys.exit({ended.code!r}) when it is imported") from ended
    except SyntaxError as error:
        raise ValueError(f"program={named!r}: {error.filename}, line {error.lineno}: {error.msg}") from error
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{place.filename}, line {place.lineno}: {type(error).__name__}: {error}"
        raise ValueError(f"program={named!r}: {said}") from error
    if isinstance(program, type) or not callable(program):
        found = "a class" if isinstance(program, type) else f"{program!r:.60}"
        raise ValueError(f"program={named!r}: it is {found}; a function that takes comm is needed")
    if not _takes_one_argument(program):
        raise ValueError(f"program={named!r}: it takes {inspect.signature(program)}; it must take comm alone")
    return program


def _takes_one_argument(program: Any) -> bool:
    try:
        inspect.signature(program).bind("comm")
    except TypeError:
        return False
    except ValueError:  # a built-in function without a signature: the call will tell
        return True
    return True
