"""One word, one thing: the list of words in lessons, glossary and docstrings, as far as a machine can check it."""

import ast
import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent
LESSONS = sorted(ROOT.glob("notebooks/[0-9]*.ipynb"))
PIPELINES = ("04_", "04b", "07_", "08_")  # lessons in which a rank may have several chunks of the model
WATCHED = {  # files that have times by a watch, or talk about those of others
    *("parlab/world/fit.py", "parlab/world/processes/wallclock.py", "parlab/world/processes/records.py"),
    *("parlab/world/processes/engine.py", "parlab/world/engines/base.py", "parlab/world/run.py"),
    *("parlab/labs/processes.py", "parlab/cli/run.py", "parlab/views/engine/predict.py"),
}
PUBLISHED = ("parlab/plan/", "parlab/views/plan/", "parlab/experts/", "parlab/sequence/memory.py")


def prose(path: Path) -> list[str]:
    """The paragraphs of a notebook, without code."""
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    text = re.sub(r"```.*?```|`[^`]*`", "", "\n\n".join(cells), flags=re.S)
    return [" ".join(part.split()) for part in text.split("\n\n")]


def having(pattern: str, path: Path) -> list[str]:
    return [part for part in prose(path) if re.search(pattern, part)]


@pytest.mark.parametrize("path", [path for path in LESSONS if path.stem[:3] != "09_"], ids=lambda path: path.stem[:3])
def test_only_a_watch_measures_and_what_others_measured_has_its_source(path):
    sourced = re.compile(r"\]\(https://|watch|[Pp]ublished|paper")
    assert [part for part in having(r"\b[Mm]easur", path) if not sourced.search(part)] == []


@pytest.mark.parametrize(
    "path", [path for path in LESSONS if path.stem[:3] not in PIPELINES], ids=lambda path: path.stem[:3]
)
def test_a_chunk_is_one_of_a_ranks_several_pipeline_stages(path):
    assert having(r"\b[Cc]hunk", path) == []


@pytest.mark.parametrize(
    "path", [path for path in LESSONS if path.stem[:3] in ("00_", "01_", "02_", "09_")], ids=lambda path: path.stem[:3]
)
def test_a_block_is_a_layer_of_a_transformer_and_a_part_of_an_array_is_a_piece(path):
    assert having(r"\b[Bb]locks?\b", path) == []


@pytest.mark.parametrize("path", [path for path in LESSONS if path.stem[:3] != "10_"], ids=lambda path: path.stem[:3])
def test_ranks_are_p_and_not_n(path):
    assert having(r"\*N\*|\(N − 1\)", path) == []


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
