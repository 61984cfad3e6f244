"""`parlab grade`: a class, some of which does its worst, is marked in one command, each as it deserves."""

import ast
import csv
import inspect
import json
import random
import re
import sys
import time
from pathlib import Path
from types import FunctionType

import numpy as np
import psutil
import pytest

from parlab import cli, labs
from parlab.labs import EXERCISES
from parlab.labs.marking import grade, submissions
from parlab.labs.recording import unchecked
from parlab.labs.submission import cells
from tests.labs import answers

FIRST, SECOND = "00.exchange", "01.reduce_scatter"
NAMES = [FIRST, SECOND]
EXCHANGE = """def exchange(comm, x):
    from_left = comm.sendrecv(x, comm.right, comm.left)
    from_right = comm.sendrecv(x, comm.left, comm.right)
    return from_left, from_right
"""
RIGHT = {FIRST: EXCHANGE, SECOND: inspect.getsource(answers.reduce_scatter)}
IMPORTS = "import numpy as np\nfrom parlab import labs\n"


def notebook(*cells):
    of_code = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in (IMPORTS, *cells)]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": "text"}, *of_code], "nbformat": 4})


def checked(name, text):
    return f'{text}\n\nlabs.check("{name}", {name.split(".")[1]})\n'


BOTH = [checked(name, RIGHT[name]) for name in NAMES]
RIGHT_FIRST, RIGHT_SECOND = BOTH
STUB = "def exchange(comm, x):\n    raise NotImplementedError\n"
ENDLESS = "def exchange(comm, x):\n    while True:\n        pass\n"
HOLDS_ON = """import time
def exchange(comm, x):
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            pass
"""
SEGFAULT = "import ctypes\nctypes.string_at(0)\n"
LEAVES = "import os\ndef exchange(comm, x):\n    os._exit(0)\n"
DELETES = """import os
for path in os.listdir():
    os.remove(path)
"""
CHILD = """import os, pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(os.environ["CHILDREN"], "a") as file:
    print(child.pid, file=file)
"""
DRAWS = """import random, numpy
raise ValueError((random.random(), float(numpy.random.rand()), hash("text")))
"""
CHATTY = "for number in range(10**6):\n    print(number)\n"
GLOBAL = """import time
BOX = {}
def exchange(comm, x):
    BOX[comm.rank] = x
    while len(BOX) < comm.size or any(BOX[rank].shape != x.shape for rank in range(comm.size)):
        time.sleep(1e-4)
    time.sleep(1e-2)
    return BOX[comm.left].copy(), BOX[comm.right].copy()
"""
SWAPPED = RIGHT[FIRST].replace("return from_left, from_right", "return from_right, from_left")
PASSED, NOT_YET, NOT_WRITTEN, MISSING = "passed", "not yet", "not written yet", "missing"

TWICE = (  # alice's flag and note
    "00.exchange: checked 2 times, the last one counts",
    "left out, as beside a notebook: helpers.py, numpy.py",
)

