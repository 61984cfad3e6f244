"""engine="nccl": what is refused, with the command that helps; and how the processes of a job find each other."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from parlab import run
from parlab.world.processes import bootstrap, launchers, nccl
from parlab.world.processes.launchers import NCCLLauncher

SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
KEY = "0123456789abcdef0123456789abcdef"
TORCHRUN = dict(RANK="5", WORLD_SIZE="8", LOCAL_RANK="1", MASTER_ADDR="node0", MASTER_PORT="29500", PARLAB_KEY=KEY)
SRUN = dict(
    SLURM_PROCID="5",
    SLURM_STEP_NUM_TASKS="8",
    SLURM_LOCALID="1",
    MASTER_ADDR="node0",
    MASTER_PORT="29500",
    PARLAB_KEY=KEY,
)


def gpus(count=2, nccl=True, version=22000):
    used = []
    cuda = SimpleNamespace(
        is_available=lambda: count > 0,
        nccl=SimpleNamespace(available=nccl, get_version=lambda: version),
        runtime=SimpleNamespace(getDeviceCount=lambda: count),
        Device=lambda number: SimpleNamespace(use=lambda: used.append(number)),
        used=used,
    )
    return SimpleNamespace(cuda=cuda)


@pytest.fixture
def machine(monkeypatch):
    """A function that says what is here, and which variables are set."""
    for name in {*TORCHRUN, *SRUN, *SHARED, "LOCAL_WORLD_SIZE"}:
        monkeypatch.delenv(name, raising=False)

    def has(cupy, **variables):
        monkeypatch.setattr(launchers, "_cupy", lambda: cupy)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return has


def test_without_cupy_the_error_names_the_command_that_adds_it(monkeypatch):
    monkeypatch.setattr(launchers.importlib, "import_module", lambda name: __import__("no_such_module"))
    with pytest.raises(ValueError, match=r"engine='nccl': CuPy is not installed; python -m pip install 'cupy-cuda12x"):
        run(print, 2, engine="nccl")


def test_nccl_is_found_in_a_cupy_whose_cuda_has_it_only_when_it_was_imported_by_name(tmp_path):
    cuda = tmp_path / "cupy" / "cuda"
    cuda.mkdir(parents=True)
    for path in (cuda.parent / "__init__.py", cuda / "__init__.py", cuda / "nccl.py"):
        path.write_text("available = True")
    asked = "from parlab.world.processes import launchers; assert launchers._cupy().cuda.nccl.available"
    known = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    subprocess.run([sys.executable, "-c", asked], env=known, check=True)


@pytest.mark.parametrize(
    ("cupy", "variables", "message"),
    [
        (gpus(0), {}, r"no GPU answers; `parlab doctor` shows what does, engine='mpi' needs none"),
        (gpus(2, nccl=False), {}, r"does not find NCCL; python -m pip install .* nvidia-nccl-cu12"),
        (gpus(2), {}, r"size=3: NCCL needs a GPU for each of 3 ranks here, and there are 2; or let"),
        (gpus(2), TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}, r"NCCL needs a GPU for each of 4 ranks here, and there are 2"),
        (
            gpus(2),
            {"NCCL_MULTI_RANK_GPU_ENABLE": "1"},
            r"NCCL_MULTI_RANK_GPU_ENABLE=1: needs NCCL 2\.30 or newer, .* 22000",
        ),
        (gpus(2), TORCHRUN | {"PARLAB_KEY": ""}, r"PARLAB_KEY: has 0 letters.* export PARLAB_KEY=\$\("),
        (gpus(2), TORCHRUN | {"PARLAB_KEY": "short"}, r"PARLAB_KEY: has 5 letters, but the ranks need a secret of 32"),
        (
            gpus(2),
            {name: SRUN[name] for name in SRUN if "MASTER" not in name},
            r"'MASTER_ADDR': not set; in the job script,",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_what_helps(machine, cupy, variables, message):
    machine(cupy, **variables)
    with pytest.raises(ValueError, match=message):
        run(print, 3, engine="nccl")


def test_native_collectives_are_refused_on_nccl():
    with pytest.raises(ValueError, match=r"collectives='native': on nccl they are ours$"):
        run(print, 2, engine="nccl", collectives="native")


def test_ranks_share_a_gpu_where_nccl_2_30_is_told_to_let_them(machine):
    machine(gpus(1, version=23004), **SHARED)
    NCCLLauncher().check(4)


@pytest.mark.parametrize("variables", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
def test_rank_5_of_8_uses_its_nodes_gpu_1_and_meets_the_others_behind_torchruns_port(machine, variables, monkeypatch):
    met = []
    monkeypatch.setattr(bootstrap, "connect_all", lambda *where: met.append(where) or {})
    monkeypatch.setattr(
        nccl, "NCCLTransport", lambda rank, size, connections, cupy: SimpleNamespace(rank=rank, size=size)
    )
    here = gpus(4)
    machine(here, **variables)
    launcher = NCCLLauncher()
    assert launcher.inside()
    launcher.check(8)
    assert launcher.transport(None) == SimpleNamespace(rank=5, size=8)
    assert met == [(5, 8, ("node0", 29501), KEY.encode())]
    assert here.cuda.used == [1]


def test_a_shell_in_a_job_of_one_task_starts_its_own_processes(machine):
    machine(gpus(4), SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="1")
    assert not NCCLLauncher().inside()
