"""Every lesson keeps the frame: its map tells the truth, its core path is short, its cells are small."""

import re
from pathlib import Path

import nbformat
import pytest

from tools.lessons import ROW, imported_names, sections, summary, total

ANSWER = re.compile(r"^(?:counted|computed|measured|published): (\d[\d .]*\d)(?= |$)", re.M)  # of two digits or more
FOLDED = re.compile(r"<details>.*?</details>", re.S)
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


def told_below(section):
    """The answers of the section's guesses that its text tells in sight, below the guess."""
    found = []
    for number, cell in enumerate(section.cells):
        shown = [output.get("data", {}).get("text/plain", "") for output in cell.get("outputs", [])]
        texts = [later.source for later in section.cells[number + 1 :] if later.cell_type == "markdown"]
        below = FOLDED.sub("", "\n".join(texts))
        for answer in ANSWER.findall("\n".join(shown) if "views.predict(" in cell.source else ""):
            number_itself = rf"(?<![\d.]){re.escape(answer)}(?!\.?\d)"
            asked = re.search(number_itself, shown[0].partition("\n")[0])  # "of 40 models", where it is all of them
            found += [answer] if not asked and re.search(number_itself, below) else []
    return found


def test_no_answer_stands_in_sight_below_its_guess_in_the_guesses_own_section(lesson):
    assert {section.title: told for section in sections(lesson) if (told := told_below(section))} == {}


@pytest.mark.parametrize(
    ("below", "told"),
    [
        ("It takes 0.98 seconds.", ["0.98"]),
        ("<details><summary>Why?</summary>\n\n0.98\n\n</details>", []),
        ("It takes 10.98, or 0.985.", []),
    ],
)
def test_an_answer_in_plain_text_is_seen_and_one_in_a_fold_or_another_number_is_not(below, told):
    guess = nbformat.v4.new_code_cell('views.predict("How long?", 0.98, "s")')
    text = "How long?\ncomputed: 0.98 s\nmany say 5 s"
    guess.outputs = [nbformat.v4.new_output("display_data", {"text/plain": text})]
    cells = [nbformat.v4.new_markdown_cell("## A\n\n0.98"), guess, nbformat.v4.new_markdown_cell(below)]
    (_, section) = sections(nbformat.v4.new_notebook(cells=cells))
    assert told_below(section) == told


def test_no_cell_imports_more_than_6_names(lesson):
    assert [
        cell.source for cell in lesson.cells if cell.cell_type == "code" and len(imported_names(cell.source)) > 6
    ] == []
