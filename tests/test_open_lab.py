"""What a student has written is never overwritten, and comes along into a new edition."""

import nbformat
import pytest

from tools.open_lab import ASKS, carry_over, update, without_widgets
from tools.store_outputs import WIDGET

STUB = 'def exchange(comm, x):\n    """Return both."""\n    raise NotImplementedError'
CHECK = '\n\n\nlabs.check("00.exchange", exchange)'
ANSWER = 'def exchange(comm, x):\n    """Return both."""\n    return x, x'
OTHER = STUB.replace("exchange", "overlap") + CHECK.replace("exchange", "overlap")


def notebook(*cells):
    made = [nbformat.v4.new_code_cell(cell, id=f"cell-{number}") for number, cell in enumerate(cells)]
    return nbformat.v4.new_notebook(cells=made)


def write(path, made):
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(made, path)


def read(path):
    return nbformat.read(path, as_version=4)


def sources(path):
    return [cell.source for cell in read(path).cells]


@pytest.fixture
def shipped(tmp_path):
    write(tmp_path / "shipped" / "00.ipynb", notebook("from parlab import labs", STUB + CHECK, OTHER))
    write(tmp_path / "shipped" / "solutions" / "00.ipynb", notebook(ANSWER + CHECK))
    return tmp_path / "shipped"


@pytest.fixture
def work(shipped):
    work = shipped.parent / "work"
    assert update(shipped, work) == []
    return work


def student_writes(path, cell, text):
    made = read(path)
    made.cells[cell].source = text
    nbformat.write(made, path)


def new_edition(shipped):
    """Another first line, another text of the check."""
    write(shipped / "00.ipynb", notebook("from parlab import labs, run", STUB + CHECK + "\nlabs.summary()", OTHER))


def files(work):
    return {path.relative_to(work).as_posix(): path.read_bytes() for path in work.rglob("*") if path.is_file()}


def test_every_notebook_is_copied_and_the_same_edition_changes_nothing(shipped, work):
    before = files(work)
    assert before.keys() == {"00.ipynb", "solutions/00.ipynb"}
    assert sources(work / "00.ipynb") == sources(shipped / "00.ipynb")
    assert update(shipped, work) == []
    student_writes(work / "00.ipynb", 1, ANSWER + CHECK)
    changed = files(work)
    assert update(shipped, work) == []
    assert files(work) == changed


def test_a_copy_that_was_only_run_is_replaced_by_the_new_edition(shipped, work):
    run = read(work / "00.ipynb")
    run.cells[0].execution_count, run.cells[0].outputs = 7, [nbformat.v4.new_output("stream", text="seen")]
    run.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(run, work / "00.ipynb")
    new_edition(shipped)
    assert update(shipped, work) == []
    assert files(work).keys() == {"00.ipynb", "solutions/00.ipynb"}
    assert sources(work / "00.ipynb") == sources(shipped / "00.ipynb")


def test_a_new_edition_stands_beside_with_the_answers_and_the_old_copy_keeps_every_byte(shipped, work):
    student_writes(work / "00.ipynb", 1, ANSWER + CHECK)
    before = (work / "00.ipynb").read_bytes()
    new_edition(shipped)
    beside = work / "00_2.ipynb"
    assert update(shipped, work) == [
        f"{beside}: a new edition; 00.ipynb stays as it is. Answers carried over: 00.exchange"
    ]
    assert (work / "00.ipynb").read_bytes() == before
    assert sources(beside) == ["from parlab import labs, run", ANSWER + CHECK + "\nlabs.summary()", OTHER]
    assert update(shipped, work) == []


def test_copies_have_no_outputs_but_those_of_the_first_screen(tmp_path):
    made = notebook("picture", "answer")
    made.cells.insert(1, nbformat.v4.new_markdown_cell("## Guess first"))
    for cell in (made.cells[0], made.cells[2]):
        cell.execution_count, cell.outputs = 1, [nbformat.v4.new_output("stream", text="seen")]
    write(tmp_path / "shipped" / "00.ipynb", made)
    update(tmp_path / "shipped", tmp_path / "work")
    screen, _, below = read(tmp_path / "work" / "00.ipynb").cells
    assert (screen.execution_count, screen.outputs) == (1, made.cells[0].outputs)
    assert (below.execution_count, below.outputs) == (None, [])
    assert (tmp_path / "work" / "00.ipynb").read_bytes() != (tmp_path / "shipped" / "00.ipynb").read_bytes()
    assert update(tmp_path / "shipped", tmp_path / "work") == []


