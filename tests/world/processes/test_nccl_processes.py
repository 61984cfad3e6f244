"""engine="nccl" among processes, on a stand-in for GPUs: all as on threads, to the bit, whoever starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from parlab import per_rank, run
from parlab.world import DeadlockError, WorldError
from parlab.world.processes import launch, machine
from tests.world.processes.fake_nccl import FakeCuPy, stop
from tests.world.processes.test_processes import ENDINGS, IN_PROC, MPIEXEC, ROOT, SCRIPT, check_endings, environment

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="NCCL is not for Windows")
INSTALL = "from tests.world.processes.fake_nccl import install; install()"


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)])
def test_programs_of_all_rooms_and_random_ones_have_the_bits_trace_words_and_makespan_of_threads(size):
    command = [MPIEXEC, "-n", str(size), sys.executable, "-m", "tests.world.processes.nccl_job", "2"]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    found = dict(map(json.loads, done.stdout.splitlines()))
    assert len(found) >= 38
    assert {name: differs for name, differs in found.items() if differs} == {}


# What `run` starts itself


@pytest.fixture
def fake(monkeypatch):
    """A machine with 4 GPUs, here and in the processes that `run` starts."""
    gpus = FakeCuPy()
    monkeypatch.setattr(machine, "_cupy", lambda: gpus)
    monkeypatch.setattr(launch, "WORKER", f"{INSTALL}; {launch.WORKER}")
    monkeypatch.syspath_prepend(str(ROOT))
    yield gpus
    stop()


def test_run_starts_3_processes_and_brings_back_results_trace_prints_and_measured_times(fake, capsys):
    def program(comm, x, y):
        comm.print("on", machine._cupy().used, os.environ["CUDA_DEVICE_MAX_CONNECTIONS"])
        return comm.all_reduce(x + y)

    arguments = (np.ones(5), per_rank([np.arange(5.0) + rank for rank in range(3)]))
    ours = run(program, 3, *arguments, engine="nccl")
    assert capsys.readouterr().out == "rank 0: on 0 32\nrank 1: on 1 32\nrank 2: on 2 32\n"
    threads = run(lambda comm, x, y: comm.all_reduce(x + y), 3, *arguments)
    assert [x.tobytes() for x in ours.results] == [x.tobytes() for x in threads.results]
    assert len(ours.wallclock.transfers) == len(threads.timeline.transfers) == 12


def test_a_deadlock_and_an_error_are_told_as_on_threads(fake):
    def crossed(comm):
        if comm.rank:
            raise KeyError("rank 1 it is")
        comm.recv(1, np.ones(2))

    with pytest.raises(KeyError, match="rank 1 it is") as caught:
        run(crossed, 2, engine="nccl")
    assert caught.value.rank == 1
    texts = []
    for engine in ("threads", "nccl"):
        with pytest.raises(DeadlockError) as deadlock:
            run(lambda comm: comm.send(np.ones(2), comm.right), 3, engine=engine)
        texts.append(str(deadlock.value))
    assert texts[0] == texts[1]


def test_a_gpu_that_fails_on_one_rank_ends_all_and_shows_why(fake, capfd):
    def program(comm):
        from parlab.world.processes import nccl

        if comm.rank == 1:
            nccl._Pair.launch = lambda pair, leaves, posted: print(1 // 0)
        return comm.all_reduce(np.ones(3))

    with pytest.raises(WorldError, match="a process ended before its program did: the status is"):
        run(program, 2, engine="nccl")
    assert "ZeroDivisionError" in capfd.readouterr().out


@pytest.mark.slow
@IN_PROC
@pytest.mark.parametrize("started", ["by run", "by mpiexec"])
def test_whatever_ends_a_job_no_process_is_left_and_the_status_is_not_0(started, tmp_path):
    install = f"{INSTALL}; from parlab.world.processes import launch; launch.WORKER = '{INSTALL}; ' + launch.WORKER\n"
    (tmp_path / "script.py").write_text(install + SCRIPT.replace('engine="mpi"', 'engine="nccl"'))
    command = [sys.executable, str(tmp_path / "script.py")]
    command = command if started == "by run" else [MPIEXEC, "-n", "3", *command]
    check_endings(ENDINGS, command, lambda number: environment(), tmp_path)
