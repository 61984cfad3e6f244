"""Every lesson keeps the frame: its map tells the truth, its core path is short, its cells are small."""

import re
from pathlib import Path

import nbformat
import pytest

from tools.lessons import ROW, core_minutes, imported_names, sections, with_minutes

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
LESSONS = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))


@pytest.fixture(params=LESSONS, ids=[path.stem for path in LESSONS])
def lesson(request):
    return nbformat.read(request.param, as_version=4)


def lines(source):
    return [line for line in source.splitlines() if line.strip()]


def test_the_map_names_every_section_with_its_counted_minutes(lesson):
    (the_map,) = [cell.source for cell in lesson.cells if ROW.search(cell.source)]
    assert [row["title"] for row in ROW.finditer(the_map)] == [section.title for section in sections(lesson)][1:]
    assert with_minutes(lesson, the_map) == the_map


def test_the_core_path_takes_at_most_50_minutes_and_holds_1_exercise(lesson):
    core = [cell for section in sections(lesson) if not section.further for cell in section.cells]
    assert core_minutes(lesson) <= 50
    assert sum("labs.check(" in cell.source for cell in core if cell.cell_type == "code") == 1


def test_cells_of_the_core_path_have_at_most_15_lines(lesson):
    core = [cell for section in sections(lesson) if not section.further for cell in section.cells]
    assert [cell.source for cell in core if cell.cell_type == "code" and len(lines(cell.source)) > 15] == []


def test_no_cell_imports_more_than_6_names(lesson):
    assert [
        cell.source for cell in lesson.cells if cell.cell_type == "code" and len(imported_names(cell.source)) > 6
    ] == []


def test_links_to_the_glossary_lead_to_an_entry(lesson):
    glossary = nbformat.read(NOTEBOOKS / "glossary.ipynb", as_version=4)
    entries = {
        title.replace(" ", "-") for cell in glossary.cells for title in re.findall(r"^### (.+)$", cell.source, re.M)
    }
    linked = {link for cell in lesson.cells for link in re.findall(r"\(glossary\.ipynb#([^)]+)\)", cell.source)}
    assert linked
    assert linked <= entries
