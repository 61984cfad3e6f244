"""engine="nccl" among processes: all as on threads, to the bit. On GPUs, which ranks may share; else on a stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from parlab import per_rank, run
from parlab.arrays import to_numpy
from parlab.cli.checks import findings
from parlab.world import WorldError
from parlab.world.processes import launch, machine
from tests.libraries import CUPY
from tests.world.processes.fake_nccl import FakeCuPy, stop
from tests.world.processes.process_job import bits
from tests.world.processes.test_processes import MPIEXEC, ROOT, environment

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="NCCL is not for Windows")
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0"}  # ranks may share a GPU
slow = pytest.mark.slow


def answer():
    """Whether two ranks can run on GPUs here."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SHARED.items():
            patch.setenv(name, value)
        try:
            machine.check("nccl", 2)
        except ValueError:
            return False
    return True


GPUS = answer()
xp = CUPY if GPUS else np  # on the stand-in NumPy's arrays lie on the GPU
needs_gpu = pytest.mark.skipif(not GPUS, reason="no GPU answers")


@pytest.fixture(autouse=True)
def gpus(monkeypatch):
    """Where no GPU answers, 4 of the stand-in, here and in the processes that `run` starts."""
    for name, value in SHARED.items() if GPUS else ():
        monkeypatch.setenv(name, value)
    if not GPUS:
        fake = FakeCuPy()
        monkeypatch.setattr(machine, "_cupy", lambda: fake)
        install = "from tests.world.processes.fake_nccl import install; install()"
        monkeypatch.setattr(launch, "WORKER", f"{install}; {launch.WORKER}")
        monkeypatch.syspath_prepend(str(ROOT))
    yield
    stop()


SOME = "random|other|groups|late|named|prints|both_send|skips|sends_another"  # what differs from MPI, and 7 that fail


@pytest.mark.parametrize(
    ("size", "some"),
    [pytest.param(3, SOME, id="3 some"), *(pytest.param(size, "", id=f"{size} all", marks=slow) for size in (2, 3, 4))],
)
def test_programs_of_all_rooms_and_random_ones_have_the_bits_trace_words_and_makespan_of_threads(size, some):
    command = [MPIEXEC, "-n", str(size), sys.executable, "-m", "tests.world.processes.nccl_job", "2", some]
    command += ["gpus"] if GPUS else []
    known = environment() | machine.ENVIRONMENT["nccl"]
    done = subprocess.run(command, env=known, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    found = dict(map(json.loads, done.stdout.splitlines()))
    assert len(found) >= (12 if some else 33)
    assert {name: differs for name, differs in found.items() if differs} == {}


def test_run_starts_3_processes_each_on_its_gpu_and_brings_back_results_trace_prints_and_measured_times(capsys):
    def program(comm, x, y):
        gpu = machine._cupy().cuda.runtime.getDevice()
        comm.print("on", gpu, os.environ["CUDA_DEVICE_MAX_CONNECTIONS"])
        return comm.all_reduce(x + y)

    arguments = xp.ones(5), per_rank([xp.asarray(np.arange(5.0) + rank) for rank in range(3)])
    ours = run(program, 3, *arguments, engine="nccl")
    gpus = machine._cupy().cuda.runtime.getDeviceCount()
    assert capsys.readouterr().out == "".join(f"rank {rank}: on {rank % gpus} 32\n" for rank in range(3))
    threads = run(lambda comm, x, y: comm.all_reduce(x + y), 3, *arguments)
    assert bits(ours.results) == bits(threads.results)
    assert len(ours.wallclock.transfers) == len(threads.timeline.transfers) == 12


def test_a_gpu_that_fails_on_one_rank_ends_all_and_shows_why(capfd):
    def program(comm, x):
        from parlab.world.processes import nccl

        if comm.rank == 1:
            nccl._Pair.launch = lambda pair, leaves, ready_event: print(1 // 0)
        return comm.all_reduce(x)

    with pytest.raises(WorldError, match="a process ended before its program did: the status is"):
        run(program, 2, xp.ones(3), engine="nccl")
    assert "ZeroDivisionError" in capfd.readouterr().out


@slow
@pytest.mark.skipif(GPUS, reason="here ranks share GPUs")
def test_a_rank_whose_machine_has_too_few_gpus_ends_all_and_shows_why():
    script = (
        "from tests.world.processes.fake_nccl import install; install(); from parlab.world.processes import machine\n"
    )
    script += "import os; from parlab import run\n"
    script += "machine._cupy().cuda.runtime.getDeviceCount = lambda: 2 - int(os.environ['PMI_RANK'])\n"
    script += "run(print, 2, engine='nccl')"
    command = [MPIEXEC, "-n", "2", sys.executable, "-c", script]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "size=2: NCCL needs a GPU for each of 2 ranks here, and there are 1" in done.stderr


@needs_gpu
def test_a_sum_of_128_mib_a_rank_is_numpys():
    xs = [np.arange(2.0**24) % 7 + rank for rank in range(2)]
    done = run(lambda comm, x: comm.all_reduce(x), 2, per_rank([xp.asarray(x) for x in xs]), engine="nccl")
    assert all(np.array_equal(to_numpy(x), xs[0] + xs[1]) for x in done.results)


@needs_gpu
def test_the_doctor_says_that_nccl_works():
    (nccl,) = [finding for finding in findings() if finding.name == "NCCL"]
    assert nccl.works, nccl.seen
