"""What each rank of `test_nccl.py`'s jobs runs: `python -m tests.world.processes.nccl_job SEEDS`, the programs of
`process_job` by engine="nccl", on the stand-in for it.
"""

from __future__ import annotations

from tests.world.processes import process_job
from tests.world.processes.fake_nccl import install

if __name__ == "__main__":
    install()
    process_job.main("nccl", "WORLD_SIZE", "RANK")
