"""One word, one thing: the list of words in lessons, glossary and docstrings, as far as a machine can check it."""

import ast
import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent
LESSONS = {path.stem[:3]: path for path in sorted(ROOT.glob("notebooks/[0-9]*.ipynb"))}
WATCHED = {  # files that have times by a watch, or talk about those of others
    *("parlab/world/fit.py", "parlab/world/processes/wallclock.py", "parlab/world/processes/records.py"),
    *("parlab/world/processes/engine.py", "parlab/world/engines/base.py", "parlab/world/run.py"),
    *("parlab/labs/processes.py", "parlab/cli/run.py", "parlab/views/engine/predict.py"),
}
PUBLISHED = ("parlab/plan/", "parlab/views/plan/", "parlab/experts/", "parlab/sequence/checkpointed.py")


def prose(path: Path) -> list[str]:
    """The paragraphs of a notebook, without code."""
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    text = re.sub(r"```.*?```|`[^`]*`", "", "\n\n".join(cells), flags=re.S)
    return [" ".join(part.split()) for part in text.split("\n\n")]


def having(pattern: str, path: Path) -> list[str]:
    return [part for part in prose(path) if re.search(pattern, part)]


@pytest.mark.parametrize("number", sorted(LESSONS.keys() - {"09_"}))
def test_only_a_watch_measures_and_what_others_measured_has_its_source(number):
    sourced = re.compile(r"\]\(https://|watch|[Pp]ublished|paper")
    assert [part for part in having(r"\b[Mm]easur", LESSONS[number]) if not sourced.search(part)] == []


ONE_MEANING = {  # a word, and the lessons that it would have another meaning in
    r"\b[Cc]hunk": set(LESSONS) - {"04_", "04b", "07_", "08_"},  # it is one of a rank's several pipeline stages
    r"\b[Bb]locks?\b": {"00_", "01_", "02_", "09_"},  # it is a layer of a transformer; a part of an array is a piece
    r"\*N\*|\(N − 1\)": set(LESSONS) - {"10_"},  # of experts; ranks are P
}


@pytest.mark.parametrize(
    ("word", "number"), [(word, n) for word, lessons in ONE_MEANING.items() for n in sorted(lessons)]
)
def test_a_word_stands_in_no_lesson_that_would_give_it_another_meaning(word, number):
    assert having(word, LESSONS[number]) == []


def test_docstrings_say_measured_of_watches_and_publications_alone():
    found = []
    for path in sorted(ROOT.glob("parlab/**/*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name in WATCHED or name.startswith(PUBLISHED):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                found += [(name, line) for line in text.splitlines() if re.search(r"\bmeasured\b", line)]
    assert found == []
