"""Find the exercises of a notebook, and make a lesson's stubs from its solutions: `python -m tools.exercises`.

The cell in `notebooks/solutions` is the source. The part that a student has to write stands there between the lines
`### BEGIN SOLUTION` and `### END SOLUTION`; the lesson has `raise NotImplementedError` in its place.
"""

import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
CHECK = re.compile(r'^labs\.check\("(?P<exercise>[\w.]+)", (?P<function>\w+)\)', re.M)
REGION = re.compile(r"^( *)### BEGIN SOLUTION\n.*?^ *### END SOLUTION$", re.M | re.S)


def exercises(notebook: NotebookNode) -> dict[str, NotebookNode]:
    """The cell that checks each exercise, by the exercise's name."""
    checks = ((CHECK.search(cell.source), cell) for cell in notebook.cells if cell.cell_type == "code")
    return {check["exercise"]: cell for check, cell in checks if check}


def stub(solved: str) -> str:
    """The stub of a cell that solves an exercise, the same as nbgrader makes.

    Raises:
        ValueError: the cell does not mark its solution.
    """
    text, regions = REGION.subn(r"\1raise NotImplementedError", solved)
    if not regions or "SOLUTION" in text:
        raise ValueError(f"### BEGIN SOLUTION and ### END SOLUTION must stand in this cell, in pairs:\n{solved}")
    return text


def write_stubs(lesson: Path) -> None:
    """Write the stubs of a lesson again, from the notebook of the same name in `solutions` beside it.

    Raises:
        ValueError: only one of the two notebooks has some exercise.
    """
    notebook = nbformat.read(lesson, as_version=4)
    stubs = exercises(notebook)
    solved = exercises(nbformat.read(lesson.parent / "solutions" / lesson.name, as_version=4))
    if stubs.keys() != solved.keys():
        raise ValueError(f"{lesson.name} has {', '.join(stubs)}; its solutions have {', '.join(solved)}")
    for name, cell in stubs.items():
        cell.source = stub(solved[name].source)
    nbformat.write(notebook, lesson)


if __name__ == "__main__":
    for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")):
        write_stubs(path)
