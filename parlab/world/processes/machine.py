"""The machine: whether MPI or NCCL works here, by which command processes start, and which GPU each of them takes.

`library` is "mpi" or "nccl", the `engine` of `run`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from parlab.world.engines.strands import IN_BROWSER

INSTALL_MPI = "python -m pip install mpi4py mpich"
DIFFERENT_MPIS = f"mpiexec and mpi4py belong to different MPIs; {INSTALL_MPI}, or run this Python's own mpiexec"
INSTALL_CUPY = "python -m pip install 'cupy-cuda12x[ctk]' nvidia-nccl-cu12"
POLITE = {  # ranks that wait leave the cores to others, and there may be more ranks than cores
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
MANY_KERNELS = {  # many pairs have kernels on a GPU at once, and code that is loaded later must not wait for them
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "CUDA_MODULE_LOADING": "EAGER",
    "NCCL_MAX_CTAS": "8",
}
ENVIRONMENT = {"mpi": POLITE, "nccl": POLITE | MANY_KERNELS}  # variables of the processes, unless they are set already


def inside_mpiexec() -> bool:
    """Whether this script is one of several processes that mpiexec, or Slurm in its place, has started."""
    return any(name in os.environ for name in ("PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"))


def check(library: str, size: int) -> None:
    """A ValueError, if this machine cannot start so many processes."""
    if IN_BROWSER:
        raise ValueError(f"engine={library!r}: a page starts no processes; this needs parlab on a machine of your own")
    if library == "nccl":
        if (starter := _started_without_mpi()) is not None:
            raise ValueError(
                f"engine='nccl': {starter} has started this script, and its processes have no MPI to find each other "
                f"by; start it by {by_hand(size)} {sys.argv[0]}, or by srun --mpi=pmi2 python {sys.argv[0]}"
            )
        _check_gpus()
        if not inside_mpiexec():
            _check_enough(size)
    if importlib.util.find_spec("mpi4py") is None:
        raise ValueError(f"engine={library!r}: mpi4py is not installed; {INSTALL_MPI}")


def _started_without_mpi() -> str | None:
    """The program that has started several processes of this script, but told them nothing of MPI."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    return "srun" if int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1 and not inside_mpiexec() else None


def command(library: str, size: int) -> list[str]:
    """The words before a command that start `size` processes of it. A ValueError, if there is no mpiexec."""
    beside_python = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside_python) if beside_python.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise ValueError(f"engine={library!r}: there is no mpiexec here; {INSTALL_MPI}")
    return [mpiexec, "-n", str(size)]


def by_hand(size: int) -> str:
    """The words that a user types before the script."""
    return f"mpiexec -n {size} python"


def cupy_on_gpu(rank: int, size: int) -> Any:
    """CuPy, on the GPU of this process, which is number `rank` of `size` on its machine.

    A ValueError, if there are too few GPUs.
    """
    cupy = _cupy()
    _check_enough(size)
    cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
    return cupy


def _cupy() -> Any:
    importlib.import_module("cupy.cuda.nccl")  # since CuPy 14, `cupy.cuda` has it only when it was imported by name
    return importlib.import_module("cupy")


def _check_gpus() -> None:
    """A ValueError, if no GPU answers, or not through CuPy and NCCL."""
    try:
        cuda = _cupy().cuda
    except ImportError as error:
        raise ValueError(f"engine='nccl': CuPy is not installed; {INSTALL_CUPY}") from error
    if not cuda.is_available():
        raise ValueError("engine='nccl': no GPU answers; `parlab doctor` shows what does, engine='mpi' needs none")
    if not cuda.nccl.available:
        raise ValueError(f"engine='nccl': CuPy does not find NCCL; {INSTALL_CUPY}")


def _check_enough(ranks: int) -> None:
    """A ValueError, if these ranks need more GPUs than this machine has."""
    cuda = _cupy().cuda
    gpus, shared = cuda.runtime.getDeviceCount(), os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
    if shared and (version := cuda.nccl.get_version()) < 23000:
        raise ValueError(f"NCCL_MULTI_RANK_GPU_ENABLE=1: needs NCCL 2.30 or newer, here it is {version}")
    if ranks > gpus and not shared:
        raise ValueError(
            f"size={ranks}: NCCL needs a GPU for each of {ranks} ranks here, and there are {gpus}; or let ranks "
            "share them, where NCCL is 2.30 or newer: NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0"
        )
