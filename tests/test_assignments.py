"""A lesson, its solutions and nbgrader's assignment have one source, and a class is marked with it from end to end."""

import ast
import builtins
import csv
import dis
import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbgrader.preprocessors import ClearSolutions
from traitlets.config import Config

from parlab.labs import EXERCISES
from tools.assignments import CONFIG, assignment, write_course
from tools.exercises import CHECK, exercises, stub, write_stubs

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
LESSONS = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))
CONFIGURED = Config()
exec(CONFIG.read_text(encoding="utf-8"), {"get_config": lambda: CONFIGURED})


def read(path):
    return nbformat.read(path, as_version=4)


@pytest.fixture(params=LESSONS, ids=[path.stem for path in LESSONS])
def pair(request):
    return read(request.param), read(NOTEBOOKS / "solutions" / request.param.name)


def marked(cells):
    return [cell for cell in cells if "nbgrader" in cell.metadata]


def test_a_lessons_stubs_are_what_nbgrader_leaves_of_its_solutions(pair):
    lesson, solutions = map(exercises, pair)
    assert lesson.keys() == solutions.keys() <= EXERCISES.keys()
    for name, cell in solutions.items():
        cleared = nbformat.from_dict(cell)
        assert ClearSolutions(config=CONFIGURED)._replace_solution_region(cleared, "python")
        assert lesson[name].source == cleared.source == stub(cell.source)


def test_an_assignment_has_an_answer_and_a_locked_check_with_hidden_cases_for_each_exercise(pair):
    made = assignment(*pair, points=4, seed=77)
    nbformat.validate(made)
    answers, checks = marked(made.cells)[::2], marked(made.cells)[1::2]
    assert len(made.cells) == len(pair[0].cells) + len(exercises(pair[0]))
    for name, answer, check in zip(exercises(pair[0]), answers, checks, strict=True):
        assert answer.metadata.nbgrader.solution
        assert not answer.metadata.nbgrader.locked
        assert "labs." not in answer.source
        function = EXERCISES[name].call.partition("(")[0]
        score = f'labs.score("{name}", {function}, points=4'
        hidden = ["### BEGIN HIDDEN TESTS", f"{score}, seed=77)", "### END HIDDEN TESTS"]
        assert check.source.splitlines() == [f"{score})", *hidden]
        assert (
            check.metadata.nbgrader.items() >= {"grade": True, "locked": True, "points": 4, "solution": False}.items()
        )


def test_a_solution_uses_only_names_that_its_lesson_has_by_then(pair):
    known = set(dir(builtins))
    for cell in assignment(*pair, points=4, seed=77).cells:
        if cell.cell_type == "code":
            tree = ast.parse(cell.source)
            known |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    known.add(node.id)
                if isinstance(node, ast.Import | ast.ImportFrom):
                    known |= {alias.asname or alias.name for alias in node.names}
            if cell in marked([cell]):
                assert set(global_names(compile(tree, "answer", "exec"))) <= known, cell.source


def global_names(code):
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            yield from global_names(constant)


def test_a_solution_without_its_marks_and_a_lesson_without_an_exercise_are_refused(tmp_path):
    solved = read(NOTEBOOKS / "solutions" / "00_ranks_and_messages.ipynb")
    (tmp_path / "solutions").mkdir()
    nbformat.write(solved, tmp_path / "solutions" / "00.ipynb")
    nbformat.write(solved, tmp_path / "00.ipynb")
    write_stubs(tmp_path / "00.ipynb")
    cells = exercises(read(tmp_path / "00.ipynb"))
    assert all("    raise NotImplementedError\n\n\n" in cell.source for cell in cells.values())
    with pytest.raises(ValueError, match="### BEGIN SOLUTION and ### END SOLUTION must stand in this cell, in pairs"):
        stub(cells["00.overlap"].source)
    with pytest.raises(ValueError, match="in pairs"):
        stub(f"{exercises(solved)['00.overlap'].source}\n### BEGIN SOLUTION")
    nbformat.write(nbformat.v4.new_notebook(cells=solved.cells[:4]), tmp_path / "00.ipynb")
    with pytest.raises(ValueError, match=r"00\.ipynb has 00\.overlap; its solutions have 00\.overlap, 00\.to_blame"):
        write_stubs(tmp_path / "00.ipynb")


