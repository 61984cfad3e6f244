"""What each rank of a job by engine="nccl" runs: `python -m tests.world.processes.nccl_job SEEDS`, the programs of
`process_job`, some with arrays on a GPU; where none answers, on the stand-in for CuPy and NCCL.
"""

from __future__ import annotations

import array_api_strict

from tests.libraries import CUPY
from tests.world.processes import process_job
from tests.world.processes.fake_nccl import install

if __name__ == "__main__":
    if CUPY is None:
        install()
    process_job.main("nccl", other=CUPY or array_api_strict)
