"""Open the laboratory on copies of the notebooks that are yours: `python -m tools.open_lab`.

The folder `work` gets a copy of each, without outputs, because they would give away what a lesson asks about. Only the
first screen, above the first `##` heading, keeps its pictures, but not the outputs of its guesses. A new edition
replaces a copy that nobody has changed. If the copy has changes, it stays as it is, and the new edition is written
beside it as `NAME_2.ipynb`, with the answers of the old copy, exercise by exercise.
"""

import argparse
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.sign import NotebookNotary

from parlab.files import write_whole
from tools.exercises import CHECK, NOTEBOOKS, exercises
from tools.store_outputs import WIDGET

SHIPPED = Path(__file__).parent / "jupyterlab"
LOOK = (  # options of our JupyterLab: no news, a column of text, figures for the dark theme, pictures of widgets
    "--ContentsManager.pre_save_hook=tools.open_lab.without_widgets",
    f"--LabApp.app_settings_dir={SHIPPED / 'settings'}",
    f"--ServerApp.tornado_settings=static_custom_path={SHIPPED / 'custom'}",
    "--LabApp.custom_css=True",
)
ASKS = "# A question: run this cell, and guess before you open it"
STUB = re.compile(r'"""\n +raise NotImplementedError\Z')  # the end of a cell that the student has not changed


def update(notebooks: Path, work: Path, sign: Callable[[NotebookNode], object] = bool) -> list[str]:
    """Bring `work` up to date; returns a line for each new edition that was written beside an old copy.

    `sign` is told of every copy before it is written: JupyterLab shows the films of notebooks that it trusts.
    """
    said = []
    for path in sorted(notebooks.rglob("*.ipynb")):
        if ".ipynb_checkpoints" not in path.parts:
            new = nbformat.read(path, as_version=4)
            _hide_answers(new)
            new.metadata["parlab"] = {"edition": edition(new)}
            place = work / path.relative_to(notebooks)
            said += _put(new, _copies(place)[-1:], place, sign)
    return said


def edition(notebook: NotebookNode) -> str:
    """A short name for the text of a notebook, without its outputs."""
    said = "\0".join(f"{cell.cell_type} {cell.source}" for cell in notebook.cells)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def without_widgets(model: dict[str, Any], **_: Any) -> None:
    """Save no widget, only its picture and text: when the notebook is opened again, no kernel knows the widget."""
    if model["type"] == "notebook" and model["content"]:
        for cell in model["content"]["cells"]:
            for output in cell.get("outputs", []):
                output.get("data", {}).pop(WIDGET, None)


def carry_over(old: NotebookNode, new: NotebookNode) -> list[str]:
    """Put the answers in `old` into the cells of `new`; returns the names of the exercises that had an answer."""
    carried = []
    for name, cell in exercises(new).items():
        check = CHECK.search(cell.source)
        if check and (text := _answer(old, check["function"])):
            cell.source = f"{text}\n\n\n{cell.source[check.start() :]}"
            carried.append(name)
    return carried


def _hide_answers(notebook: NotebookNode) -> None:
    """Drop the outputs of guesses and all below the first screen; fold the code of guesses: it names the wrong one."""
    first_screen = True
    for cell in notebook.cells:
        first_screen = first_screen and not cell.source.startswith("## ")
        if cell.cell_type != "code":
            continue
        guess = "views.predict(" in cell.source
        if guess or not first_screen:
            cell.outputs, cell.execution_count = [], None
        if guess:
            cell.source = f"{ASKS}\n{cell.source}"
            cell.metadata["jupyter"] = {"source_hidden": True}  # of which JupyterLab shows the first line


def _copies(place: Path) -> list[Path]:
    """All copies of a notebook, from the oldest edition to the newest."""
    numbers = {place: 1}
    for path in place.parent.glob(f"{place.stem}_*.ipynb"):
        if number := re.fullmatch(re.escape(place.stem) + r"_(\d+)", path.stem):
            numbers[path] = int(number[1])
    return sorted((path for path in numbers if path.exists()), key=numbers.__getitem__)


def _put(new: NotebookNode, newest: list[Path], place: Path, sign: Callable[[NotebookNode], object]) -> list[str]:
    place.parent.mkdir(parents=True, exist_ok=True)
    if not newest:
        _write(place, new, sign)
        return []
    (path,) = newest
    old = _read(path)
    known = old.metadata.get("parlab", {}).get("edition")
    if known == new.metadata["parlab"]["edition"]:
        return []
    if known == edition(old):  # as it was copied
        _write(path, new, sign)
        return []
    carried = ", ".join(carry_over(old, new)) or "none"
    number = int(path.stem.removeprefix(place.stem).strip("_") or 1) + 1
    beside = place.with_stem(f"{place.stem}_{number}")
    _write(beside, new, sign)
    return [f"{beside}: a new edition; {path.name} stays as it is. Answers carried over: {carried}"]


def _write(path: Path, notebook: NotebookNode, sign: Callable[[NotebookNode], object]) -> None:
    sign(notebook)
    write_whole(path, nbformat.writes(notebook))


def _read(path: Path) -> NotebookNode:
    try:
        return nbformat.read(path, as_version=4)
    except Exception:  # whatever it is, it is the student's
        return nbformat.v4.new_notebook()


def _answer(notebook: NotebookNode, function: str) -> str:
    """What a student has written where `function` is defined, without its check; "" if that is a stub."""
    defined = re.compile(rf"^(def {function}\(|{function} *=)", re.M)
    written = [CHECK.split(cell.source)[0].strip() for cell in notebook.cells if cell.cell_type == "code"]
    text = ([text for text in written if defined.search(text)] or [""])[-1]
    return "" if STUB.search(text) else text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=NOTEBOOKS.parent / "work", help="the folder of the copies")
    parser.add_argument("--only-copy", action="store_true", help="start no JupyterLab")
    options, rest = parser.parse_known_args()
    sign = bool if options.only_copy else NotebookNotary().sign
    for line in update(NOTEBOOKS, options.work, sign):
        print(line)
    if not options.only_copy:
        from jupyterlab.labapp import LabApp  # type: ignore[import-untyped]

        first = _copies(options.work / "00_ranks_and_messages.ipynb")[-1].name
        root = ["--allow-root"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
        where = [f"--ServerApp.root_dir={options.work}", f"--LabApp.default_url=/lab/tree/{first}"]
        LabApp.launch_instance(argv=["--ip=127.0.0.1", *root, *where, *LOOK, *rest])


if __name__ == "__main__":
    main()
