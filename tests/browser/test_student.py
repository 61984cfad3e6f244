"""A student's walk through an exercise: open, fail, hint, pass, save, update, load."""

import nbformat
import pytest

from tests.browser.reader import OUTPUT
from tools.exercises import NOTEBOOKS, exercises
from tools.open_lab import update

CHECK = '\n\n\nlabs.check("00.exchange", exchange)'
FAILS = "def exchange(comm, x): comm.send(x, comm.right)" + CHECK
BOTH = "comm.sendrecv(x, comm.right, comm.left), comm.sendrecv(x, comm.left, comm.right)"
PASSES = f"def exchange(comm, x): return {BOTH}" + CHECK


@pytest.fixture
def student(reader):
    """A reader who writes, too."""
    return reader


def writes(student, number, text):
    student.page.locator(".jp-CodeCell").nth(number).locator(".cm-content").click()
    student.page.keyboard.press("Control+A")
    student.page.keyboard.insert_text(text)


def runs_all_and_reads(student, says):
    student.run_all_cells()
    assert says in "\n".join(student.page.locator(OUTPUT).all_inner_texts())


def ship(place, first):
    lesson = nbformat.read(NOTEBOOKS / "00_ranks_and_messages.ipynb", as_version=4)
    code = [nbformat.v4.new_code_cell(first), exercises(lesson)["00.exchange"], nbformat.v4.new_code_cell("1 + 1")]
    place.mkdir(exist_ok=True)
    made = nbformat.v4.new_notebook(cells=code, metadata=lesson.metadata)
    nbformat.write(made, place / "00.ipynb")


@pytest.mark.slow
def test_a_student_opens_fails_takes_a_hint_passes_saves_updates_and_loads(student, tmp_path):
    work, shipped = student.folder / "work", tmp_path / "shipped"
    ship(shipped, "from parlab import labs")
    update(shipped, work)
    student.open("work/00.ipynb")
    runs_all_and_reads(student, "00.exchange: not written yet")
    writes(student, 1, FAILS)
    writes(student, 2, 'labs.hint("00.exchange", 1)')
    runs_all_and_reads(student, "no rank can move: 2 blocked, 0 finished")
    runs_all_and_reads(student, "Who receives, if all send first?")
    writes(student, 1, PASSES)
    writes(student, 2, "labs.save()")
    runs_all_and_reads(student, "00.exchange: passed")
    student._wait((work / "answers.json").exists, "the answers are saved")
    student.page.keyboard.press("Control+S")
    student._wait(lambda: "labs.save()" in (work / "00.ipynb").read_text(encoding="utf-8"), "the notebook is saved")

    before = (work / "00.ipynb").read_bytes()
    ship(shipped, "from parlab import labs, run")
    (said,) = update(shipped, work)
    assert said.endswith("00.ipynb stays as it is. Answers carried over: 00.exchange")
    assert (work / "00.ipynb").read_bytes() == before
    assert student.close() == []
    student.open("work/00_2.ipynb")
    runs_all_and_reads(student, "00.exchange: passed")
    writes(student, 2, "labs.load()")
    runs_all_and_reads(student, "# 00.exchange\ndef exchange(comm, x): return comm.sendrecv")
    assert student.complaints == []