# A class of two: one has solved all, the other half of the first exercise

HALF = """def exchange(comm, x):
    if comm.size > 5:
        raise ValueError("too many ranks")
    return comm.sendrecv(x, comm.right, comm.left), comm.sendrecv(x, comm.left, comm.right)"""
MARK = """
import sys
from nbgrader.apps import AutogradeApp, ExportApp, GenerateAssignmentApp, GenerateFeedbackApp
for name in sys.argv[1:]:
    app = globals()[name]
    step = app.instance()
    step.initialize([] if app is ExportApp else ["short"])
    step.start()
    app.clear_instance()
"""


def nbgrader(course, *steps):
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # it calls alembic by its name
    environment = os.environ | {"PATH": beside}
    command = [sys.executable, "-c", MARK, *steps]
    done = subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    folder = tmp_path_factory.mktemp("course")
    lesson, solutions = (read(at / "00_ranks_and_messages.ipynb") for at in (NOTEBOOKS, NOTEBOOKS / "solutions"))
    two = ("00.exchange", "00.overlap")
    lesson.cells = [solutions.cells[1], *map(exercises(lesson).get, two)]  # the imports, and two exercises
    (folder / "solutions").mkdir()
    nbformat.write(lesson, folder / "short.ipynb")
    nbformat.write(solutions, folder / "solutions" / "short.ipynb")
    write_course(folder, [folder / "short.ipynb"], points=10, seed=5)
    nbgrader(folder, "GenerateAssignmentApp")
    for student in ("all", "half"):
        handed_in = read(folder / "release" / "short" / "short.ipynb")
        if student == "half":
            marked(handed_in.cells)[0].source = HALF
        if student == "all":
            for cell, solved in zip(marked(handed_in.cells)[::2], map(exercises(solutions).get, two), strict=True):
                cell.source = solved.source[: CHECK.search(solved.source).start()]
        (folder / "submitted" / student / "short").mkdir(parents=True)
        nbformat.write(handed_in, folder / "submitted" / student / "short" / "short.ipynb")
    nbgrader(folder, "AutogradeApp", "GenerateFeedbackApp", "ExportApp")
    return folder


@pytest.mark.slow
def test_what_students_get_holds_neither_solutions_nor_hidden_cases(course):
    released = (course / "release" / "short" / "short.ipynb").read_text(encoding="utf-8")
    assert "sendrecv" not in released
    assert "SOLUTION" not in released
    assert "HIDDEN" not in released
    assert "seed=5" not in released
    answers = marked(nbformat.reads(released, as_version=4).cells)[::2]
    assert all(cell.source.endswith("\n    raise NotImplementedError") for cell in answers)


@pytest.mark.slow
def test_nbgrader_gives_20_points_of_20_for_all_and_what_was_passed_for_half(course):
    with (course / "grades.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["student_id"]: (float(row["score"]), float(row["max_score"])) for row in csv.DictReader(file)}
    cases = len(EXERCISES["00.exchange"].cases)
    passed = sum(case.size <= 5 for case in EXERCISES["00.exchange"].cases)
    assert rows == {"all": (20, 20), "half": (pytest.approx(10 * passed / (cases + 4)), 20)}


@pytest.mark.slow
def test_feedback_says_why(course):
    pages = {path.parts[-3]: path.read_text(encoding="utf-8") for path in course.glob("feedback/*/*/*.html")}
    assert "00.exchange: passed" in pages["all"]
    assert "00.overlap: not written yet" in pages["half"]
    assert "raised ValueError: too many ranks" in pages["half"]


@pytest.mark.slow
def test_a_course_keeps_the_settings_that_a_lecturer_has_changed(course):
    (course / CONFIG.name).write_text("changed", encoding="utf-8")
    write_course(course, [course / "short.ipynb"], points=10, seed=5)
    assert (course / CONFIG.name).read_text(encoding="utf-8") == "changed"
    assert json.loads((course / "source" / "short" / "short.ipynb").read_text(encoding="utf-8"))["nbformat"] == 4
