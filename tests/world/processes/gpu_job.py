"""What each rank of `test_nccl_gpu.py`'s jobs runs: `python -m tests.world.processes.gpu_job SEEDS`, the programs of
`process_job` by engine="nccl", some with arrays on a GPU.
"""

from __future__ import annotations

from tests.libraries import CUPY
from tests.world.processes import process_job

if __name__ == "__main__":
    process_job.main("nccl", "WORLD_SIZE", "RANK", other=CUPY)
