"""One submission: a copy of the notebook runs under nbclient in a kernel of its own, every cell, errors or not.

Its checks append their reviews to a file (`parlab.labs.recording`). A cell that takes too long is interrupted. When
the time of the submission is up, its kernel is killed with the processes that it started.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import nbformat
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

from parlab.labs import recording

CELL = 5  # the time limit of a cell, in time limits of a case: its checks run inside the cell
SHOWN = 3000  # characters of an error
LOOK = 0.3  # seconds between two looks at whether the time is up
BEGIN = "import parlab.labs.recording\nparlab.labs.recording.begin(globals())\ndel parlab"
END = "import parlab.labs\nparlab.labs.recording.check_the_rest(globals(), parlab.labs.EXERCISES)"
COLOR = re.compile(r"\x1b\[[\d;]*m")


@dataclass
class Execution:
    """The result of running a submission.

    Attributes:
        reviews: by exercise, as `recording.read` gives them.
        errors: the errors of cells that failed.
        notes: cells that ended the kernel, and the end by the time limit.
    """

    reviews: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def cells(path: Path) -> list[str]:
    """The code of a notebook, cell by cell; of a program, all of it as one cell.

    Raises:
        ValueError: it is not a notebook.
    """
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    if path.suffix.lower() != ".ipynb":
        return [text]
    if not text.strip():
        return []
    try:
        of_code = [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        return [source if isinstance(source, str) else "".join(source) for source in of_code]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"it is not a notebook: {type(error).__name__}: {error}") from None


def run_submission(
    path: Path, below: Path, options: dict[str, Any], limit: float, given_up: Callable[[], bool]
) -> Execution:
    """Run a copy of the submission. If a cell ends the kernel, leave it out and run another copy from the start.

    Args:
        path: the notebook or program.
        below: its path below the folder of submissions.
        options: the arguments of `Exercise.review`.
        limit: the time limit of the submission, in seconds.
        given_up: the run ends when this returns True.

    Raises:
        ValueError: the file is not a notebook.
    """
    sources = cells(path)
    if not any(source.strip() for source in sources):
        return Execution()
    ends = time.monotonic() + limit
    execution = Execution()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        file = Path(place) / "reviews"
        environment = {recording.FILE: str(file), recording.OPTIONS: json.dumps(options)}
        for number in itertools.count(1):
            copy = _copy(path, below, Path(place) / f"copy {number}")
            kernel_run = KernelRun(sources, CELL * options["seconds"])
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:  # ZeroMQ needs it on Windows
                runner.run(kernel_run.run(copy.parent, environment, lambda: given_up() or time.monotonic() > ends))
            if kernel_run.finished or given_up():
                break
            late = time.monotonic() > ends
            execution.notes.append(f"still running after {limit:g} s: ended" if late else kernel_run.ending())
            if late or kernel_run.cell == 0:
                break
            sources = kernel_run.sources_without_the_last()
        execution.reviews = recording.read(file)
        execution.errors = kernel_run.errors()
    return execution


def _copy(path: Path, below: Path, place: Path) -> Path:
    """Copy the submission below `place`, with the files that were handed in beside it."""
    copy = place / below
    copy.parent.mkdir(parents=True)
    if len(below.parts) > 1:
        folder = path.parents[len(below.parts) - 2]
        shutil.copytree(folder, place / below.parts[0], symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copyfile(path, copy)
    return copy


class KernelRun:
    """One run of all cells in one kernel.

    Args:
        sources: the text of the cells.
        seconds: the time limit of a cell.

    Attributes:
        cell: the number of the last cell that began: 0 for `BEGIN`, 1 for the first cell, and so on up to `END`.
        finished: True if every cell ran to its end.
        exit_code: the kernel's exit code, if it ended by itself.
    """

    def __init__(self, sources: Sequence[str], seconds: float):
        self.sources, self.seconds = sources, seconds
        self.notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, [BEGIN, *sources, END])])
        self.cell = 0
        self.finished = False
        self.exit_code: int | None = None

    async def run(self, folder: Path, environment: dict[str, str], time_is_up: Callable[[], bool]) -> None:
        """Run the cells in `folder`, until all have run, one has ended the kernel, or the time is up."""
        manager = AsyncKernelManager(kernel_name="python3")
        client = ErrorsOnly(
            self.notebook,
            manager,
            timeout=self.seconds,
            interrupt_on_timeout=True,
            allow_errors=True,
            extra_arguments=["--InteractiveShellApp.ignore_cwd=True"],
            on_cell_start=self._starts,
        )
        start: dict[str, Any] = {
            "cwd": str(folder),
            "env": _environment() | environment,
            "stdout": DEVNULL,
            "stderr": DEVNULL,
        }
        cells = asyncio.ensure_future(client.async_execute(**start))
        try:
            while not cells.done() and not time_is_up():
                await asyncio.wait([cells], timeout=LOOK)
            self.finished = cells.done() and cells.exception() is None
        finally:
            cells.cancel()
            await asyncio.gather(cells, return_exceptions=True)
            if manager.provisioner is not None:
                self.exit_code = await manager.provisioner.poll()
            if client.kc is not None:
                client.kc.stop_channels()
            await manager.shutdown_kernel(now=True)  # kills all processes of its group

    def _starts(self, cell: nbformat.NotebookNode, cell_index: int) -> None:
        self.cell = cell_index

    def ending(self) -> str:
        """A note about the cell that ended the kernel."""
        if self.cell == 0:
            return f"no kernel starts here (exit code {self.exit_code}): not marked"
        place = f"cell {self.cell}" if self.cell <= len(self.sources) else "a check behind the last cell"
        return f"{place}: it ended the process (exit code {self.exit_code}), and was left out"

    def sources_without_the_last(self) -> list[str]:
        """The cells for the next run: the cell that ended the kernel is empty."""
        return ["" if number == self.cell else text for number, text in enumerate(self.sources, start=1)]

    def errors(self) -> list[str]:
        """The errors of the submission's cells."""
        return [
            f"cell {number}: {self._explained(output)}"
            for number, cell in enumerate(self.notebook.cells[1:-1], start=1)
            for output in cell.outputs
        ]

    def _explained(self, error: nbformat.NotebookNode) -> str:
        traceback = COLOR.sub("", "\n".join(error.traceback))
        if error.ename == "KeyboardInterrupt":
            return f"still running after {self.seconds:g} s\n{traceback:.{SHOWN}}"
        return f"raised {error.ename}: {error.evalue:.{SHOWN}}\n{traceback:.{SHOWN}}"


class ErrorsOnly(NotebookClient):
    """Keeps no output but errors: a submission may print without end."""

    def output(
        self, outs: list[nbformat.NotebookNode], msg: dict[str, Any], display_id: str | None, cell_index: int
    ) -> nbformat.NotebookNode | None:
        """As `NotebookClient.output`."""
        return super().output(outs, msg, display_id, cell_index) if msg["msg_type"] == "error" else None


def _environment() -> dict[str, str]:
    """The kernel's environment: it finds this parlab, draws without a screen, and orders sets alike in each run."""
    paths = filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")])
    own = {"PYTHONPATH": os.pathsep.join(paths), "MPLBACKEND": "Agg", "PYTHONHASHSEED": "0"}
    return {**os.environ, **own, "PYTHONDONTWRITEBYTECODE": "1"}
