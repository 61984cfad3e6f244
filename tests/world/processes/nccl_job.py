"""What each rank of a job by engine="nccl" runs: `python -m tests.world.processes.nccl_job SEEDS PATTERN [gpus]`: the
programs of `process_job` whose names have the pattern, some with arrays on GPUs; else on the stand-in of CuPy and NCCL.
"""

from __future__ import annotations

import sys

import array_api_strict

from tests.libraries import CUPY
from tests.world.processes import process_job
from tests.world.processes.fake_nccl import install

if __name__ == "__main__":
    gpus = "gpus" in sys.argv
    if not gpus:
        install()
    process_job.main("nccl", other=CUPY if gpus else array_api_strict, some=sys.argv[2])
