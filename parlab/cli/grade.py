"""`parlab grade`: mark a folder of submissions."""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path

from parlab.arguments import positive, whole
from parlab.cli.options import Words, check_between, path, say


def add(words: Words) -> None:
    """Add the word and its options."""
    word = words.add_parser("grade", help="mark a folder of submissions", description=grade.__doc__)
    word.add_argument("folder", type=path, help="notebooks or programs, one a student, or a folder a student")
    word.add_argument("--out", type=path, default=Path("grades.csv"), help="the table; reports go beside it")
    word.add_argument("--exercises", default="", help="01.reduce_scatter,01.circulant; else all that are checked")
    word.add_argument("--seed", type=int, help="of the cases drawn anew, the same for all; else a new one")
    word.add_argument("--extra", type=int, default=4, help="how many cases are drawn")
    word.add_argument("--seconds", type=float, default=10.0, help="limit of a case")
    word.add_argument("--limit", type=float, default=120.0, help="seconds for a submission, whatever it does")
    word.add_argument("--jobs", type=int, help="how many at once; else as many as there are cores")
    word.set_defaults(command=grade, names={"out": "--out"})


def grade(chosen: argparse.Namespace) -> int:
    """Mark each submission in a process of its own, on a copy; write a table, and a report for each."""
    from parlab.labs import EXERCISES, marking

    folder = chosen.folder
    if not folder.is_dir():
        found = "it is a file; a folder is needed" if folder.exists() else "there is no such folder"
        raise ValueError(f"folder={str(folder)!r}: {found}")
    if chosen.seed is not None:
        whole("--seed", chosen.seed, 0)
    check_between("--extra", chosen.extra, 0, 1000)
    positive("--seconds", chosen.seconds)
    positive("--limit", chosen.limit)
    if chosen.jobs is not None:
        check_between("--jobs", chosen.jobs, 1, 1000)
    exercises = list(dict.fromkeys(filter(None, chosen.exercises.split(","))))
    if unknown := [name for name in exercises if name not in EXERCISES]:
        raise ValueError(f"--exercises={unknown[0]}: the exercises are {', '.join(EXERCISES)}")
    seed = secrets.randbelow(10**6) if chosen.seed is None else chosen.seed
    options = {name: getattr(chosen, name) for name in ("extra", "seconds", "limit", "jobs")}
    marking.grade(folder, chosen.out, exercises, seed=seed, say=say, **options)
    say(f"{chosen.out}: written; --seed {seed} draws the same cases again")
    return 0
