"""The machine: what is refused, with the command that helps."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from parlab import run
from parlab.world.processes import machine

SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def gpus(count=2, nccl=True, version=22000):
    cuda = SimpleNamespace(
        is_available=lambda: count > 0,
        nccl=SimpleNamespace(available=nccl, get_version=lambda: version),
        runtime=SimpleNamespace(getDeviceCount=lambda: count),
    )
    return SimpleNamespace(cuda=cuda)


@pytest.fixture
def here(monkeypatch):
    """A function that says what is here, and which variables are set."""
    for name in ("PMI_SIZE", "TORCHELASTIC_RUN_ID", "SLURM_STEP_NUM_TASKS", *SHARED):
        monkeypatch.delenv(name, raising=False)

    def has(cupy, **variables):
        monkeypatch.setattr(machine, "_cupy", lambda: cupy)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return has


def test_without_cupy_the_error_names_the_command_that_adds_it(monkeypatch):
    monkeypatch.setattr(machine.importlib, "import_module", lambda name: __import__("no_such_module"))
    with pytest.raises(ValueError, match=r"engine='nccl': CuPy is not installed; python -m pip install 'cupy-cuda12x"):
        run(print, 2, engine="nccl")


def test_nccl_is_found_in_a_cupy_whose_cuda_has_it_only_when_it_was_imported_by_name(tmp_path):
    cuda = tmp_path / "cupy" / "cuda"
    cuda.mkdir(parents=True)
    for path in (cuda.parent / "__init__.py", cuda / "__init__.py", cuda / "nccl.py"):
        path.write_text("available = True")
    asked = "from parlab.world.processes import machine; assert machine._cupy().cuda.nccl.available"
    known = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    subprocess.run([sys.executable, "-c", asked], env=known, check=True)


@pytest.mark.parametrize(
    ("cupy", "variables", "message"),
    [
        (gpus(0), {}, r"no GPU answers; `parlab doctor` shows what does, engine='mpi' needs none"),
        (gpus(2, nccl=False), {}, r"does not find NCCL; python -m pip install .* nvidia-nccl-cu12"),
        (gpus(2), {}, r"size=3: NCCL needs a GPU for each of 3 ranks here, and there are 2; or let"),
        (
            gpus(2),
            {"NCCL_MULTI_RANK_GPU_ENABLE": "1"},
            r"NCCL_MULTI_RANK_GPU_ENABLE=1: needs NCCL 2\.30 or newer, .* 22000",
        ),
        (
            gpus(4),
            {"TORCHELASTIC_RUN_ID": "none"},
            r"torchrun has started this .* -n 3 python .* or by srun --mpi=pmi2",
        ),
        (gpus(4), {"SLURM_STEP_NUM_TASKS": "3"}, r"srun has started this script, and its processes have no MPI"),
    ],
)
def test_what_cannot_run_is_refused_with_what_helps(here, cupy, variables, message):
    here(cupy, **variables)
    with pytest.raises(ValueError, match=message):
        run(print, 3, engine="nccl")


def test_native_collectives_are_refused_on_nccl():
    with pytest.raises(ValueError, match=r"collectives='native': on nccl they are ours$"):
        run(print, 2, engine="nccl", collectives="native")


def test_ranks_share_a_gpu_where_nccl_2_30_is_told_to_let_them(here):
    here(gpus(1, version=23004), **SHARED)
    machine.check("nccl", 4)


def test_of_8_ranks_on_2_machines_each_machine_needs_gpus_for_its_own(here):
    here(gpus(4), PMI_SIZE="8", SLURM_STEP_NUM_TASKS="8")
    machine.check("nccl", 8)
    machine._check_enough(4)
    with pytest.raises(ValueError, match=r"a GPU for each of 5 ranks here, and there are 4"):
        machine._check_enough(5)
