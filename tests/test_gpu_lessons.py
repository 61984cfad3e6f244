"""Every lesson on CuPy, unchanged, prints what is stored. Where no GPU answers, `tests/standin` takes CuPy's place."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.libraries import GPU

STANDIN = Path(__file__).parent / "standin"
LESSONS = sorted(path for path in (Path(__file__).parents[1] / "notebooks").glob("*.ipynb") if path.stem[0].isdigit())


def python(*arguments, standin=True):
    known = {**os.environ, "PARLAB_ARRAYS": "cupy"}
    if standin:
        known["PYTHONPATH"] = os.pathsep.join([str(STANDIN), known.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    alone = [sys.executable, "-P"]  # the folder of the script, in which the stand-in lies, is not looked into
    return subprocess.run([*alone, *arguments], env=known, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_prints_on_cupy_what_is_stored(path):
    done = python(str(STANDIN / "lesson.py"), str(path), standin=not GPU)
    assert done.returncode == 0, done.stderr[-3000:]


WHOSE = """
import importlib.util
found = importlib.util.find_spec("cupy")
print(found is not None and "standin" in found.origin)
"""


@pytest.mark.parametrize("standin", [True, False])
def test_a_lesson_finds_the_stand_in_only_where_it_is_asked_for(standin, tmp_path):
    cell = {"cell_type": "code", "source": WHOSE, "outputs": [{"name": "stdout", "text": f"{standin}\n"}]}
    (tmp_path / "whose.ipynb").write_text(json.dumps({"cells": [cell]}))
    done = python(str(STANDIN / "lesson.py"), str(tmp_path / "whose.ipynb"), standin=standin)
    assert done.returncode == 0, done.stderr


REFUSED = {
    "x + numpy.ones(3)": "Unsupported type",
    "numpy.ones(3) + x": "Unsupported type",
    "xp.exp(numpy.ones(3))": "Unsupported type",
    "numpy.concatenate([x, numpy.ones(3)])": "Unsupported type",
    "numpy.asarray(x)": "Implicit conversion",
    "range(x.sum())": "cannot be interpreted as an integer",
    "x.__imatmul__": "has no attribute",
    "xp.block": "has no attribute",
}
TRY_EACH = """
import json, sys, numpy, cupy as xp

def said(what):
    x = xp.ones(3)
    try:
        return str(eval(what))
    except Exception as error:
        return str(error)

print(json.dumps({what: said(what) for what in sys.argv[1:]}))
"""


@pytest.fixture(scope="module")
def said():
    """By expression: the error of the stand-in."""
    done = python("-c", TRY_EACH, *REFUSED)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("what", "why"), REFUSED.items())
def test_the_stand_in_refuses_what_cupy_refuses(what, why, said):
    assert why in said[what]
