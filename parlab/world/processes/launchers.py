"""How processes are started, for each engine: if it works here, by which command, and how they find each other."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

INSTALL_MPI = "python -m pip install mpi4py mpich"
STRANGERS = f"mpiexec and mpi4py belong to different MPIs; {INSTALL_MPI}, or run this Python's own mpiexec"
INSTALL_CUPY = "python -m pip install 'cupy-cuda12x[ctk]' nvidia-nccl-cu12"
KEY = "export PARLAB_KEY=$(python -c 'import secrets; print(secrets.token_hex())')"
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


class MPILauncher:
    """mpiexec or Slurm starts the processes, and they meet in MPI."""

    environment = POLITE  # variables of the processes, unless they are set already

    def inside(self) -> bool:
        """Whether this script is one of several processes that mpiexec or Slurm has started."""
        return any(name in os.environ for name in ("PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"))

    def check(self, size: int) -> None:
        """A ValueError, if this machine cannot start the processes."""
        if importlib.util.find_spec("mpi4py") is None:
            raise ValueError(f"engine='mpi': mpi4py is not installed; {INSTALL_MPI}")

    def command(self, size: int) -> list[str]:
        """The words before a command that start `size` processes of it."""
        beside_python = Path(sys.executable).parent / "mpiexec"
        mpiexec = str(beside_python) if beside_python.exists() else shutil.which("mpiexec")
        if mpiexec is None:
            raise ValueError(f"engine='mpi': there is no mpiexec here; {INSTALL_MPI}")
        return [mpiexec, "-n", str(size)]

    def by_hand(self, size: int) -> str:
        """The words that a user types before the script."""
        return f"mpiexec -n {size} python"

    def transport(self, folder: Path | None) -> Any:
        """The transport of this process. Processes that `run` has started meet in `folder`, which holds their key."""
        from parlab.world.processes.mpi import MPITransport  # starts MPI

        return MPITransport()


def _cupy() -> Any:
    importlib.import_module("cupy.cuda.nccl")  # since CuPy 14, `cupy.cuda` has it only when it was imported by name
    return importlib.import_module("cupy")


class NCCLLauncher:
    """As `MPILauncher`, by torchrun, by Slurm's srun, or by `spawn` on this machine; one process a GPU.

    The ranks meet at the address that torchrun and Slurm give, MASTER_ADDR, to which anybody can connect. So they need
    a secret: PARLAB_KEY, which torchrun and srun hand on to all ranks. Without it nothing runs, because data from these
    connections are unpickled. The port is MASTER_PORT + 1, because torchrun itself listens on MASTER_PORT.
    """

    environment = MANY_KERNELS

    def inside(self) -> bool:
        """See `MPILauncher`."""
        return {"RANK", "WORLD_SIZE"} <= os.environ.keys() or int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1

    def check(self, size: int) -> None:
        """See `MPILauncher`: one GPU for each rank on this machine."""
        try:
            cuda = _cupy().cuda
        except ImportError as error:
            raise ValueError(f"engine='nccl': CuPy is not installed; {INSTALL_CUPY}") from error
        if not cuda.is_available():
            raise ValueError("engine='nccl': no GPU answers; `parlab doctor` shows what does, engine='mpi' needs none")
        if not cuda.nccl.available:
            raise ValueError(f"engine='nccl': CuPy does not find NCCL; {INSTALL_CUPY}")
        gpus, shared = cuda.runtime.getDeviceCount(), os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
        if shared and (version := cuda.nccl.get_version()) < 23000:
            raise ValueError(f"NCCL_MULTI_RANK_GPU_ENABLE=1: needs NCCL 2.30 or newer, here it is {version}")
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if self.inside() else size
        if ranks > gpus and not shared:
            raise ValueError(
                f"size={size}: NCCL needs a GPU for each of {ranks} ranks here, and there are {gpus}; or let ranks "
                "share them, where NCCL is 2.30 or newer: NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0"
            )

    def command(self, size: int) -> list[str]:
        """See `MPILauncher`."""
        return [sys.executable, "-I", "-S", str(Path(__file__).with_name("spawn.py")), str(size)]

    def by_hand(self, size: int) -> str:
        """See `MPILauncher`."""
        return f"torchrun --nproc-per-node {size}"

    def transport(self, folder: Path | None) -> Any:
        """See `MPILauncher`. A ValueError, if the environment lacks the address or the key."""
        from parlab.world.processes.bootstrap import connect_all
        from parlab.world.processes.nccl import NCCLTransport

        slurm = "RANK" not in os.environ
        rank = int(os.environ["SLURM_PROCID" if slurm else "RANK"])
        size = int(os.environ["SLURM_STEP_NUM_TASKS" if slurm else "WORLD_SIZE"])
        local = int(os.environ.get("SLURM_LOCALID" if slurm else "LOCAL_RANK", 0))
        cupy = _cupy()
        cupy.cuda.Device(local % cupy.cuda.runtime.getDeviceCount()).use()
        if folder:
            return NCCLTransport(rank, size, connect_all(rank, size, folder, (folder / "key").read_bytes()), cupy)
        key = os.environ.get("PARLAB_KEY", "")
        if len(key) < 32 and size > 1:
            raise ValueError(
                f"PARLAB_KEY: has {len(key)} letters, but the ranks need a secret of 32 or more; before the job, {KEY}"
            )
        try:
            place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1
        except KeyError as error:
            raise ValueError(
                f"{error}: not set; in the job script, export MASTER_ADDR=$(scontrol show hostnames | head -n 1) "
                "MASTER_PORT=29500"
            ) from None
        return NCCLTransport(rank, size, connect_all(rank, size, place, key.encode()), cupy)


LAUNCHERS: dict[str, MPILauncher | NCCLLauncher] = {"mpi": MPILauncher(), "nccl": NCCLLauncher()}
