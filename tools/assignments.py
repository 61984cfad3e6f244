"""Make nbgrader's course from the lessons and their solutions: `python -m tools.assignments COURSE --points 10`.

Every lesson becomes `COURSE/source/NAME/NAME.ipynb`. `nbgrader generate_assignment NAME` makes the students' notebook
from it. The answer has a cell of its own. The next cell is locked and worth points: it checks the answer on newly
drawn cases and, hidden from students, on cases drawn from `--seed`, the same for all.
"""

import argparse
import re
import secrets
import shutil
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tools.exercises import CHECK, NOTEBOOKS, exercises

CONFIG = Path(__file__).with_name("nbgrader_config.py")
SOLUTIONS = re.compile(r"\s*\(?\[solutions\]\(solutions/[^)]*\)\)?", re.I)
LINK = re.compile(r"\[([^\]]+)\]\([^)]*\.ipynb[^)]*\)")  # to notebooks that do not lie beside an assignment


def assignment(lesson: NotebookNode, solutions: NotebookNode, points: float, seed: int) -> NotebookNode:
    """The lesson with the answers of its solutions, each followed by its check, in the form that nbgrader needs."""
    solved = exercises(solutions)
    cells = []
    for cell in lesson.cells:
        check = CHECK.search(cell.source) if cell.cell_type == "code" else None
        cells += _answer_and_check(solved[check["exercise"]].source, points, seed) if check else [_alone(cell)]
    return nbformat.v4.new_notebook(cells=cells, metadata=lesson.metadata)


def _answer_and_check(source: str, points: float, seed: int) -> list[NotebookNode]:
    answer, exercise, function, _ = CHECK.split(source)
    name = exercise.replace(".", "_")
    score = f'labs.score("{exercise}", {function}, points={points:g}'
    check = f"{score})\n### BEGIN HIDDEN TESTS\n{score}, seed={seed})\n### END HIDDEN TESTS"
    return [
        _cell(f"{name}-answer", answer.rstrip(), solution=True, grade=False),
        _cell(f"{name}-check", check, solution=False, grade=True, locked=True, points=points),
    ]


def _cell(name: str, source: str, **more: bool | float) -> NotebookNode:
    marks = {"grade_id": name, "schema_version": 3, "task": False, "locked": False} | more
    return nbformat.v4.new_code_cell(source, id=name, metadata={"nbgrader": marks})


def _alone(cell: NotebookNode) -> NotebookNode:
    """A copy of a cell, without links to the other notebooks."""
    cell = nbformat.from_dict(cell)
    if cell.cell_type == "markdown":
        cell.source = LINK.sub(r"\1", SOLUTIONS.sub("", cell.source))
    else:
        cell.outputs, cell.execution_count = [], None
    return cell


def write_course(course: Path, lessons: list[Path], points: float, seed: int) -> None:
    """Write `source/NAME/NAME.ipynb` for each lesson, and nbgrader_config.py if there is none."""
    for path in lessons:
        read = [nbformat.read(folder / path.name, as_version=4) for folder in (path.parent, path.parent / "solutions")]
        place = course / "source" / path.stem / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(assignment(read[0], read[1], points, seed), place)
    if not (course / CONFIG.name).exists():
        shutil.copyfile(CONFIG, course / CONFIG.name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("course", type=Path, help="nbgrader's folder; its folder `source` is written again")
    parser.add_argument("--lessons", default="*", help="which: 01*; else all")
    parser.add_argument("--points", type=float, default=10.0, help="of each exercise")
    parser.add_argument("--seed", type=int, help="of the hidden cases, the same for all; else a new one")
    options = parser.parse_args()
    chosen = [path for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")) if path.match(f"{options.lessons}.ipynb")]
    if not chosen:
        parser.error(f"--lessons {options.lessons}: no lesson is called so")
    drawn = secrets.randbelow(10**6) if options.seed is None else options.seed
    write_course(options.course, chosen, options.points, drawn)
    print(f"{len(chosen)} assignments in {options.course / 'source'}; hidden cases are drawn from --seed {drawn}")
