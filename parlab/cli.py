"""The command `parlab`; each of its words is a thin call."""

from __future__ import annotations

import argparse
import importlib
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `parlab ARGUMENTS`; the exit status: 0, or 2 where the arguments cannot be used."""
    parser = argparse.ArgumentParser(prog="parlab", description="A laboratory for large-model parallel training.")
    words = parser.add_subparsers(dest="word", required=True)
    _add_grade(words)
    _add_doctor(words)
    _add_run(words)
    chosen = parser.parse_args(arguments)
    try:
        return int(chosen.does(chosen))
    except ValueError as error:
        print(f"parlab {chosen.word}: {error}", file=sys.stderr)
        return 2


def _add_grade(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    word = words.add_parser("grade", help="mark a folder of submissions", description=_grade.__doc__)
    word.add_argument("folder", type=Path, help="notebooks or programs, one a student, or a folder a student")
    word.add_argument("--out", type=Path, default=Path("grades.csv"), help="the table; reports go beside it")
    word.add_argument(
        "--exercises", default="", help="01.reduce_scatter,01.average_gradients; else all that are checked"
    )
    word.add_argument("--seed", type=int, help="of the cases drawn anew, the same for all; else a new one")
    word.add_argument("--extra", type=int, default=4, help="how many cases are drawn")
    word.add_argument("--seconds", type=float, default=10.0, help="limit of a case")
    word.add_argument("--limit", type=float, default=120.0, help="seconds for a submission, whatever it does")
    word.add_argument("--jobs", type=int, help="how many at once; else as many as there are cores")
    word.set_defaults(does=_grade)


def _grade(chosen: argparse.Namespace) -> int:
    """Mark each submission in a process of its own, on a copy; write a table, and a report for each."""
    from parlab.labs import EXERCISES
    from parlab.labs.marking import grade

    exercises = [name for name in chosen.exercises.split(",") if name]
    if unknown := [name for name in exercises if name not in EXERCISES]:
        raise ValueError(f"--exercises {unknown[0]}: the exercises are {', '.join(EXERCISES)}")
    if not chosen.folder.is_dir():
        raise ValueError(f"folder={str(chosen.folder)!r}: there is no such folder")
    for name in ("seconds", "limit", "jobs"):
        if (value := getattr(chosen, name)) is not None and not value > 0:
            raise ValueError(f"--{name} {value}: a positive number is needed")
    if chosen.extra < 0:
        raise ValueError(f"--extra {chosen.extra}: a number that is not negative is needed")
    seed = secrets.randbelow(10**6) if chosen.seed is None else chosen.seed
    options = {name: getattr(chosen, name) for name in ("extra", "seconds", "limit", "jobs")}
    grade(chosen.folder, chosen.out, exercises, seed=seed, say=lambda line: print(line, flush=True), **options)
    print(f"{chosen.out}: written; --seed {seed} draws the same cases again")
    return 0


def _add_doctor(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    words.add_parser("doctor", help="what is usable here", description=_doctor.__doc__).set_defaults(does=_doctor)


def _doctor(chosen: argparse.Namespace) -> int:
    """Try what the notebooks need, and what they can use; the exit status is 0 if they can run."""
    from parlab.world.doctor import findings, table

    found = findings()
    print(table(found))
    return int(any(finding.needed and not finding.works for finding in found))


def _add_run(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    word = words.add_parser("run", help="run a rank program", description=_run.__doc__)
    word.add_argument("program", help="module:function, whose only parameter is the rank's comm")
    word.add_argument("--ranks", type=int, required=True)
    word.add_argument("--engine", default="threads", help="threads or mpi")
    word.add_argument("--collectives", default="ours", help="ours, or on mpi native")
    word.add_argument("--trace", type=Path, help="write the timeline, the measured one if there is one, for Perfetto")
    word.set_defaults(does=_run)


def _run(chosen: argparse.Namespace) -> int:
    """Run module:function on ranks; print what it printed, and the timelines."""
    from parlab.world import run

    module, _, name = chosen.program.partition(":")
    sys.path.insert(0, "")  # modules of this folder too, as python -m has it
    try:
        program = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"program={chosen.program!r}: {error}; module:function is needed") from error
    done = run(program, chosen.ranks, engine=chosen.engine, collectives=chosen.collectives)
    timelines = [done.timeline, *([done.wallclock] if done.wallclock else [])]
    print(*timelines, sep="\n")
    if chosen.trace:
        timelines[-1].save_chrome_trace(chosen.trace)
    return 0


if __name__ == "__main__":
    sys.exit(main())
