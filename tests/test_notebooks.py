"""The stored notebooks are as `make notebooks` writes them: whole, in order, without errors, the same every time."""

from pathlib import Path

import nbformat
import pytest

from tools.store_outputs import METADATA, WIDGET, store_outputs

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.rglob("*.ipynb"))
WATCHED = {  # by lesson: the last lines of the cells whose output no run repeats: a watch measured it
    "09_leaving_the_laptop": [
        'views.film({"computed": step, "measured": step.wallclock})',
        "views.film(ways, messages=True)",
        '    print(f"rank {rank}: told 60 and 120 ms, took {1000 * forward:.0f} and {1000 * backward:.0f}")',
        "views.explore_step_costs(schedules, layers, costs)",
        'views.film({"forecast": built, "measured": built.wallclock})',
    ]
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_stored_notebook_was_run_in_order_without_errors_and_holds_nothing_of_the_machine_that_ran_it(path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    outputs = [output for cell in code for output in cell.outputs]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert not [output for output in outputs if WIDGET in output.get("data", {})]
    assert notebook.metadata == METADATA
    folded = {"jp-MarkdownHeadingCollapsed": True}  # a section of *further*, as the notebook opens
    watched = {"tags": ["nbval-ignore-output"]}  # a film of times that a watch has taken
    known = {"markdown": [{}, folded], "code": [{}, watched]}
    assert all(cell.metadata in known[cell.cell_type] for cell in notebook.cells)
    if path.parent == FOLDER:
        assert [cell.source.splitlines()[-1] for cell in code if cell.metadata] == WATCHED.get(path.stem, [])
    texts = [output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs]
    assert not [text for text in texts if " at 0x" in text or "/home/" in text or "ipykernel" in text]


@pytest.mark.slow
def test_storing_outputs_twice_writes_the_same_bytes_and_drops_stale_ones(tmp_path):
    path = tmp_path / "throwaway.ipynb"
    widget = nbformat.v4.new_code_cell("import ipywidgets\nipywidgets.IntSlider(8, description='ranks')")
    slow = nbformat.v4.new_code_cell("import time\nprint(1, flush=True)\ntime.sleep(0.5)\nprint(2)")
    empty = nbformat.v4.new_code_cell("", execution_count=7)
    nbformat.write(nbformat.v4.new_notebook(cells=[widget, slow, empty]), path)
    store_outputs(path)
    first = path.read_bytes()
    store_outputs(path)
    assert path.read_bytes() == first
    shown, printed, nothing = nbformat.read(path, as_version=4).cells
    assert shown.outputs[0].data == {"text/plain": "IntSlider(value=8, description='ranks')"}
    assert [output.text for output in printed.outputs] == ["1\n2\n"]
    assert nothing.execution_count is None
