"""The edition in a browser, as `make lite` builds it: lessons run to their end there and say what is stored."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.browser import pyodide
from tests.browser.reader import LOOK, OPEN, PATIENCE, READY
from tools.lite import FIRST, KERNEL, STARTS_PROCESSES, build, pyodide_version
from tools.visit import first_visit, served

ROOT = Path(__file__).parents[2]
WIDGETS = r"views\.(predict|explore_\w+|reorder)\(|\.opened\(\)"
VIEW = "application/vnd.jupyter.widget-view+json"
RUN_CELL = """async ([number, source]) => {
    const notebook = jupyterapp.shell.currentWidget.content;
    notebook.activeCellIndex = number;
    notebook.deselectAll();
    if (source) notebook.activeCell.model.sharedModel.setSource(source);
    await jupyterapp.commands.execute("notebook:run-cell");
    return notebook.activeCell.model.toJSON().outputs;
}"""

WRITE_CELL = """([number, source]) => {
    const model = jupyterapp.shell.currentWidget.content.widgets[number].model.sharedModel;
    const before = model.getSource();
    model.setSource(source);
    return before;
}"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the built site, with the stand-in for Pyodide inside."""
    folder = tmp_path_factory.mktemp("lite")
    try:
        release = pyodide.release(folder)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    site, wheels = folder / "site", folder / "comm"
    build(site, pyodide=release)
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels, "comm"], check=True
    )
    pyodide.complete(site / "static/pyodide", site / "extensions" / KERNEL / "static/pypi", wheels)
    place = site / "jupyter-lite.json"
    config = json.loads(place.read_text())
    kernel = config["jupyter-config-data"]["litePluginSettings"][f"{KERNEL}:kernel"]
    kernel["loadPyodideOptions"]["packages"] += pyodide.KERNEL
    place.write_text(json.dumps(config))
    return site


@pytest.fixture(scope="module")
def site(built):
    with served(built) as address:
        yield address


class Lesson:
    """A lesson that is open in the page; its cells run one by one."""

    def __init__(self, page, site, name):
        self.page = page
        page.set_default_timeout(1000 * PATIENCE)
        page.goto(f"{site}/lab/index.html?path={name}.ipynb")
        page.wait_for_function(READY)
        page.wait_for_function(OPEN, arg=f"{name}.ipynb")

    def run(self, number, source=""):
        """The outputs of a cell, by its number in the notebook; `source` is written into it first."""
        return self.page.evaluate(RUN_CELL, [number, source])

    def texts(self, number, source=""):
        return texts(self.run(number, source))


@pytest.fixture
def lesson(chromium, site):
    visitor = chromium.new_context(viewport={"width": 1280, "height": 1000})
    yield lambda name: Lesson(visitor.new_page(), site, name)
    visitor.close()


def joined(text):
    return text if isinstance(text, str) else "".join(text)


def texts(outputs):
    """What a reader of plain text sees: prints in one piece, then the rest in order; None for a live widget."""
    printed = "".join(joined(output["text"]) for output in outputs if output["output_type"] == "stream")
    shown = [output["data"] for output in outputs if "data" in output]
    return [printed, *(None if VIEW in data else joined(data.get("text/plain", "")) for data in shown)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["00_ranks_and_messages", "02_ring_attention", "04_pipeline_schedules"])
def test_a_lesson_runs_to_its_last_cell_and_says_what_is_stored(lesson, name):
    stored = nbformat.read(ROOT / f"notebooks/{name}.ipynb", as_version=4).cells
    code = {number: cell for number, cell in enumerate(stored) if cell.cell_type == "code"}
    opened, live, wrong = lesson(name), set(), {}
    for number, cell in code.items():
        outputs = opened.run(number)
        errors = [output["evalue"] for output in outputs if output["output_type"] == "error"]
        assert not errors, f"{name}, cell {number}: {errors}\n{cell.source}"
        found, expected = texts(outputs), texts(cell.outputs)
        if None in found:
            live.add(number)
        elif found != expected:
            wrong[number] = found, expected
    assert not wrong
    assert live == {number for number, cell in code.items() if re.search(WIDGETS, cell.source)}


def cell_with(text, notebook):
    """The number and the source of the first cell that has this text."""
    cells = nbformat.read(ROOT / notebook, as_version=4).cells
    return next((number, cell.source) for number, cell in enumerate(cells) if text in cell.source)


ENDLESS = """
def answer(*arguments):
    while True:
        pass
"""


