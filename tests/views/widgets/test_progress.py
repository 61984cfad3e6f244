"""The bar shows while it runs and leaves nothing: in a stored notebook, under nbval, and in a terminal."""

from __future__ import annotations

import io
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from parlab.views.widgets.progress import WIDTH, progress

CELL = """\
from parlab.views.widgets.progress import progress

with progress(3) as on_step:
    for step in range(3):
        on_step(step, 1.5)
print("trained")
"""


class Shown(NotebookClient):
    """Notes every display message that passes."""

    def process_message(self, msg, cell, cell_index):
        if msg["msg_type"] == "display_data":
            self.displays.append(msg["content"]["data"])
        return super().process_message(msg, cell, cell_index)


@pytest.fixture(scope="module")
def executed():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    client = Shown(notebook, kernel_name="python3", store_widget_state=False)
    client.displays = []
    client.execute()
    return notebook, client.displays


def test_a_bar_is_shown_and_the_stored_cell_holds_the_print_alone(executed):
    notebook, displays = executed
    assert [list(data) for data in displays] == [["application/vnd.jupyter.widget-view+json"]]
    (output,) = notebook.cells[0].outputs
    assert (output["output_type"], output["text"]) == ("stream", "trained\n")


def test_the_stored_notebook_passes_nbval(executed, tmp_path):
    notebook, _ = executed
    nbformat.write(notebook, tmp_path / "bar.ipynb")
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_bar_that_is_erased(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress(2, "filling") as on_step:
        on_step(0, 2.0)
        on_step(1, 1.0)
    assert "█" * WIDTH + " filling 2/2, loss 1.000" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_pipe_gets_nothing(monkeypatch):
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with progress(1) as on_step:
        on_step(0, 2.0)
    assert pipe.getvalue() == ""


def test_it_is_removed_when_the_loop_fails(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    def train():
        with progress(2) as on_step:
            on_step(0, 2.0)
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        train()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_no_steps_are_refused():
    with pytest.raises(ValueError, match="steps=0: must be a whole number, at least 1"), progress(0):
        pass
