"""Start a command several times, each with its rank in its environment, as torchrun does.

It ends with the first process that fails; the process that started it ends the others. It is run by its path, so it
imports nothing of this package and starts at once.
"""

import os
import subprocess
import sys
import time


def main(size: int, command: list[str]) -> int:
    """Returns 0 if all processes return 0, else the status of one that does not."""
    ranks = [
        subprocess.Popen(command, env={**os.environ, "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(size)})
        for r in range(size)
    ]
    while True:
        statuses = [rank.poll() for rank in ranks]
        if any(statuses) or None not in statuses:
            return next(filter(None, statuses), 0)
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
