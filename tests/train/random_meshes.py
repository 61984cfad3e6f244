"""All 300 random meshes, five steps each: `python -m tests.train.random_meshes [first] [last]`."""

from __future__ import annotations

import sys

from tests.train.models import drawn, faults

if __name__ == "__main__":
    first, last = (int(x) for x in (*sys.argv[1:], *("0", "300")[len(sys.argv) - 1 :]))
    wrong = {seed: found for seed in range(first, last) if (found := faults(drawn(seed), 5))}
    print(f"{last - first - len(wrong)} of {last - first} meshes equal the serial model; the others: {wrong}")
    sys.exit(bool(wrong))
