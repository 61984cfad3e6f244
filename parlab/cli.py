"""The command `parlab`; each of its words is a thin call."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `parlab ARGUMENTS`; the exit status: 0, or 2 where the arguments cannot be used."""
    parser = argparse.ArgumentParser(prog="parlab", description="A laboratory for large-model parallel training.")
    words = parser.add_subparsers(dest="word", required=True)
    _add_grade(words)
    _add_plan(words)
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


def _add_plan(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    word = words.add_parser("plan", help="choose a layout for a model on a cluster", description=_plan.__doc__)
    word.add_argument("--model", required=True, help="llama-405b or 405b, gpt-175b, ...")
    word.add_argument("--cluster", default="dgx_h100", help="dgx_h100, dgx_a100 or classroom")
    word.add_argument("--gpus", type=int, required=True, help="all of them are used")
    word.add_argument("--batch", type=int, required=True, help="sequences of a step, of all replicas together")
    word.add_argument("--sequence", type=int, required=True, help="tokens of each")
    word.add_argument("--memory", type=float, help="GiB a device; else the device's")
    word.add_argument("--offload", action="store_true", help="also layouts whose optimizer is on the host")
    word.add_argument("--top", type=int, default=5, help="how many are listed")
    word.add_argument("--json", action="store_true", help="print the same as JSON")
    word.set_defaults(does=_plan)


def _plan(chosen: argparse.Namespace) -> int:
    """Estimate every layout that is possible; print the best, what their time and memory go to, why the others lose."""
    from parlab.plan.report import as_json, as_text, plans_of

    plans = plans_of(
        chosen.model, chosen.cluster, chosen.gpus, chosen.batch, chosen.sequence, chosen.memory, chosen.offload
    )
    print(as_json(plans, chosen.top) if chosen.json else as_text(plans, chosen.top))
    return 0


if __name__ == "__main__":
    sys.exit(main())
