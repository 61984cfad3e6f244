"""engine="nccl" on GPUs, with NCCL: all as on threads, to the bit. Two ranks or more may share a GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from parlab import per_rank, run
from parlab.arrays import to_numpy
from parlab.cli.checks import findings
from parlab.world.processes import machine
from tests.libraries import CUPY
from tests.world.processes.process_job import bits, ring
from tests.world.processes.test_processes import MPIEXEC, ROOT, environment

SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0"}  # ranks may share a GPU


def refusal():
    """Why two ranks cannot run here, or nothing."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SHARED.items():
            patch.setenv(name, value)
        try:
            machine.check("nccl", 2)
        except ValueError as error:
            return str(error)
    return ""


pytestmark = pytest.mark.skipif(bool(refusal()), reason=refusal() or "it runs")


@pytest.fixture(autouse=True)
def shared(monkeypatch):
    for name, value in SHARED.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ring_attention_on_a_gpu_has_the_bits_and_the_makespan_of_threads(size):
    program, inputs, how = ring(size, CUPY)
    by_nccl, by_threads = (run(program, size, *inputs, engine=engine, **how) for engine in ("nccl", "threads"))
    assert bits(by_nccl.results) == bits(by_threads.results)
    assert by_nccl.timeline.makespan == by_threads.timeline.makespan
    assert all(isinstance(x, CUPY.ndarray) for result in by_nccl.results for x in result)


def test_a_sum_of_128_mib_a_rank_is_numpys():
    xs = [np.arange(2.0**24) % 7 + rank for rank in range(2)]
    done = run(lambda comm, x: comm.all_reduce(x), 2, per_rank([CUPY.asarray(x) for x in xs]), engine="nccl")
    assert all(np.array_equal(to_numpy(x), xs[0] + xs[1]) for x in done.results)


@pytest.mark.parametrize("size", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_programs_of_all_rooms_and_random_ones_have_the_bits_trace_words_and_makespan_of_threads(size):
    command = [MPIEXEC, "-n", str(size), sys.executable, "-m", "tests.world.processes.nccl_job", "4"]
    known = environment() | machine.MANY_KERNELS
    done = subprocess.run(command, env=known, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    found = dict(map(json.loads, done.stdout.splitlines()))
    assert len(found) >= 38
    assert {name: differs for name, differs in found.items() if differs} == {}


def test_the_doctor_says_that_nccl_works():
    (nccl,) = [finding for finding in findings() if finding.name == "NCCL"]
    assert nccl.works, nccl.seen
