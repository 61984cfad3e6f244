"""Run notebooks, or all in a folder, and store their outputs: `python tools/store_outputs.py notebooks`.

Times, Python's version and widgets' random names differ from run to run or from machine to machine, and are left out.
So a change in a stored notebook is a change in its text or its figures.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

WIDGET = "application/vnd.jupyter.widget-view+json"


METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def store_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    NotebookClient(
        notebook,
        kernel_name="python3",
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        coalesce_streams=True,
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET, None)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for given in map(Path, sys.argv[1:]):
        for path in [given] if given.is_file() else sorted(given.rglob("*.ipynb")):
            if ".ipynb_checkpoints" not in path.parts:
                print(path, flush=True)
                store_outputs(path)