CLASS = {  # by file: its text, the status of both exercises, a part of the flags, a part of the note
    "alice/helpers.py": ("RIGHT = 'right'\n", None, None, "", ""),
    "alice/lab.ipynb": (notebook("import helpers\nhelpers.RIGHT", checked(FIRST, STUB), *BOTH), PASSED, PASSED, *TWICE),
    "alice/numpy.py": ("raise ImportError('this file hides no library')\n", None, None, "", ""),
    "bob/lab.ipynb": (
        notebook(checked(FIRST, SWAPPED), RIGHT_SECOND),
        NOT_YET,
        PASSED,
        "",
        "left out, as beside a notebook: helpers.py",
    ),
    "bob/helpers.py": ("LEFT = 'left'\n", None, None, "", ""),
    "empty_1.ipynb": ("", MISSING, MISSING, "", ""),
    "empty_5.ipynb": (notebook(checked(FIRST, STUB)), NOT_WRITTEN, MISSING, "", ""),
    "endless_1.ipynb": (notebook(checked(FIRST, ENDLESS), RIGHT_SECOND), NOT_YET, PASSED, "", ""),
    "endless_3.ipynb": (notebook(checked(FIRST, HOLDS_ON), RIGHT_SECOND), NOT_YET, PASSED, "", ""),
    "leaves.ipynb": (
        notebook("import os\nos._exit(0)", RIGHT_SECOND, SEGFAULT, checked(FIRST, LEAVES)),
        NOT_YET,
        PASSED,
        "",
        "cell 2: it ended the process (exit code 0), and was left out; cell 4: it ended the process (exit code -11), "
        "and was left out; cell 5: it ended the process (exit code 0), and was left out",
    ),
    "deletes/lab.ipynb": (notebook(DELETES, *BOTH), PASSED, PASSED, "", ""),
    "shares.ipynb": (notebook(checked(FIRST, GLOBAL), RIGHT_SECOND), NOT_YET, PASSED, "00.exchange: no messages", ""),
    "does_its_worst.ipynb": (
        notebook("while True:\n    pass\n", CHATTY, "1 / 0", "def (:", "%matplotlib inline\n!ls", "exit()", *BOTH),
        PASSED,
        PASSED,
        "",
        "",
    ),
    "child_1.ipynb": (notebook(CHILD, *BOTH), PASSED, PASSED, "", ""),
    "child_2.ipynb": (
        notebook(CHILD, "os._exit(1)", *BOTH),
        PASSED,
        PASSED,
        "",
        "cell 3: it ended the process (exit code 1), and was left out",
    ),
    "draws_1.ipynb": (notebook(DRAWS, *BOTH), PASSED, PASSED, "", ""),
    "draws_2.ipynb": (notebook(DRAWS, *BOTH), PASSED, PASSED, "", ""),
    "last_check_leaves.ipynb": (
        notebook(LEAVES),
        NOT_YET,
        MISSING,
        "",
        "a check behind the last cell: it ended the process (exit code 0)",
    ),
}
BESIDE = ("alice/helpers.py", "alice/numpy.py", "bob/helpers.py")


