"""What a notebook stores: runs, timelines and figures as a picture and as text, widgets as text alone."""

import subprocess
import sys

import nbformat
import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient

from parlab import run, views
from parlab.views import display
from tests.views.drawn import ring


@pytest.fixture(scope="module")
def shown():
    shell = InteractiveShell.instance()
    display.register(shell)
    yield shell.display_formatter.format
    InteractiveShell.clear_instance()


DONE = run(ring, 4, np.ones(64))
LAST_LINES = {"run": DONE, "timeline": DONE.timeline, "figure": views.compare_timelines({"ring": DONE})}


@pytest.mark.parametrize("name", LAST_LINES)
def test_the_last_line_of_a_cell_is_a_picture_and_its_numbers(shown, name):
    data, metadata = shown(LAST_LINES[name])
    assert data["text/plain"] == repr(LAST_LINES[name])
    assert "makespan" in data["text/plain"] or "through one port" in data["text/plain"]
    assert data["image/png"].startswith(b"\x89PNG")
    assert set(data) == {"text/plain", "image/png"}


def test_a_picture_is_as_wide_as_its_page_with_half_as_many_pixels_more_and_says_what_it_shows(shown):
    data, metadata = shown(DONE)
    assert metadata["image/png"]["width"] == 1000
    assert int.from_bytes(data["image/png"][16:20]) == 1500
    assert metadata["image/png"]["alt"] == repr(DONE.timeline)


def test_matplotlib_inline_does_not_take_our_figures_over(shown):
    from matplotlib.figure import Figure

    formatter = InteractiveShell.instance().display_formatter.formatters["image/png"]
    formatter.for_type(Figure, lambda figure: b"theirs")  # what `%matplotlib inline` does
    try:
        assert shown(views.timeline(DONE))[0]["image/png"].startswith(b"\x89PNG")
    finally:
        formatter.pop(Figure)


def test_outside_a_notebook_there_is_nothing_to_register_with(monkeypatch):
    monkeypatch.setattr(display, "get_ipython", lambda: None)
    display.register()


CELLS = [
    """
import numpy as np
from parlab import run, views
def program(comm, x):
    comm.hold("x", x)
    return comm.all_reduce(x)
done = run(program, 3, np.ones(9))
done
""",
    "done.timeline",
    "views.timeline(done)",
    'views.compare_timelines({"all-reduce": done})',
    "views.all_reduce_seconds(4)",
    """
try:
    run(lambda comm, x: comm.send(x, comm.right), 2, np.ones(1))
except Exception as error:
    deadlock = error
views.deadlock(deadlock)
""",
    "views.explore_price_tag()",
    "views.explore_all_reduce_seconds()",
    'views.predict("How many?", 3)',
    "%matplotlib inline\nviews.timeline(done)",
]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A notebook with its outputs, as `make notebooks` stores them, without the widgets' own data."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in CELLS])
    NotebookClient(notebook, kernel_name="python3", store_widget_state=False).execute()
    for cell in notebook.cells:
        for output in cell.outputs:
            output.data.pop("application/vnd.jupyter.widget-view+json", None)
    path = tmp_path_factory.mktemp("stored") / "views.ipynb"
    nbformat.write(notebook, path)
    return path


def test_every_cell_stores_one_output_with_its_numbers_as_text(stored):
    for cell in nbformat.read(stored, as_version=4).cells:
        (output,) = cell.outputs
        text = output.data["text/plain"]
        assert "Figure" not in text, cell.source
        assert "children=" not in text, cell.source
        assert ("image/png" in output.data) == ("predict" not in cell.source)


def test_the_stored_outputs_pass_nbval(stored):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--nbval",
        "--nbval-current-env",
        "-q",
        "-p",
        "no:cacheprovider",
        stored.name,
    ]
    done = subprocess.run(command, cwd=stored.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
