"""Every lesson keeps the frame: its map tells the truth, its core path is short, its cells are small."""

import re
from pathlib import Path

import nbformat
import pytest

from tools.lessons import ROW, imported_names, sections, summary, total

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
LESSONS = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))


@pytest.fixture(params=LESSONS, ids=[path.stem for path in LESSONS])
def lesson(request):
    return nbformat.read(request.param, as_version=4)


def lines(source):
    return [line for line in source.splitlines() if line.strip()]


def test_the_map_is_folded_names_every_section_and_its_rows_add_up_to_its_summary(lesson):
    found = sections(lesson)
    (the_map,) = [cell.source for cell in lesson.cells if ROW.search(cell.source)]
    folded = f"<details>\n{summary(found)}\n\n| section | minutes |\n|---|---|\n"
    assert folded + "\n".join(section.row for section in found) + "\n\n</details>" in the_map


def test_every_part_has_minutes_and_every_exercise_its_own(lesson):
    for section in sections(lesson):
        assert section.minutes > section.exercise, section.title
        assert (section.exercise > 0) == (section.exercises > 0), section.title


def test_the_core_path_takes_at_most_50_minutes_and_holds_1_exercise_or_up_to_3_short_ones_of_12_to_18(lesson):
    core = [section for section in sections(lesson) if not section.further]
    assert total(core) <= 50
    assert sum(section.exercises for section in core) in (1, 2, 3)
    assert 12 <= sum(section.exercise for section in core) <= 18


ANSWER = re.compile(r"^(?:counted|computed|measured|published): (.+)$", re.M)  # as `views.predict` prints it
FOLDED = re.compile(r"<details>.*?</details>", re.S)


def given_away(section):
    """The answers of a section's guesses that stand in sight below their guess, in words or in code."""
    found = []
    for place, cell in enumerate(section.cells):
        if cell.cell_type != "code" or "views.predict(" not in cell.source:
            continue
        printed = "\n".join(output.get("data", {}).get("text/plain", "") for output in cell.outputs)
        for answer in ANSWER.findall(printed):
            below = "\n".join(FOLDED.sub("", later.source) for later in section.cells[place + 1 :])
            named = answer in cell.source  # "of 40 models", where it is all of them
            if not named and re.search(rf"(?<![\w.]){re.escape(answer)}(?![\w.]*\d)", below):
                found.append(answer)
    return found


def test_0_answers_stand_in_sight_below_their_guess(lesson):
    assert [answer for section in sections(lesson) for answer in given_away(section)] == []


def test_an_answer_below_its_guess_is_seen_unless_it_is_folded():
    output = nbformat.v4.new_output("display_data", {"text/plain": "How far?\ncounted: 14 hops\nmany say 7 hops: half"})
    guess = nbformat.v4.new_code_cell('views.predict("How far?", 14, "hops")', outputs=[output])
    for text, found in (
        ("They are 14 hops.", ["14 hops"]),
        ("<details><summary>Why?</summary>\n\nThey are 14 hops.\n</details>", []),
        ("They are 114 hops, or 14 hops10.", []),
    ):
        cells = [nbformat.v4.new_markdown_cell("## A"), guess, nbformat.v4.new_markdown_cell(text)]
        assert given_away(sections(nbformat.v4.new_notebook(cells=cells))[1]) == found


def test_a_section_without_a_row_has_no_minutes_and_a_wrong_sum_is_seen():
    rows = "| first screen | 3 |\n| [A](#A) | 14, exercise 12 |\n| *further:* [B](#B) | 5 |"
    cells = [nbformat.v4.new_markdown_cell(text) for text in (rows, "## A", "## B", "## C")]
    cells[2].metadata["jp-MarkdownHeadingCollapsed"] = True
    found = sections(nbformat.v4.new_notebook(cells=cells))
    assert [section.minutes for section in found] == [3, 14, 5, 0]
    assert summary(found) == "<summary>Core path: <b>17 minutes</b>. Further: 5 minutes.</summary>"
    assert "\n".join(section.row for section in found[:3]) == rows


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
