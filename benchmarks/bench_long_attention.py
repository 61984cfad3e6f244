"""Ways to attend a long sequence across ranks, beside the ring: 8 heads, D 64, float32, causal, 4 ranks, forward.

Targets, ratios in one run: at S 4096 Ulysses and all-gather at most 1.15 of the zigzag ring; a window of 256 at S
16 384 at most 0.1 of full attention; 8 equal documents, two a rank, at most 0.2 of one long one. What is timed at
S 4096 is a run with five forwards, as of a model's layers: to start the ranks and to give each its shards takes 4 ms
here, whatever they do then.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.timing import ratio

if TYPE_CHECKING:
    from parlab.world import Comm

RANKS, HEADS, HEAD_SIZE = 4, 8, 64
TOKENS = 5 * 4096  # of a run, in as many forwards as they make


def main() -> None:
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # else its threads spin for a while after each product
    zigzag = task("ring", 4096, causal=True, layout="zigzag")
    others = {
        "Ulysses (target 1.15)": task("ulysses", 4096, causal=True),
        "all-gather, zigzag (target 1.15)": task("allgather", 4096, causal=True, layout="zigzag"),
        "all-gather, contiguous": task("allgather", 4096, causal=True),
        "USP 2 x 2, zigzag": task("usp", 4096, causal=True, layout="zigzag", ulysses=2),
        "double ring, 2 nodes, zigzag": task("double_ring", 4096, causal=True, layout="zigzag", ranks_per_node=2),
        "tree": task("tree", 4096, causal=True),
    }
    for name, other in others.items():
        print(f"S 4096, {name} / zigzag ring: {ratio(other, zigzag)}")
    long = task("ring", 16384, causal=True, layout="zigzag")
    print(f"S 16384, window of 256 / full (target 0.10): {ratio(task('window', 16384, window=256), long, repeats=3)}")
    for S, one, repeats in ((4096, zigzag, 9), (16384, long, 3)):
        packed = task("ring", S, causal=True, documents=list(range(0, S + 1, S // 8)))
        print(f"S {S}, 8 equal documents / one (target 0.20): {ratio(packed, one, repeats)}")


def task(method: str, S: int, **how: Any) -> Callable[[], Any]:
    """A run with forwards of this method, on random shards."""
    import parlab.sequence
    from parlab import per_rank, run

    rng = np.random.default_rng(0)
    shape = (1, HEADS, S // RANKS, HEAD_SIZE)  # which tokens are in a shard changes no time
    q, k, v = (per_rank([rng.standard_normal(shape).astype(np.float32) for _ in range(RANKS)]) for _ in range(3))
    attend = getattr(parlab.sequence, f"{method}_attention")

    def program(comm: Comm, *shards: Any) -> None:
        for _ in range(TOKENS // S):
            attend(comm, *shards, **how)

    return lambda: run(program, RANKS, q, k, v)


if __name__ == "__main__":
    main()
