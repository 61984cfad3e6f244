"""Run a notebook's cells and hold what they print to what is stored: on CuPy or what stands in for it, or on ranks that
take turns.

Called with the notebook's path; figures are made, and not drawn.
"""

import json
import os
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell


def main(path: Path) -> None:
    os.chdir(path.parent)
    shell = InteractiveShell.instance()
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]  # to import nbformat takes 3 s
    for number, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            continue
        texts = [output["text"] for output in cell["outputs"] if output.get("name") == "stdout"]
        stored = "".join(line for text in texts for line in text)
        with redirect_stdout(StringIO()) as printed:
            done = shell.run_cell("".join(cell["source"]), silent=True)
        done.raise_error()
        timed = "nbval-ignore-output" in cell.get("metadata", {}).get("tags", [])  # it prints what a watch says
        if not timed and printed.getvalue() != stored:
            sys.exit(f"cell {number} printed\n{printed.getvalue()}\nand not\n{stored}")


if os.environ.get("PARLAB_STRANDS") == "greenlets":
    from tests.standin import greenlets

    greenlets.install()
main(Path(sys.argv[1]).resolve())
