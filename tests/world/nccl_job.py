"""What each rank of `test_nccl.py`'s jobs runs: `python -m tests.world.nccl_job SEEDS`, the programs of `process_job`
by engine="nccl", on the stand-in for it.
"""

from __future__ import annotations

from parlab.world import nccl, starters
from tests.world import process_job
from tests.world.fake_nccl import FakeCuPy, pointer


def install(strict=False):
    """Let the stand-in be this process's CuPy."""
    fake = FakeCuPy(strict)
    starters._cupy = lambda: fake
    nccl.pointer = pointer
    return fake


if __name__ == "__main__":
    install()
    process_job.main("nccl", "WORLD_SIZE", "RANK")
