"""Mark a folder of submissions: a copy of each runs in a kernel of its own, and its reviews become a row of a table."""

from __future__ import annotations

import csv
import html
import io
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

from parlab.files import write_whole
from parlab.labs.exercise import DRAWN, PASSED

MISSING = "missing"
Runner = Callable[..., Any]  # `submission.run_submission`


@dataclass(frozen=True)
class Mark:
    """The result of marking one submission.

    Attributes:
        name: its path below the folder, without the ending.
        reviews: by exercise, the dict of `Review.as_dict` with the answer's `source`.
        errors: the errors of cells that failed.
        flags: hints for a person who looks at the submission.
        note: cells that ended the kernel, or why the submission was not marked to its end; "" for none.
    """

    name: str
    reviews: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    note: str = ""

    def status(self, exercise: str) -> str:
        """The status of an exercise's review, or "missing"."""
        return self.reviews[exercise]["status"] if exercise in self.reviews else MISSING

    def passed(self, exercises: Sequence[str]) -> int:
        """The number of these exercises that the submission solves."""
        return sum(self.status(exercise) == PASSED for exercise in exercises)


def submissions(folder: Path) -> tuple[list[Path], list[Path]]:
    """The submissions below `folder`, and the programs that are none, as they lie beside a notebook.

    In `folder` itself each file is one student's, so none of its programs is left out.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in (".ipynb", ".py") and path.is_file()]
    seen = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    programs = [path for path in seen if path.suffix.lower() == ".py"]
    with_notebook = {path.parent for path in seen if path not in programs}
    beside = [path for path in programs if path.parent in with_notebook - {folder}]
    return [path for path in seen if path not in beside], beside


def grade(
    folder: Path,
    out: Path,
    exercises: Sequence[str] = (),
    *,
    seed: int = 0,
    extra: int = DRAWN,
    seconds: float = 10.0,
    limit: float = 120.0,
    jobs: int | None = None,
    say: Callable[[str], None] = print,
) -> list[Mark]:
    """Mark every submission below `folder`, and write `out` and a report for each into the folder beside it.

    Args:
        folder: one notebook or program for each student, or one folder for each student. In a student's folder, a
            program beside a notebook is left out, and the notebook's note names it.
        out: the table (CSV), one row for each submission; the reports go to `out` without its ending, with "-reports".
        exercises: the columns of the table; (): all that some submission checks.
        seed, extra: the seed and the number of the newly drawn cases, the same for all submissions.
        seconds: the time limit of a case.
        limit: the time limit of a submission, in seconds.
        jobs: the number of submissions that run at once; None: the number of cores.
        say: called with a line about programs that are left out, and with a line about each submission.

    Raises:
        ValueError: there is nothing to mark, no table can be written, or nbclient is not installed.
    """
    try:
        from parlab.labs import submission
    except ImportError as error:
        raise ValueError(f"no module {error.name!r}: python -m pip install -e '.[grading]' adds it") from error
    paths, beside = submissions(folder)
    if not paths:
        raise ValueError(f"folder={str(folder)!r}: it holds no .ipynb or .py")
    if out.resolve() in {path.resolve() for path in (*paths, *beside)}:
        raise ValueError(f"out={str(out)!r}: it is a submission; the name of a table is needed, such as grades.csv")
    reports = _reports(out)
    if beside:
        say(f"left out, as beside a notebook: {', '.join(path.relative_to(folder).as_posix() for path in beside)}")
    options = {"seconds": seconds, "seed": seed, "extra": extra}
    marks = []
    names = _names(paths, folder)
    given_up = Event()
    pool = ThreadPoolExecutor(jobs or os.cpu_count())
    try:
        waiting = [
            pool.submit(_marked, submission.run_submission, path, name, folder, options, limit, given_up)
            for path, name in names.items()
        ]
        for number, done in enumerate(as_completed(waiting), start=1):
            mark = done.result()
            marks.append(mark)
            flags = f"; flags: {len(mark.flags)}" if mark.flags else ""
            note = f"; {mark.note}" if mark.note else ""
            counted = exercises or list(mark.reviews)
            solved = f"{mark.passed(counted)} of {len(counted)} passed"
            say(f"[{number:>3}/{len(paths)}] {mark.name}: {solved}{flags}{note}")
    finally:  # also after Ctrl-C
        given_up.set()
        pool.shutdown(cancel_futures=True)
    left_out = {name: [one.name for one in beside if one.parent == path.parent] for path, name in names.items()}
    marks = [_with_left_out(mark, left_out[mark.name]) for mark in sorted(marks, key=lambda mark: mark.name)]
    found = {name for mark in marks for name in mark.reviews}
    exercises = exercises or sorted(found)
    write_whole(out, _table(marks, exercises))
    for mark in marks:
        report = reports / f"{mark.name}.html"
        report.parent.mkdir(parents=True, exist_ok=True)
        write_whole(report, _page(mark, exercises))
    return marks


def _reports(out: Path) -> Path:
    """Make the folder of reports before marking, so that no mark is lost."""
    if out.name in ("", "..") or (out.exists() and not out.is_file()):
        raise ValueError(f"out={str(out)!r}: it is no file; the name of a table is needed, such as grades.csv")
    reports = out.with_name(f"{out.stem}-reports")
    try:
        reports.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"out={str(out)!r}: no folder {str(reports)!r} can be made: {error.strerror}") from error
    return reports


def _names(paths: Sequence[Path], folder: Path) -> dict[Path, str]:
    """The name of each submission: its path without the ending, which stays where two names would be the same."""
    stems = Counter(path.with_suffix("") for path in paths)
    kept = {path: path if stems[path.with_suffix("")] > 1 else path.with_suffix("") for path in paths}
    return {path: name.relative_to(folder).as_posix() for path, name in kept.items()}


def _with_left_out(mark: Mark, programs: Sequence[str]) -> Mark:
    """The mark with a note about the programs beside the submission, which were not marked."""
    notes = [mark.note, f"left out, as beside a notebook: {', '.join(programs)}" if programs else ""]
    return replace(mark, note="; ".join(filter(None, notes)))


def _marked(
    run: Runner, path: Path, name: str, folder: Path, options: dict[str, Any], limit: float, given_up: Event
) -> Mark:
    try:
        execution = run(path, path.relative_to(folder), options, limit, given_up.is_set)
    except (ValueError, OSError) as error:  # not a notebook, or it cannot be read or copied
        return Mark(name, note=str(error))
    flags = [f"{exercise}: {flag}" for exercise, review in execution.reviews.items() for flag in review["flags"]]
    return Mark(name, execution.reviews, execution.errors, flags, "; ".join(dict.fromkeys(execution.notes)))


def _table(marks: list[Mark], exercises: Sequence[str]) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["submission", "passed", "of", *exercises, "flags", "note"])
    for mark in marks:
        statuses = [mark.status(exercise) for exercise in exercises]
        flags = "; ".join(dict.fromkeys(mark.flags))
        rows.writerow([mark.name, mark.passed(exercises), len(exercises), *statuses, flags, mark.note])
    return text.getvalue()


def _page(mark: Mark, exercises: Sequence[str]) -> str:
    """The report of one submission."""
    lines = [
        f"<h1>{html.escape(mark.name)}</h1>",
        f"<p>{mark.passed(exercises)} of {len(exercises)} exercises passed</p>",
    ]
    lines += [f"<p>{html.escape(mark.note)}</p>"] * bool(mark.note)
    for title, entries in (("To look at", mark.flags), ("Cells that failed", mark.errors)):
        if entries:
            shown = "".join(f"<li><pre>{html.escape(entry)}</pre></li>" for entry in dict.fromkeys(entries))
            lines.append(f"<h2>{title}</h2><ul>{shown}</ul>")
    for exercise in exercises:
        review = mark.reviews.get(exercise, {"text": f"{exercise}: {MISSING}", "source": ""})
        lines.append(f"<h2>{exercise}</h2><pre>{html.escape(review['text'])}</pre>")
        lines += [f"<details><summary>answer</summary><pre>{html.escape(review['source'])}</pre></details>"]
    head = f'<!doctype html><meta charset="utf-8"><title>{html.escape(mark.name)}</title>'
    return "\n".join(
        [f"{head}<style>body {{ max-width: 60em; margin: 2em auto; font-family: sans-serif }}</style>", *lines]
    )
