"""The edition in a browser, as `make lite` builds it: lessons run to their end there and say what is stored."""

import functools
import json
import re
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import nbformat
import pytest

from tests.browser import pyodide
from tests.browser.reader import LOOK, OPEN, PATIENCE, READY
from tools.lite import KERNEL, build

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


class Handler(SimpleHTTPRequestHandler):
    def guess_type(self, path):
        return {".mjs": "text/javascript", ".wasm": "application/wasm"}.get(Path(path).suffix) or super().guess_type(
            path
        )

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the built site, with the stand-in for Pyodide inside."""
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
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


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
    page = chromium.new_page(viewport={"width": 1280, "height": 1000})
    yield lambda name: Lesson(page, site, name)
    page.close()


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