@pytest.fixture(scope="module")
def class_room(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class") / "submissions"
    for name, (text, *_) in CLASS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def marked(class_room):
    before = {path: path.read_bytes() for path in class_room.rglob("*") if path.is_file()}
    out = class_room.parent / "grades.csv"
    arguments = ["grade", class_room, "--out", out, "--seconds", "1", "--seed", "5", "--jobs", "2", "--limit", "60"]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CHILDREN", str(class_room.parent / "children"))
        assert cli.main([*map(str, arguments), "--exercises", ",".join(NAMES)]) == 0
    assert {path: path.read_bytes() for path in class_room.rglob("*") if path.is_file()} == before
    with out.open(encoding="utf-8", newline="") as file:
        return {row["submission"]: row for row in csv.DictReader(file)}


EXPECTED = {name.rpartition(".")[0]: rest for name, (_, *rest) in CLASS.items() if name not in BESIDE}


@pytest.mark.slow
def test_each_submission_has_a_row_and_what_lies_beside_has_none(marked, class_room):
    assert sorted(marked) == sorted(EXPECTED)
    paths, beside = submissions(class_room)
    assert len(paths) == len(EXPECTED)
    assert [path.relative_to(class_room).as_posix() for path in beside] == sorted(BESIDE)


LIBRARY = "from parlab.nn.attention import merge\ndef merge_two(*given):\n    return merge(*given)\n"
SMALL_CLASS = {
    "a/UP.IPYNB": notebook(RIGHT_FIRST, RIGHT_FIRST.replace("exchange)", "exchange, seed=1)")),
    "a/HELPERS.PY": "",
    "a/more.py": "",
    "b/UP.PY": f"{IMPORTS}\n{RIGHT_SECOND}\n{LIBRARY}\nlabs.check('02.merge', merge_two)",
    "b/UP.txt": "",
    "c.ipynb": "[",
    "d.py": f"{IMPORTS}\n{RIGHT_SECOND}",
    "c.py": "",
}


@pytest.fixture(scope="module")
def small_class(tmp_path_factory):
    """The marks, the lines of the table, and what was said."""
    place = tmp_path_factory.mktemp("small")
    for name, text in SMALL_CLASS.items():
        (place / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "in" / name).write_text(text, encoding="utf-8")
    said = []
    marks = grade(place / "in", place / "new" / "grades.csv", seed=7, say=said.append)
    return marks, (place / "new" / "grades.csv").read_text(encoding="utf-8").splitlines(), said


def test_endings_in_capitals_count_and_the_files_that_are_left_out_are_named(small_class):
    marks, _, said = small_class
    assert [mark.name for mark in marks] == ["a/UP", "b/UP", "c.ipynb", "c.py", "d"]
    assert said[0] == "left out, as beside a notebook: a/HELPERS.PY, a/more.py"


def test_the_table_has_the_exercises_of_all_submissions_flags_and_notes(small_class):
    header, *rows = small_class[1]
    assert header == f"submission,passed,of,{FIRST},{SECOND},02.merge,flags,note"
    assert rows[:2] == [
        'a/UP,1,3,passed,missing,missing,"00.exchange: checked 2 times, the last one counts",'
        '"left out, as beside a notebook: HELPERS.PY, more.py"',
        "b/UP,2,3,missing,passed,passed,02.merge: uses parlab.nn.attention.merge,",
    ]
    assert rows[2].startswith("c.ipynb,0,3,missing,missing,missing,,it is not a notebook: ")


def test_each_review_has_the_seed_of_the_grade_not_that_of_the_submission(small_class):
    assert [review["seed"] for mark in small_class[0] for review in mark.reviews.values()] == [7] * 4


def test_in_the_folder_of_all_students_a_program_beside_notebooks_has_its_row(small_class):
    assert small_class[1][-1] == "d,1,3,missing,passed,missing,,"


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_each_is_marked_as_it_deserves(name, marked):
    first, second, flag, note = EXPECTED[name]
    row = marked[name]
    assert (row[FIRST], row[SECOND]) == (first, second), row
    assert row["passed"] == str((first, second).count(PASSED))
    assert row["of"] == "2"
    assert flag in row["flags"], row
    assert bool(flag) == bool(row["flags"]), row
    assert note in row["note"], row
    assert bool(note) == bool(row["note"]), row


@pytest.mark.slow
def test_reports_stand_apart_and_say_what_a_student_must_know(marked, class_room):
    reports = class_room.parent / "grades-reports"
    assert len(list(reports.rglob("*.html"))) == len(EXPECTED)
    assert "the two are swapped" in (reports / "bob" / "lab.html").read_text(encoding="utf-8")
    assert "2 of 2 exercises passed" in (reports / "alice" / "lab.html").read_text(encoding="utf-8")
    assert "raised ZeroDivisionError: division by zero" in (reports / "does_its_worst.html").read_text(encoding="utf-8")
    assert "still running after 1 s" in (reports / "endless_1.html").read_text(encoding="utf-8")
    assert "def exchange(comm, x):\n    while True:" in (reports / "endless_1.html").read_text(encoding="utf-8")
    assert "SyntaxError: " in (reports / "does_its_worst.html").read_text(encoding="utf-8")
    assert "while True:" in (reports / "does_its_worst.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_random_numpy_random_and_hashes_are_seeded_alike_for_all_submissions(marked, class_room):
    reports = class_room.parent / "grades-reports"
    first, second = (
        re.search(r"raised ValueError: \((.*)\)", (reports / f"draws_{number}.html").read_text(encoding="utf-8"))[1]
        for number in (1, 2)
    )
    drawn = random.Random(5).random(), float(np.random.RandomState(5).rand())
    assert first == second
    assert first.startswith(f"{drawn[0]}, {drawn[1]}, ")


def still_runs(process):
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
def test_processes_that_a_submission_started_end_with_its_kernel(marked, class_room):
    children = (class_room.parent / "children").read_text(encoding="utf-8").split()
    assert len(children) == 3  # one kernel of child_1, two of child_2
    assert not any(still_runs(int(child)) for child in children)


@pytest.mark.slow
def test_ctrl_c_ends_what_runs_and_begins_nothing_more(tmp_path):
    (tmp_path / "a.py").write_text("", encoding="utf-8")
    for name in "bcdef":
        (tmp_path / f"{name}.py").write_text("import time\ntime.sleep(20)\n", encoding="utf-8")

    def interrupt(line):
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        grade(tmp_path, tmp_path / "grades.csv", jobs=2, say=interrupt)
    assert time.monotonic() - began < 15


@pytest.mark.slow
def test_a_submission_that_never_ends_is_ended_at_the_limit_with_its_children(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CHILDREN", str(tmp_path / "children"))
    (tmp_path / "in").mkdir()
    text = f"{CHILD}\nimport time\ntime.sleep(100)\n{checked(FIRST, STUB)}"
    (tmp_path / "in" / "slow.py").write_text(text, encoding="utf-8")
    out = tmp_path / "grades.csv"
    assert cli.main(["grade", str(tmp_path / "in"), "--out", str(out), "--limit", "20", "--exercises", FIRST]) == 0
    assert out.read_text(encoding="utf-8").splitlines()[1] == "slow,0,1,missing,,still running after 20 s: ended"
    assert "[  1/1] slow: 0 of 1 passed; still running after 20 s: ended\n" in capsys.readouterr().out
    assert not still_runs(int((tmp_path / "children").read_text(encoding="utf-8")))


def test_each_chosen_exercise_is_counted_once_and_no_other(tmp_path, capsys):
    (tmp_path / "lab.py").write_text("\n".join([IMPORTS, *BOTH]), encoding="utf-8")
    out = tmp_path / "grades.csv"
    assert cli.main(["grade", str(tmp_path), "--out", str(out), "--exercises", f"{FIRST},{FIRST}"]) == 0
    assert out.read_text(encoding="utf-8") == f"submission,passed,of,{FIRST},flags,note\nlab,1,1,passed,,\n"
    assert "lab: 1 of 1 passed\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["."], "holds no .ipynb or .py"),
        ([".", "--exercises", "01.ring"], "--exercises=01.ring: the exercises are 00.exchange"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["grade", *arguments]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "out",
    [
        *("in", "..", ".", "new/..", "file.txt/x.csv", "file.txt/new/x.csv", "file.csv"),
        *("in/lab.py", "./in/../in/lab.py"),
    ],
)
def test_a_table_that_cannot_be_written_is_refused_before_marking(out, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for name in ("in/lab.py", "file.txt", "file-reports"):
        Path(name).write_text("", encoding="utf-8")
    assert cli.main(["grade", "in", "--out", out]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"parlab grade: --out={str(Path(out))!r}: " in said.err


def test_without_nbclient_the_command_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "parlab.labs.submission", raising=False)
    monkeypatch.delattr(labs, "submission", raising=False)
    monkeypatch.setitem(sys.modules, "nbclient", None)
    (tmp_path / "lab.py").write_text("", encoding="utf-8")
    assert cli.main(["grade", str(tmp_path)]) == 2
    said = "parlab grade: no module 'nbclient': python -m pip install -e '.[grading]' adds it\n"
    assert capsys.readouterr().err == said


LESSONS = sorted(Path("notebooks").glob("0*.ipynb"))
OF_01 = ["01.reduce_scatter", "01.circulant"]


@pytest.mark.slow
def test_the_notebook_of_a_lesson_is_marked_for_the_exercises_of_that_lesson(tmp_path):
    handed_in = json.loads(LESSONS[1].read_text(encoding="utf-8"))
    solved = Path("notebooks/solutions", LESSONS[1].name).read_text(encoding="utf-8")
    handed_in["cells"] += json.loads(solved)["cells"]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "lab.ipynb").write_text(json.dumps(handed_in), encoding="utf-8")
    (mark,) = grade(tmp_path / "in", tmp_path / "grades.csv")
    assert {name: review["status"] for name, review in mark.reviews.items()} == dict.fromkeys(OF_01, PASSED)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_no_function_of_a_lesson_is_taken_for_an_answer_of_another(path):
    texts = [re.sub(r"^[%!].*$", "", text, flags=re.MULTILINE) for text in cells(path)]
    parts = [part for text in texts for part in ast.parse(text).body if isinstance(part, ast.FunctionDef)]
    namespace = {}
    namespace |= {part.name: FunctionType((lambda: None).__code__, namespace) for part in parts}
    lesson = [name for name in EXERCISES if name.startswith(path.name.partition("_")[0] + ".")]
    assert list(unchecked(namespace, lesson, EXERCISES)) == []
    assert list(unchecked(namespace, lesson[1:], EXERCISES)) == lesson[:1]


def test_answers_are_looked_for_in_all_lessons_where_nothing_is_checked():
    namespace = {"np": max}
    namespace["borders"] = FunctionType((lambda: None).__code__, namespace)
    assert list(unchecked(namespace, [], EXERCISES)) == ["09.buffering"]
