"""Build the edition that runs in a browser, without an install: `python -m tools.lite`, into `build/lite`.

The folder is a static site: JupyterLab as JupyterLite makes it, the lessons without their outputs, parlab's wheel and
those that it needs. Python itself, with NumPy and matplotlib, is Pyodide. The page loads it from Pyodide's own host, or
from the site, if `--pyodide` names the folder of a release. All is installed before the first cell runs.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbformat

from tools.exercises import NOTEBOOKS
from tools.open_lab import SHIPPED, update
from tools.visit import chromium, first_visit

ROOT = NOTEBOOKS.parent
FIRST = "00_ranks_and_messages.ipynb"
STARTS_PROCESSES = "09_leaving_the_laptop.ipynb"  # which a page in a browser cannot
NOTE = """> **In this page you read this lesson, and do not run it.** It starts processes, and a page in a
> browser has none. Below its cells stands what they printed on a machine with two cores. To run it: `make lab`."""
BROUGHT = ("array-api-compat", "cloudpickle", "filelock", "ipywidgets")  # pure Python, which Pyodide does not bring
KNOWN = ("numpy", "matplotlib", "pillow", "safetensors", "threadpoolctl")  # those that it does
KERNEL = "@jupyterlite/pyodide-kernel-extension"
WIDGETS = "@jupyter-widgets/jupyterlab-manager"
LABEXTENSIONS = Path(sys.prefix) / "share/jupyter/labextensions"
FROM_WORKER = "../" * 4  # from the kernel's script, in extensions/@jupyterlite/pyodide-kernel-extension/static
OPENING = f"""<!doctype html>
<meta charset="utf-8">
<title>parlab</title>
<meta http-equiv="refresh" content="0; url=lab/index.html?path={FIRST}">
<script id="jupyter-config-data" type="application/json" data-jupyter-lite-root=".">{{}}</script>
<a href="lab/index.html?path={FIRST}">Open lesson 00</a>
"""  # JupyterLite's own pages look for the script here
STYLE = '<link rel="stylesheet" href="../static/parlab.css">\n</head>'


def build(site: Path, *, pyodide: Path | None = None, solutions: bool = True) -> None:
    """Write the site into the folder `site`, which is emptied first.

    Args:
        pyodide: the unpacked folder of a Pyodide release, copied into the site; None: its own host serves it.
        solutions: whether the notebooks of solutions are among the lessons.
    """
    shutil.rmtree(site, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        update(NOTEBOOKS, work / "lessons")
        if not solutions:
            shutil.rmtree(work / "lessons/solutions")
        _to_be_read(work / "lessons" / STARTS_PROCESSES)
        for place in (work / "lessons").rglob("*.ipynb"):
            _for_a_page(place)
        _wheels(work / "wheels")
        wheels = sorted(path.name for path in (work / "wheels").iterdir())
        (work / "lite").mkdir()
        (work / "lite/jupyter-lite.json").write_text(json.dumps(settings(wheels, at_home=pyodide is not None)))
        shutil.copy(SHIPPED / "settings/overrides.json", work / "lite/overrides.json")
        told = ["--contents", work / "lessons", "--output-dir", site.resolve(), "--apps", "lab", "--no-sourcemaps"]
        parts = [f"--LiteBuildConfig.federated_extensions={LABEXTENSIONS / name}" for name in (WIDGETS, KERNEL)]
        told += ["--ignore-sys-prefix", *parts]  # else it takes all that is installed here, nbgrader's buttons too
        _run("-m", "jupyterlite_core", "build", *told, inside=work / "lite")  # where it keeps a file of what it did
        shutil.copytree(work / "wheels", site / "wheels")
    (site / "static").mkdir(exist_ok=True)
    if pyodide is not None:
        shutil.copytree(pyodide, site / "static/pyodide")
    shutil.copy(SHIPPED / "custom/custom.css", site / "static/parlab.css")
    page = site / "lab/index.html"
    page.write_text(page.read_text(encoding="utf-8").replace("</head>", STYLE, 1), encoding="utf-8")
    (site / "index.html").write_text(OPENING, encoding="utf-8")


def settings(wheels: list[str], *, at_home: bool) -> dict[str, Any]:
    """What JupyterLite reads: which Python, and what is installed before the kernel is handed over."""
    packages = [*KNOWN, *(f"{FROM_WORKER}wheels/{name}" for name in wheels)]
    kernel: dict[str, Any] = {"loadPyodideOptions": {"packages": packages}}
    if at_home:
        kernel |= {"pyodideUrl": "./static/pyodide/pyodide.mjs", "disablePyPIFallback": True}
    data = {"appName": "parlab", "exposeAppInBrowser": True, "litePluginSettings": {f"{KERNEL}:kernel": kernel}}
    return {"jupyter-lite-schema-version": 0, "jupyter-config-data": data}


def _to_be_read(place: Path) -> None:
    """Write a lesson with its outputs, and with a note above it."""
    notebook = nbformat.read(NOTEBOOKS / place.name, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell(NOTE, id="read-it"))
    nbformat.write(notebook, place)


def _for_a_page(place: Path) -> None:
    """Write a notebook as the page's JupyterLab wants it: texts in one piece, and films of cells that it trusts."""
    notebook = nbformat.read(place, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.metadata["trusted"] = True
    place.write_text(json.dumps(notebook), encoding="utf-8")


def _wheels(folder: Path) -> None:
    shutil.rmtree(ROOT / "build/lib", ignore_errors=True)  # else files that are gone would come back from there
    _run("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    constraints = ["--constraint", ROOT / "constraints.txt"]
    _run("-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, *constraints, *BROUGHT)


def _run(*arguments: object, inside: Path = ROOT) -> None:
    done = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, cwd=inside)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, arguments))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def pyodide_version(site: Path) -> str:
    """The release that a site asks for: its own, or one of Pyodide's host."""
    own = site / "static/pyodide/pyodide-lock.json"
    if own.exists():
        return json.loads(own.read_text(encoding="utf-8"))["info"]["version"]
    scripts = (site / "extensions" / KERNEL / "static").glob("*.js")
    named = (re.search(r"/pyodide/v([\d.]+)/", path.read_text(encoding="utf-8")) for path in scripts)
    return next(found[1] for found in named if found)


def megabytes(folder: Path) -> float:
    """The size of all files in a folder, in MB."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site", type=Path, default=ROOT / "build/lite", help="the folder of the site")
    parser.add_argument("--pyodide", type=Path, help="the folder of a Pyodide release, for a room without a way out")
    parser.add_argument("--no-solutions", action="store_true", help="leave the notebooks of solutions out")
    options = parser.parse_args()
    build(options.site, pyodide=options.pyodide, solutions=not options.no_solutions)
    made_of = ", ".join(f"{name} {version(name)}" for name in ("jupyterlite-core", "jupyterlite-pyodide-kernel"))
    print(f"{options.site}: {megabytes(options.site):.0f} MB, {made_of}, Pyodide {pyodide_version(options.site)}")
    try:
        with chromium() as browser:
            visit = first_visit(browser, options.site, FIRST)
        print(f"first visit: {visit.megabytes:.0f} MB, {visit.seconds:.0f} seconds to the result of the first cell")
    except (FileNotFoundError, ConnectionError, TimeoutError) as error:
        print(f"first visit: not measured, {error}")
    print(f"python -m http.server --directory {options.site}  # or make lite-serve; then open http://localhost:8000")


if __name__ == "__main__":
    main()