@pytest.mark.slow
def test_a_slider_starts_ranks_a_guess_locks_and_answers_are_checked(lesson):
    """Lesson 00: a moved slider draws another picture, a right answer passes, an endless one ends."""
    name = "00_ranks_and_messages"
    cells = nbformat.read(ROOT / f"notebooks/{name}.ipynb", as_version=4).cells
    solved = nbformat.read(ROOT / f"notebooks/solutions/{name}.ipynb", as_version=4).cells
    opened = lesson(name)
    slider, exercise = (
        next(number for number, cell in enumerate(cells) if word in cell.source) for word in ("explore_", "labs.check(")
    )
    for number, cell in enumerate(cells[: max(slider, exercise) + 1]):
        if cell.cell_type == "code":
            opened.run(number)

    field = opened.page.locator(".parlab-predict input").nth(1)
    field.fill("7")
    opened.page.locator(".parlab-predict button", has_text="Compare").nth(1).click()
    opened.page.get_by_text("you said 7").first.wait_for()

    output = opened.page.locator(".jp-Cell", has=opened.page.locator(".noUi-handle")).first
    before = output.evaluate(LOOK)
    handle = output.locator(".noUi-handle").first
    handle.focus()
    for _ in range(3):
        handle.press("ArrowRight")
    while output.evaluate(LOOK) == before:
        opened.page.wait_for_timeout(100)

    check = next(line for line in cells[exercise].source.splitlines() if "labs.check(" in line)
    answer = check.split(",")[1].strip(" )")
    right = next(cell.source for cell in solved if check in cell.source)
    assert "passed" in opened.texts(exercise, right)[0]
    endless = ENDLESS.replace("answer", answer) + check
    assert "still running after 2 000 000 lines" in opened.texts(exercise, endless)[0]
    assert "not written yet" in opened.texts(exercise, cells[exercise].source)[0]


@pytest.mark.slow
def test_a_first_visit_sees_the_first_picture_and_takes_less_than_50_megabytes(chromium, built):
    visit = first_visit(chromium, built, FIRST)
    assert visit.outputs == ["execute_result"]
    assert 20 < visit.megabytes < 50
    assert pyodide_version(built) == "0.27.7"


@pytest.mark.slow
def test_an_answer_is_there_at_the_next_visit_and_its_download_is_graded(lesson, tmp_path):
    name, exercise = "01_collectives", "01.reduce_scatter"
    number, _ = cell_with(f'labs.check("{exercise}"', f"notebooks/{name}.ipynb")
    _, right = cell_with(f'labs.check("{exercise}"', f"notebooks/solutions/{name}.ipynb")
    first = lesson(name)
    assert first.page.evaluate(WRITE_CELL, [number, right]) != right
    first.page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    first.page.close()

    again = lesson(name)
    assert again.page.evaluate(WRITE_CELL, [number, right]) == right
    with again.page.expect_download() as download:
        again.page.evaluate("() => void jupyterapp.commands.execute('docmanager:download')")
    (tmp_path / "in").mkdir()
    download.value.save_as(tmp_path / f"in/{download.value.suggested_filename}")
    told = ["grade", tmp_path / "in", "--out", tmp_path / "grades.csv", "--exercises", exercise, "--extra", "0"]
    subprocess.run([sys.executable, "-m", "parlab", *map(str, told)], check=True, capture_output=True)
    (row,) = csv.DictReader((tmp_path / "grades.csv").read_text().splitlines())
    assert row["passed"] == row["of"] == "1"


@pytest.mark.slow
def test_the_lesson_of_processes_says_that_it_is_read_and_shows_its_first_film(lesson):
    opened = lesson(STARTS_PROCESSES.removesuffix(".ipynb"))
    opened.page.locator("strong", has_text="you read this lesson, and do not run it").wait_for()
    opened.page.locator(".film svg").first.wait_for()
    assert "a page starts no processes" in opened.page.evaluate(RUN_CELL, [2, ""])[0]["evalue"]


@pytest.mark.slow
def test_without_a_pyodide_of_its_own_the_site_names_its_hosts_and_has_12_lessons_and_no_solutions_if_told(tmp_path):
    build(tmp_path, solutions=False)
    assert pyodide_version(tmp_path) == "314.0.6"
    assert len(list(tmp_path.glob("files/[0-9]*.ipynb"))) == 12
    assert not list(tmp_path.rglob("solutions"))
    page = (tmp_path / "lab/index.html").read_text(encoding="utf-8")
    assert (tmp_path / "lab" / re.search(r'href="([^"]+parlab.css)"', page)[1]).exists()
