"""Training on a mesh of threads beside serial training, on the same CPU: the same total work, cut among more ranks.

The model and batches of `bench_tensor_parallel`. dp 2 × tp 2 on two cores: target 1.1 of serial. Then all four
strategies on 16 ranks, 8 times as many as cores, with how many messages a step takes: overhead, reported without a
target.
"""

from __future__ import annotations

import time

from benchmarks.bench_tensor_parallel import CONFIG, LR, REST, ROUNDS, STEPS, batches, serial
from benchmarks.timing import Ratio
from parlab import run
from parlab.arrays import Array
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW
from parlab.train import Mesh, Trainer
from parlab.world import Comm

MESHES = {"dp 2 x tp 2": {"dp": 2, "tp": 2}, "dp 2 x pp 2 x cp 2 x tp 2": {"dp": 2, "pp": 2, "cp": 2, "tp": 2}}


def main() -> None:
    for title, axes in MESHES.items():
        pairs = [(on_mesh(axes), serial(None)) for _ in range(ROUNDS)]
        ratio = Ratio(*(tuple(of_side[0] for of_side in side) for side in zip(*pairs, strict=True)))
        apart = max(abs(a - b) for (_, ours, _), (_, theirs) in pairs for a, b in zip(ours, theirs, strict=True))
        messages = pairs[0][0][2]
        target = "; target 1.1" if len(axes) == 2 else ""
        print(
            f"{title}, over serial: {ratio}{target}; {messages} messages a step; losses {apart:.1e} apart; target 1e-3"
        )


def on_mesh(axes: dict[str, int]) -> tuple[float, list[float], int]:
    """Seconds of STEPS steps after a first one, on the slowest rank; the losses; messages of all ranks in a step."""
    ranks = 2 ** len(axes)
    done = run(train, ranks, Llama.random(CONFIG), list(batches()), axes)
    messages = sum(done.timeline.messages(rank) for rank in range(ranks)) // (STEPS + 1)
    return max(seconds for seconds, _ in done.results), done.results[0][1], messages


def train(
    comm: Comm, start_from: Llama, steps: list[tuple[Array, Array]], axes: dict[str, int]
) -> tuple[float, list[float]]:
    """What one rank runs."""
    trainer, losses = Trainer(Mesh(comm, **axes), start_from, AdamW(lr=LR), max_norm=1.0), []
    time.sleep(REST)
    for step, (tokens, targets) in enumerate(steps):
        if step == 1:
            comm.barrier()
            start = time.perf_counter()
        losses.append(trainer.step(tokens, targets).loss)
    return time.perf_counter() - start, losses


if __name__ == "__main__":
    main()