def test_a_guess_on_the_first_screen_has_no_output_that_names_the_truth(tmp_path):
    made = notebook("picture", 'views.predict("Which rank?", 7)')
    for cell in made.cells:
        cell.execution_count, cell.outputs = 1, [nbformat.v4.new_output("stream", text="computed: 7")]
    write(tmp_path / "shipped" / "00.ipynb", made)
    update(tmp_path / "shipped", tmp_path / "work")
    picture, guess = read(tmp_path / "work" / "00.ipynb").cells
    assert picture.outputs == made.cells[0].outputs
    assert (guess.execution_count, guess.outputs) == (None, [])


def test_the_code_of_a_guess_is_folded_in_the_copies_for_it_names_the_usual_wrong_one(tmp_path):
    write(tmp_path / "shipped" / "00.ipynb", notebook("late = 3", 'views.predict("When?", late, usual=(1, "no wait"))'))
    update(tmp_path / "shipped", tmp_path / "work")
    ran, asks = read(tmp_path / "work" / "00.ipynb").cells
    assert (ran.source, ran.metadata) == ("late = 3", {})
    assert asks.metadata.jupyter == {"source_hidden": True}
    assert asks.source == f'{ASKS}\nviews.predict("When?", late, usual=(1, "no wait"))'
    assert update(tmp_path / "shipped", tmp_path / "work") == []
    new_edition(tmp_path / "shipped")  # the copy counts as one that nobody has changed
    assert update(tmp_path / "shipped", tmp_path / "work") == []


def test_every_copy_is_signed_as_it_is_written_with_the_answers_in_it(shipped, work):
    student_writes(work / "00.ipynb", 1, ANSWER + CHECK)
    new_edition(shipped)
    signed = []
    update(shipped, work, lambda copy: signed.append([cell.source for cell in copy.cells]))
    assert signed == [sources(work / "00_2.ipynb")]


def test_a_third_edition_goes_on_from_the_second(shipped, work):
    student_writes(work / "00.ipynb", 1, ANSWER + CHECK)
    new_edition(shipped)
    update(shipped, work)
    write(shipped / "00.ipynb", notebook("import parlab", STUB + CHECK, OTHER))
    assert len(update(shipped, work)) == 1
    assert files(work).keys() == {"00.ipynb", "00_2.ipynb", "00_3.ipynb", "solutions/00.ipynb"}
    assert sources(work / "00_3.ipynb") == ["import parlab", ANSWER + CHECK, OTHER]


@pytest.mark.parametrize("text", ["not JSON", "{}", '{"cells": 3}', ""])
def test_a_copy_that_cannot_be_read_is_left_alone(text, shipped, work):
    (work / "00.ipynb").write_text(text, encoding="utf-8")
    (said,) = update(shipped, work)
    assert "Answers carried over: none" in said
    assert (work / "00.ipynb").read_text(encoding="utf-8") == text
    assert sources(work / "00_2.ipynb") == sources(shipped / "00.ipynb")


@pytest.mark.parametrize(
    ("cells", "carried"),
    [
        ([STUB + CHECK], STUB),
        ([ANSWER + CHECK], ANSWER),
        ([ANSWER, 'labs.check("00.exchange", exchange)'], ANSWER),  # the check in a cell of its own
        (["def exchange(comm, x):\n    return 1", ANSWER + CHECK], ANSWER),  # a first try above
        (["exchange = lambda comm, x: (x, x)" + CHECK], "exchange = lambda comm, x: (x, x)"),
        (["def exchange(comm, x:\n    half" + CHECK], "def exchange(comm, x:\n    half"),  # no Python yet
        (["def both(x):\n    return x, x\n\n\n" + ANSWER + CHECK], "def both(x):\n    return x, x\n\n\n" + ANSWER),
        (["print(1)"], STUB),
        ([], STUB),
    ],
)
def test_an_answer_is_found_wherever_it_stands(cells, carried):
    new = notebook(STUB + CHECK)
    names = carry_over(notebook(*cells), new)
    assert new.cells[0].source == carried + CHECK
    assert names == ([] if carried == STUB else ["00.exchange"])


def test_saving_drops_the_widget_and_keeps_its_picture_and_text():
    made = notebook("views.explore_all_reduce_seconds()")
    data = {WIDGET: {"model_id": "3"}, "image/png": "picture", "text/plain": "explore_all_reduce_seconds"}
    made.cells[0].outputs = [
        nbformat.v4.new_output("display_data", data=data),
        nbformat.v4.new_output("stream", text="seen"),
    ]
    without_widgets({"type": "notebook", "content": made}, path="work/00.ipynb")
    assert made.cells[0].outputs[0].data == {"image/png": "picture", "text/plain": "explore_all_reduce_seconds"}
    without_widgets({"type": "file", "content": "text"}, path="work/answers.json")
    without_widgets({"type": "notebook", "content": None}, path="work/00.ipynb")
