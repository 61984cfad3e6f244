"""The two bills on paper: closed forms of an even model, which a pencil can check. Begin here.

All stages have as many layers, no work hides any traffic, and ends, norms and buffers are left out. `parlab.plan.bills`
leaves nothing out, and agrees where these are small (tests/plan/test_paper.py).

One layout by hand: a Llama of 8 layers, E = 1000, M = 2000, 10 heads, 1000 words, on the classroom's 8 devices of 10¹²
FLOPs and 10¹⁰ bytes a second, as dp 2 · pp 2 · tp 2. Of 8 sequences of 1000 tokens each replica has m = 4 microbatches.

    work of a layer          of a microbatch: products 60 ms and attention 7.007 ms, by t = 2: 33.5035 ms
    exchanges of a layer     8 of 2 MB, of which (t − 1)/t pass a port: 0.8 ms
    a microbatch on a rank   4 layers · 34.3035 ms = 137.2 ms, and a step has m + (p − 1)/v = 5 of these
    parameters               82 017 000, with 2 + 2 + 12/d = 10 bytes each, by p · t = 4
    activations              of min(p, m) = 2 microbatches, 18 028 000 bytes a layer of each rank of tp

>>> f"{seconds_on_paper(8 * 0.067007, 8 * 8 * 2e6, 1e10, dp=2, pp=2, tp=2, chunks=1, batch=8):.3f} s"
'0.686 s'
>>> f"{memory_on_paper(82_017_000, 8 * 2 * 18_028_000, dp=2, pp=2, tp=2, m=4, zero=1) / 1e6:.1f} MB"
'349.3 MB'

`bills.step_seconds` has the same layout, kind by kind: 0.704 s; `bills.rank_bytes` 355.3 MB.

Source: Rajbhandari et al. 2020, "ZeRO" (bytes); Narayanan et al. 2021, "Efficient large-scale language model training
on GPU clusters" (seconds).
"""

from __future__ import annotations

from parlab.arguments import amount, positive, whole
from parlab.zero import MIXED


def memory_on_paper(
    params: float,
    kept: float,
    dp: int,
    pp: int,
    tp: int,
    m: int,
    zero: int,
    state: tuple[float, float, float] = MIXED,
) -> float:
    """Bytes of the fullest rank by 1F1B with one chunk a rank: its state, and activations of min(pp, m) microbatches.

    Args:
        params: of the model, all cut evenly among pp·tp ranks.
        kept: bytes of activations that the whole model keeps for a microbatch.
        dp, pp, tp: replicas, pipeline stages, tensor-parallel ranks.
        m: microbatches of a replica.
        zero: the ZeRO stage: 1 cuts the optimizer's state, 2 the gradients too, 3 the weights too.
        state: bytes a parameter, of weight, gradient and optimizer state, which ZeRO cuts among dp.

    Raises:
        ValueError: a negative amount, or no ranks.

    >>> memory_on_paper(1200, 600, dp=4, pp=2, tp=1, m=4, zero=1)  # (1200 · (2 + 2 + 12/4) + 2 · 600) / 2
    4800.0
    >>> f"{memory_on_paper(405.9e9, 537e9, dp=128, pp=16, tp=8, m=16, zero=1) / 2**30:.1f} GiB"
    '74.6 GiB'
    """
    amount("params", params)
    amount("kept", kept)
    for name, size in {"dp": dp, "pp": pp, "tp": tp, "m": m}.items():
        whole(name, size, 1)
    whole("zero", zero, 0)
    weight, gradient, optimizer = state
    weight = weight / dp if zero >= 3 else weight
    gradient = gradient / dp if zero >= 2 else gradient
    optimizer = optimizer / dp if zero >= 1 else optimizer
    return (params * (weight + gradient + optimizer) + min(pp, m) * kept) / (pp * tp)


def seconds_on_paper(
    work: float, nbytes: float, speed: float, dp: int, pp: int, tp: int, chunks: int, batch: int
) -> float:
    """Seconds of a step by interleaved 1F1B: m + (pp − 1)/chunks times what a rank needs for a microbatch.

    That is so if m = batch/dp, the microbatches of a replica, are pp or more. If they are fewer, only the breadth-first
    schedule runs with several chunks, and each next chunk waits until the first microbatch has passed all pp ranks.

    Args:
        work: seconds of a microbatch of one sequence on one device, forward and backward, all layers.
        nbytes: of the tensor-parallel exchanges of a microbatch, of which (tp − 1)/tp pass a rank's port.
        speed: bytes a second of the port.
        dp, pp, tp, chunks: replicas, pipeline stages, tensor-parallel ranks, chunks a rank.
        batch: sequences of a step.

    Raises:
        ValueError: a negative amount, or no ranks.

    >>> seconds_on_paper(8.0, 4e9, 2e9, dp=1, pp=4, tp=2, chunks=2, batch=8)  # (8/2 + 1/2 · 2) / 4 · (8 + 3/2)
    11.875
    """
    amount("work", work)
    amount("nbytes", nbytes)
    positive("speed", speed)
    for name, size in {"dp": dp, "pp": pp, "tp": tp, "chunks": chunks, "batch": batch}.items():
        whole(name, size, 1)
    microbatch = (work / tp + (tp - 1) / tp * nbytes / speed) / pp  # on a rank, all its chunks
    m = batch / dp
    return microbatch * (m + (pp - 1) / chunks + (chunks - 1) / chunks * max(pp - m, 0))
