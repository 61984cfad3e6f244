"""Training with tensor parallelism on two threads beside serial training, on the same CPU.

4 layers, E 256, H 8, G 4, M 688, V 256, sequence 256, batch 8, float32; forward, backward, clipping and AdamW. Serial
code may use all cores in its products; each of the two ranks computes on one. Target: no longer than serial.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from threadpoolctl import threadpool_limits

from benchmarks.timing import Ratio
from parlab import run
from parlab.arrays import Array
from parlab.nn.corpus import MarkovSource
from parlab.nn.llama import Llama, LlamaConfig
from parlab.nn.optimizer import AdamW, clip_gradients
from parlab.tensor import ParallelLlama
from parlab.world import Comm

SOURCE = MarkovSource("".join(chr(code) for code in range(256)), order=1, concentration=0.01)
CONFIG = LlamaConfig(
    vocab_size=SOURCE.vocab_size,
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
)
BATCH, LENGTH, LR, RANKS = 8, 256, 1e-3, 2
STEPS, ROUNDS = 3, 3
REST = 0.2  # seconds for BLAS's worker threads to stop spinning


def main() -> None:
    for sequence_parallel in (False, True):
        for threads in (None, 1):
            pairs = [(parallel(sequence_parallel), serial(threads)) for _ in range(ROUNDS)]
            apart = max(abs(a - b) for (_, ours), (_, theirs) in pairs for a, b in zip(ours, theirs, strict=True))
            ratio = Ratio(*(tuple(seconds for seconds, _ in side) for side in zip(*pairs, strict=True)))
            title = f"t = {RANKS}, {'with' if sequence_parallel else 'without'} sequence parallelism"
            peer = "serial" if threads is None else "serial on one BLAS thread"
            print(f"{title}, over {peer}: {ratio}; target 1.0; losses {apart:.1e} apart; target 1e-3")


def batches() -> Iterator[tuple[Array, Array]]:
    """The same for both sides."""
    return (SOURCE.batch(step, batch_size=BATCH, length=LENGTH) for step in range(STEPS + 1))


def serial(threads: int | None) -> tuple[float, list[float]]:
    """Seconds of STEPS steps after a first one, and the losses; None: as many BLAS threads as BLAS takes."""
    model, optimizer, losses = Llama.random(CONFIG), AdamW(lr=LR), []
    time.sleep(REST)
    with threadpool_limits(threads, user_api="blas"):
        for step, (tokens, targets) in enumerate(batches()):
            if step == 1:
                start = time.perf_counter()
            loss, gradients = model.loss_and_gradients(tokens, targets)
            optimizer.step(model.weights, clip_gradients(gradients, 1.0)[0])
            losses.append(loss)
    return time.perf_counter() - start, losses


def parallel(sequence_parallel: bool) -> tuple[float, list[float]]:
    """The same on two ranks; the slower one counts."""
    results = run(train, RANKS, Llama.random(CONFIG), list(batches()), sequence_parallel).results
    return max(seconds for seconds, _ in results), results[0][1]


def train(
    comm: Comm, start_from: Llama, steps: list[tuple[Array, Array]], sequence_parallel: bool
) -> tuple[float, list[float]]:
    """What one rank runs."""
    model = ParallelLlama.from_full(comm, start_from, sequence_parallel=sequence_parallel)
    optimizer, losses = AdamW(lr=LR), []
    time.sleep(REST)
    for step, (tokens, targets) in enumerate(steps):
        if step == 1:
            comm.barrier()
            start = time.perf_counter()
        loss, gradients = model.loss_and_gradients(tokens, targets)
        optimizer.step(model.weights, model.clip_gradients(gradients, 1.0)[0])
        losses.append(loss)
    return time.perf_counter() - start, losses


if __name__ == "__main__":
    main()
