"""engine="nccl" among processes, on a stand-in for GPUs: all as on threads, to the bit, whoever starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parlab import per_rank, run
from parlab.world import DeadlockError, WorldError
from parlab.world.processes import launch, launchers, spawn
from tests.world.processes.fake_nccl import FakeCuPy, stop
from tests.world.processes.test_processes import ENDINGS, IN_PROC, SCRIPT, check_endings

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="NCCL is not for Windows")
ROOT = Path(__file__).parents[3]
INSTALL = "from tests.world.processes.fake_nccl import install; install()"
SEVERAL = [sys.executable, "-I", "-S", spawn.__file__]


def environment(port):
    return {
        **{name: value for name, value in os.environ.items() if name not in ("PARLAB_KEY", "RANK", "WORLD_SIZE")},
        **dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port - 1), PARLAB_KEY="k" * 32, PYTHONPATH=str(ROOT)),
    }


def job(size, port, *command):
    """Processes as torchrun starts them."""
    command = [*SEVERAL, str(size), sys.executable, *command]
    return subprocess.run(command, env=environment(port), cwd=ROOT, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize("size", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_programs_of_all_rooms_and_random_ones_have_the_bits_trace_words_and_makespan_of_threads(size, port):
    done = job(size, port, "-m", "tests.world.processes.nccl_job", "2")
    assert done.returncode == 0, done.stderr[-3000:]
    found = dict(map(json.loads, done.stdout.splitlines()))
    assert len(found) >= 38
    assert {name: differs for name, differs in found.items() if differs} == {}


# What `run` starts itself


@pytest.fixture
def fake(monkeypatch):
    """A machine with 4 GPUs, here and in the processes that `run` starts."""
    gpus = FakeCuPy()
    monkeypatch.setattr(launchers, "_cupy", lambda: gpus)
    monkeypatch.setattr(launch, "WORKER", f"{INSTALL}; {launch.WORKER}")
    monkeypatch.syspath_prepend(str(ROOT))
    yield gpus
    stop()


def test_run_starts_3_processes_and_brings_back_results_trace_prints_and_measured_times(fake, capsys):
    def program(comm, x, y):
        comm.print("on", os.environ["CUDA_DEVICE_MAX_CONNECTIONS"], os.environ["LOCAL_RANK"])
        return comm.all_reduce(x + y)

    arguments = (np.ones(5), per_rank([np.arange(5.0) + rank for rank in range(3)]))
    ours = run(program, 3, *arguments, engine="nccl")
    assert capsys.readouterr().out == "rank 0: on 32 0\nrank 1: on 32 1\nrank 2: on 32 2\n"
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
@pytest.mark.parametrize("started", ["by run", "as by torchrun"])
def test_whatever_ends_a_job_no_process_is_left_and_the_status_is_not_0(started, tmp_path, port):
    script = SCRIPT.replace('engine="mpi"', 'engine="nccl"')
    install = f"{INSTALL}; from parlab.world.processes import launch; launch.WORKER = '{INSTALL}; ' + launch.WORKER\n"
    (tmp_path / "script.py").write_text(install + script)
    command = [sys.executable, str(tmp_path / "script.py")]
    if started == "by run":
        check_endings(ENDINGS, command, lambda number: {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}, tmp_path)
    else:  # torchrun itself sees to signals
        command = [*SEVERAL, "3", *command]
        check_endings(ENDINGS[:2], command, lambda number: environment(port + 2 * number), tmp_path)
