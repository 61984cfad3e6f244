"""A training step of ZeRO on two threads beside plain data parallelism, and both beside PyTorch's on two processes.

The model of `bench_training_step`: 4 layers, E 256. Sequence 256, 4 rows a rank, float32; forward, backward and AdamW;
one core a rank on either side; PyTorch sends by gloo. Targets: stages 1 and 2 no longer than data parallelism; stage 3,
which sends half as much again, 1.15 of it; no longer than PyTorch's DDP and FSDP.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.bench_training_step import CONFIG
from benchmarks.contest import Contender
from benchmarks.timing import Ratio
from parlab import run
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW
from parlab.world import Comm
from parlab.zero import forward_backward, replica_of

RANKS, ROWS, LENGTH, LR = 2, 4, 256, 1e-3
STEPS, ROUNDS = 3, 7
REST = 0.2  # seconds for BLAS's worker threads to stop spinning


def main() -> None:
    taken = rounds({str(stage): partial(seconds, stage) for stage in range(4)})
    for stage, target in ((1, 1.0), (2, 1.0), (3, 1.15)):
        print(f"stage {stage} over data parallelism: {Ratio(taken[str(stage)], taken['0'])}; target {target}")
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed (pip install -e '.[peers]'): nothing to compare with")
        return
    for stage, peer, title in (
        (0, "ddp", "data parallelism over PyTorch's DDP"),
        (3, "fsdp", "stage 3 over PyTorch's FSDP"),
    ):
        with Contender(peer, ["-m", "benchmarks.zero_peers", peer]) as theirs:
            apart = abs(theirs.answer - first_loss(stage))
            taken = rounds({"ours": partial(seconds, stage), "theirs": partial(seconds_of, theirs)})
        ratio = Ratio(taken["ours"], taken["theirs"])
        print(f"{title}: {ratio}; target 1.0; first losses {apart:.1e} apart; target 1e-4")


def rounds(contenders: dict[str, Callable[[], float]]) -> dict[str, tuple[float, ...]]:
    """Seconds of each in turn, ROUNDS times."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, timed in contenders.items():
            time.sleep(REST)
            taken[name].append(timed())
    return {name: tuple(times) for name, times in taken.items()}


def draw() -> np.ndarray:
    """Tokens of all ranks, `[RANKS · ROWS, LENGTH + 1]`."""
    return np.random.default_rng(0).integers(CONFIG.vocab_size, size=(RANKS * ROWS, LENGTH + 1))


def seconds(stage: int) -> float:
    """Of STEPS steps, by the slower rank."""
    return max(taken for taken, _ in run(train, RANKS, Llama.random(CONFIG), draw(), stage).results)


def first_loss(stage: int) -> float:
    """Over the whole batch."""
    return sum(loss for _, loss in run(train, RANKS, Llama.random(CONFIG), draw(), stage).results) / RANKS


def seconds_of(peer: Contender) -> float:
    """The same of theirs."""
    peer.run("steps")
    return peer.taken["steps"][-1]


def train(comm: Comm, start_from: Llama, text: np.ndarray, stage: int) -> tuple[float, float]:
    """What one rank runs: STEPS steps, timed after a first one, and that one's loss."""
    model = Llama(CONFIG, dict(start_from.weights))
    replica = replica_of(comm, model, stage, AdamW(lr=LR))
    mine = text[comm.rank * ROWS : (comm.rank + 1) * ROWS]
    losses = []
    for step in range(STEPS + 1):
        if step == 1:
            comm.barrier()
            start = time.perf_counter()
        losses.append(forward_backward(replica, model, mine[:, :-1], mine[:, 1:]))
        replica.step()
    return time.perf_counter() - start, losses[0]


if __name__ == "__main__":
    main()
