"""A student's settings of matplotlib change no figure, and in a first cell nothing is written to standard error."""

import hashlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from parlab import views
from parlab.views.engine.defaults import by_defaults
from parlab.views.engine.explore import Explorer
from parlab.views.engine.picture import pixels
from parlab.views.world.all_reduce_seconds import all_reduce_seconds

DARK = {"axes.facecolor": "black", "text.color": "white", "font.size": 20, "lines.linewidth": 9, "hatch.linewidth": 5}
CELL = """
import hashlib, json, sys, threading
timer = threading.Timer  # matplotlib's, which speaks of the look for fonts after 5 s: here at once
threading.Timer = lambda seconds, say: timer(0, say)
from parlab import run, views
from parlab.views.engine.picture import pixels
drawn = [views.timeline(run(lambda comm: comm.barrier(), 2)), views.explore_all_reduce_seconds().figure]
print(json.dumps([hashlib.sha256(pixels(picture).tobytes()).hexdigest() for picture in drawn]))
assert "matplotlib.pyplot" not in sys.modules
import matplotlib
assert matplotlib.rcParams.copy() == matplotlib.rcParamsOrig.copy()  # reading them one by one would load pyplot
"""


def first_cell(folder, **environment):
    """What a fresh process draws, and what it writes to standard error."""
    given = {**os.environ, "PYTHONPATH": str(Path.cwd()), "MPLCONFIGDIR": str(folder), **environment}
    done = subprocess.run([sys.executable, "-c", CELL], env=given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The pictures of a process without settings, which had to look for fonts first."""
    return first_cell(tmp_path_factory.mktemp("fresh"))


def test_the_first_look_for_fonts_is_silent_needs_no_pyplot_and_changes_no_setting(usual):
    assert usual[1] == ""


def test_a_matplotlibrc_changes_no_picture_and_neither_it_nor_a_locked_cache_folder_is_spoken_of(usual, tmp_path):
    wrong = "no.such.setting: 1\nthis line has no colon\nlines.linewidth: thick\naxes.facecolor: black\nfont.size: 20\n"
    missing = "text.usetex: True\nfont.family: A Font That Is Not There\n"
    file = tmp_path / "matplotlibrc"
    file.write_text(wrong + missing, encoding="utf-8")
    assert first_cell(file / "in a file", MATPLOTLIBRC=str(file), TMPDIR=str(tmp_path)) == usual


def drawn(picture):
    return hashlib.sha256(pixels(picture).tobytes()).hexdigest()


def test_a_style_of_the_session_changes_no_picture_and_stays_as_it_was():
    usual = drawn(views.all_reduce_seconds())
    with matplotlib.rc_context(DARK):
        made = views.all_reduce_seconds()
        assert drawn(made) == usual
        explorer = Explorer("seconds", {}, lambda: all_reduce_seconds())
        assert drawn(explorer.figure) == usual
        assert {name: matplotlib.rcParams[name] for name in DARK} == DARK
    assert drawn(made) == usual


def test_a_figure_that_ends_in_an_error_leaves_the_settings_as_they_were():
    with matplotlib.rc_context(DARK):
        with pytest.raises(ValueError, match="size=0"):
            views.ring_masks(32, 0)
        assert {name: matplotlib.rcParams[name] for name in DARK} == DARK


def test_every_public_function_draws_by_defaults():
    functions = [f for name, f in vars(views).items() if inspect.isfunction(f) and not name.startswith("_")]
    assert len(functions) >= 50
    within = by_defaults(np.sum).__code__
    assert [f for f in functions if f.__code__ is not within] == []
