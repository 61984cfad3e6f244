"""What a message costs: against a bare hand-off of a lock between as many threads, and on the simulated clock.

A token goes round the ring: each rank receives it and sends it on, so every message wakes exactly one thread, as every
hand-off does. Target: at most 2 × the hand-off. Linux wakes ranks in a way that spares them a switch; the last column
compares with hand-offs between threads that are spared it too. Replay's target: 150 000 messages a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.timing import ratio, seconds
from parlab.world import DGX_A100, Comm, run
from parlab.world.engines.process_state import wake_without_preempting

MESSAGES = 16_384


def main() -> None:
    for size in (8, 64, 256):
        token = partial(run, pass_token, size, MESSAGES // size)
        bare = ratio(token, partial(hand_off, size), 7)
        spared = ratio(token, partial(hand_off, size, wake_without_preempting), 7)
        print(
            f"{size:>4} ranks: token / bare hand-offs {bare}; {1e6 * min(bare.ours) / MESSAGES:.1f} µs a message; "
            f"target 2.0; spared a switch {spared.median:.2f}"
        )
    for size in (8, 64, 256):
        taken = min(seconds(partial(run, exchange, size, MESSAGES // size)) for _ in range(5))
        print(f"{size:>4} ranks: {MESSAGES / taken:9,.0f} sendrecv a second")
    done = run(exchange, 8, MESSAGES // 8)
    taken = min(seconds(partial(done.on, DGX_A100)) for _ in range(5))
    print(f"replay: {MESSAGES / taken:9,.0f} messages a second; target 150,000")


def pass_token(comm: Comm, rounds: int) -> None:
    token = np.zeros(1)
    for _ in range(rounds):
        if comm.rank == 0:
            comm.send(token, comm.right)
        token = comm.recv(comm.left, like=token)
        if comm.rank != 0:
            comm.send(token, comm.right)


def exchange(comm: Comm, rounds: int) -> None:
    x = np.zeros(1)
    for _ in range(rounds):
        x = comm.sendrecv(x, comm.right, comm.left)


def hand_off(size: int, prepare: Callable[[], None] = lambda: None) -> None:
    """Each thread waits for its own lock and releases the next one's; `prepare` is what it does first."""
    locks = [threading.Lock() for _ in range(size)]
    for lock in locks:
        lock.acquire()

    def pass_on(rank: int) -> None:
        prepare()
        for _ in range(MESSAGES // size):
            locks[rank].acquire()
            locks[(rank + 1) % size].release()

    threads = [threading.Thread(target=pass_on, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    locks[0].release()
    for thread in threads:
        thread.join()
