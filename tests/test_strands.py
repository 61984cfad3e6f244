"""Ranks that take turns on one thread, as in a browser: the world's tests and every lesson pass on them, too."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from parlab import run
from parlab.world import DeadlockError, WorldError
from parlab.world.engines import strands
from tests.standin import greenlets

ROOT = Path(__file__).parents[1]
PROCESSES = "09"  # the number of the lesson whose ranks are processes
LESSONS = [path for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")) if not path.name.startswith(PROCESSES)]


@pytest.fixture(params=["threads", "greenlets"])
def kind(request, monkeypatch):
    if request.param == "greenlets":
        monkeypatch.setattr(strands, "kind_of_strand", lambda: greenlets.Greenlet)
    return request.param


def python(*arguments, **known):
    place = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    known = {**os.environ, "PARLAB_STRANDS": "greenlets", "PYTHONPATH": place}
    return subprocess.run(
        [sys.executable, *arguments], env=known, cwd=ROOT, capture_output=True, text=True, timeout=900
    )


def around(comm, x):
    for _ in range(comm.size):
        x = comm.sendrecv(x, comm.right, comm.left)
    return comm.iall_reduce(x).wait()


def test_4_ranks_send_a_ring_and_add_10_whoever_goes_first(kind):
    done = run(around, 4, np.ones(1) * 2.5)
    assert [result.item() for result in done.results] == [10.0] * 4
    assert len(done.timeline.transfers) == 4 * 4 + 4 * 2 * 3


def both_receive(comm):
    comm.recv(1 - comm.rank, np.empty(1))


def test_a_deadlock_of_2_ranks_names_both_lines(kind):
    with pytest.raises(DeadlockError) as caught:
        run(both_receive, 2)
    assert str(caught.value).count("of both_receive: comm.recv(1 - comm.rank, np.empty(1))") == 2
    assert run(lambda comm: comm.rank, 2).results == [0, 1]


def deep(comm, levels):
    return deep(comm, levels - 1) if levels else comm.all_gather(np.ones(1)).size


def test_each_of_8_ranks_has_600_levels_of_recursion_for_itself(kind):
    assert run(deep, 8, 600).results == [8] * 8


def seen(comm, error):
    with np.errstate(divide=error):
        comm.barrier()
        return np.geterr()["divide"]


def test_what_2_ranks_set_in_their_context_stays_their_own(kind):
    from parlab import per_rank

    assert run(seen, 2, per_rank(["ignore", "raise"])).results == ["ignore", "raise"]


def test_a_strand_that_is_woken_before_it_parks_goes_on_and_2_wakes_are_refused(kind):
    strand = strands.kind_of_strand()()
    strand.wake()
    with pytest.raises(RuntimeError):
        strand.wake()
    assert strand.park()


def test_a_browser_without_stacks_is_refused_with_the_3_kinds_that_have_them(monkeypatch):
    ffi = ModuleType("pyodide.ffi")
    ffi.can_run_sync = lambda: False
    monkeypatch.setitem(sys.modules, "pyodide", ModuleType("pyodide"))
    monkeypatch.setitem(sys.modules, "pyodide.ffi", ffi)
    monkeypatch.setattr(strands, "IN_BROWSER", True)
    with pytest.raises(WorldError, match="Chrome and Edge can from 137, Firefox from 153, Safari from 27"):
        strands.kind_of_strand()
    setup, guide = ((ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("setup", "instructors"))
    assert "Chrome and Edge from 137, Firefox from 153, Safari from 27" in setup
    assert "Chrome or Edge 137, Firefox 153, Safari 27" in guide


@pytest.mark.slow
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_prints_what_is_stored_where_ranks_take_turns(path):
    done = python("tests/standin/lesson.py", str(path))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_the_worlds_tests_pass_where_ranks_take_turns():
    quick = ["-q", "-m", "not slow and not threads", "-p", "no:cacheprovider", "--ignore=tests/world/processes"]
    done = python("-m", "pytest", "tests/world", *quick)
    assert done.returncode == 0, done.stdout[-3000:]
