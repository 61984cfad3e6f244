"""The reading edition builds from what is stored, and needs no network to be read."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tools.book import lessons_table
from tools.exercises import NOTEBOOKS
from tools.lessons import sections, total
from tools.lite import STARTS_PROCESSES

ROOT = Path(__file__).parent.parent
LESSONS = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))
TEXT = "text/plain"
ASKED_FOR = re.compile(r"""(?:src=|<link[^>]*href=|@import|url\()["']?(https?:[^"')\s]+)""")


@pytest.mark.slow
def test_the_book_builds_without_a_warning_and_its_pages_ask_nobody_for_anything(tmp_path):
    options = ["-q", "-W", "--keep-going", "-c", "docs", "-d", tmp_path / "doctrees", "-D", "run_here=run"]
    command = [sys.executable, "-m", "sphinx", *options, ROOT, tmp_path / "book"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert (built.returncode, built.stderr) == (0, "")
    pages = {path.stem: path.read_text(encoding="utf-8") for path in tmp_path.glob("book/notebooks/*.html")}
    assert pages.keys() == {path.stem for path in NOTEBOOKS.glob("*.ipynb")}
    everything = [path for kind in ("html", "css") for path in tmp_path.glob(f"book/**/*.{kind}")]
    assert {link for path in everything for link in ASKED_FOR.findall(path.read_text(encoding="utf-8"))} == set()
    for path in LESSONS:
        folded = [section.further for section in sections(nbformat.read(path, as_version=4))][1:]
        assert pages[path.stem].count("<details class='further'>") == sum(folded)
        assert pages[path.stem].count("<p class='core'>") == len(folded) - sum(folded)
        link = f'href="../run/lab/index.html?path={path.name}"'
        assert pages[path.stem].count(link) == (path.name != STARTS_PROCESSES), "a button, where the page can run it"
    first = (tmp_path / "book/docs/index.html").read_text(encoding="utf-8")
    assert [f"{path.name.removesuffix('.ipynb')}.html" in first for path in LESSONS] == [True] * len(LESSONS)


def test_the_first_page_has_the_sentences_of_the_readme_and_the_minutes_of_the_maps():
    table = lessons_table((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(table.splitlines()) == 2 + len(LESSONS)
    lesson = sections(nbformat.read(NOTEBOOKS / "06_zero.ipynb", as_version=4))
    minutes = f"{total(lesson)} min | {total(lesson, further=True)} min |"
    row = rf"\| \[06 ZeRO\]\(\.\./notebooks/06_zero\.ipynb\) \| An all-reduce is two halves.*\| {re.escape(minutes)}"
    assert re.search(row, table)


@pytest.mark.slow
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_where_an_explorer_stands_its_picture_is_stored(path):
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    shown = [output for cell in code for output in cell.outputs if "explore_" in output.get("data", {}).get(TEXT, "")]
    assert [output["data"][TEXT] for output in shown if "image/png" not in output["data"]] == []
