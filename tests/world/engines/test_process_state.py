"""State of the whole process that a run changes: the threads of BLAS, who keeps freed memory."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

np.ones((2, 2)) @ np.ones((2, 2))  # so that BLAS is there
BLAS = [library for library in ThreadpoolController().info() if library["user_api"] == "blas"]

SCRIPT = """
import sys
from threadpoolctl import ThreadpoolController
from parlab import run

def threads(comm=None):
    return sorted(library["num_threads"] for library in ThreadpoolController().info() if library["user_api"] == "blas")

for library in ThreadpoolController().lib_controllers:
    library.set_num_threads(3)
print(run(threads, 2).results, threads())
import late_blas
ThreadpoolController().limit(limits=3)
print(run(threads, 2).results, threads())
"""


@pytest.mark.skipif(not BLAS, reason="threadpoolctl knows no BLAS here")
def test_a_blas_that_a_module_brings_after_the_first_run_has_1_thread_in_ranks_and_3_afterwards(tmp_path):
    copied = shutil.copy(BLAS[0]["filepath"], tmp_path)
    (tmp_path / "late_blas.py").write_text(f"import ctypes\nctypes.CDLL({str(copied)!r})\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True)
    assert done.stdout == "[[1], [1]] [3]\n[[1, 1], [1, 1]] [3, 3]\n", done.stderr


FAULTS = """
import resource
import numpy as np
from parlab import run

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        held = [np.ones(1 << 19) for _ in range(8)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

run(lambda comm: None, 1)
faults()  # the first time, the memory comes from the system
print(faults())

def together(comm):
    for _ in range(5):
        held = [np.ones(1 << 19) for _ in range(24)]  # 96 MB, and a store of a thread's own grows by 64 MB
        comm.barrier()
        del held
        comm.barrier()

run(together, 2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
run(together, 2)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_after_a_run_320_mb_of_arrays_in_the_place_of_freed_ones_take_less_than_1000_page_faults_not_40_000():
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    here, on_two_ranks = map(int, done.stdout.split())
    assert max(here, on_two_ranks) < 1000
