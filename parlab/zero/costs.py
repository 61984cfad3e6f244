"""The closed forms of ZeRO: bytes that a rank holds, elements that the ranks send, and when a gather is hidden; and the
bytes that it held, counted.

Letters: Ψ parameters, P ranks, k microbatches a step. Source: Rajbhandari et al. 2020, "ZeRO: memory optimizations
toward training trillion parameter models", sections 3.1 (16 bytes a parameter), 5 (memory) and 7 (traffic).
"""

from __future__ import annotations

from typing import NamedTuple

from parlab.arguments import amount, instance, positive, whole
from parlab.world import Timeline
from parlab.zero.arguments import check_stage
from parlab.zero.gradients import GRADIENTS
from parlab.zero.state import OPTIMIZER
from parlab.zero.weights import WEIGHTS


class StateBytes(NamedTuple):
    """Bytes a parameter of a model's state.

    `StateBytes()` is the paper's mixed precision: float16 weights and gradients; float32 master weights and two
    moments. Megatron keeps gradients in float32, `StateBytes(gradient=4)`: 18 in all. Training in float32 alone is
    `StateBytes(4, 4, 8)`: the weights are their own masters.
    """

    weight: int = 2
    gradient: int = 2
    optimizer: int = 12


MIXED = StateBytes()


def model_state_bytes(num_params: float, ranks: int, stage: int, *, state: StateBytes = MIXED) -> float:
    """Bytes of weights, gradients and optimizer state that a rank holds: 16Ψ, 4Ψ + 12Ψ/P, 2Ψ + 14Ψ/P, 16Ψ/P.

    Where P does not divide Ψ it is the mean over ranks: the largest shard has at most one parameter more.

    Args:
        num_params: Ψ.
        ranks: P, among which the state is sharded.
        stage: 0 plain data parallelism; 1 shards the optimizer's state, 2 the gradients too, 3 the weights too.
        state: bytes a parameter.

    Raises:
        ValueError: a negative number of parameters, no ranks, or another stage.

    >>> [round(model_state_bytes(7.5e9, 64, stage) / 1e9, 2) for stage in range(4)]  # the paper's Figure 1, GB
    [120.0, 31.41, 16.64, 1.88]
    """
    amount("num_params", num_params)
    whole("ranks", ranks, least=1)
    check_stage(stage)
    instance("state", state, StateBytes)
    for kind, bytes_each in state._asdict().items():
        amount(kind, bytes_each)
    sharded_from = {"weight": 3, "gradient": 2, "optimizer": 1}
    return sum(
        getattr(state, kind) * num_params / (ranks if stage >= first else 1) for kind, first in sharded_from.items()
    )


def state_bytes_held(timeline: Timeline, rank: int) -> dict[str, int]:
    """Bytes of weights, gradients and optimizer state that `rank` held in a run, each at its peak.

    Without activations and messages on their way. Weights and optimizer state are held all the time. So the sum of the
    three was held when the last gradient had come; it is the number of `model_state_bytes`.

    Raises:
        ValueError: there is no such rank, or no timeline.
    """
    instance("timeline", timeline, Timeline)
    held = timeline.held_by_name(rank)
    return {
        name: max((total for _, total in held.get(name, [])), default=0) for name in (WEIGHTS, GRADIENTS, OPTIMIZER)
    }


def elements_sent(num_params: int, ranks: int, stage: int, *, microbatches: int = 1) -> int:
    """Elements that all ranks together send in a step: passes · (P − 1) · Ψ, where a pass is an all-gather or a
    reduce-scatter of everything. Exact, however uneven the shards; a rank sends 1/P of it on average.

    =====  ============================================================================  =====
    stage  passes                                                                        k = 1
    =====  ============================================================================  =====
    0      the all-reduce of the gradients: 2                                            2
    1      gradients to their shards, new weights back: 2                                2
    2      the same, but whole gradients are not kept, so each microbatch sends: k + 1   2
    3      weights before forward and before backward, gradients: 3k                     3
    =====  ============================================================================  =====

    In stage 3 `keep_after_forward` saves a gather of everything a microbatch, and `keep_last_block` one of the last
    block. A tied embedding is gathered for the head too: its table twice more a microbatch, unless it is kept. In
    stages 1 and 2 `overlap_gather` sends the same messages, later.

    Args:
        num_params: Ψ.
        ranks: P.
        stage: 0 to 3.
        microbatches: k.

    Raises:
        ValueError: a bad number, as for `model_state_bytes`; no microbatches.

    >>> [elements_sent(1000, 4, stage) // (3 * 1000) for stage in range(4)]
    [2, 2, 2, 3]
    """
    amount("num_params", num_params)
    whole("ranks", ranks, least=1)
    whole("microbatches", microbatches, least=1)
    check_stage(stage)
    passes = [2, 2, microbatches + 1, 3 * microbatches][stage]
    return (ranks - 1) * passes * num_params


def tokens_to_hide_a_gather(flops: float, bandwidth: float, ranks: int, *, itemsize: int = 2) -> float:
    """Tokens a rank from which a block's forward lasts as long as the gather of the next block's weights.

    A forward computes 2 FLOPs a weight and token; a rank receives (P − 1)/P of the weights. The block's size cancels:
    2ψT/flops ≥ ψ · itemsize · (P − 1)/P / bandwidth. Latency, and attention's own FLOPs, apart. The backward computes
    twice as much and has a reduce-scatter of gradients to hide as well: the same number of tokens.

    Args:
        flops: of the device, in floating-point operations a second: what its kernels reach.
        bandwidth: bytes a second of a rank's link.
        ranks: P.
        itemsize: bytes of a weight as it travels.

    Raises:
        ValueError: a number that is not positive.

    >>> round(tokens_to_hide_a_gather(flops=312e12, bandwidth=300e9, ranks=8))  # A100s joined by NVLink, 16-bit weights
    910
    """
    for name, value in (("flops", flops), ("bandwidth", bandwidth), ("itemsize", itemsize)):
        positive(name, value)
    whole("ranks", ranks, least=1)
    return itemsize * (ranks - 1) / ranks * flops / (2 * bandwidth)


def step_waiting(
    stage: int, forward: float, backward: float, gather: float, reduction: float, *, microbatches: int = 1
) -> float:
    """Seconds that the ranks of a step wait for messages, each sent beside the work of another block.

    Beside the backward gradients are reduced; in stage 3 weights are gathered, too, and in stage 0 gradients are: the
    second half of its all-reduce. Stages 1 and 2 gather new weights beside the next forward (`overlap_gather`), stage 3
    gathers beside its own. Of k microbatches stages 0 and 1 reduce beside the backward of the last one, stages 2 and 3
    beside each; stages 1 and 2 gather beside the first forward. Latency, the first gather, the last reduction, and the
    turn of stage 3 apart: these are of one block, and the times here of all.

    =====  =========================================================================
    stage  waiting, of f = forward, b = backward, g = gather and r = reduction
    =====  =========================================================================
    0      max(0, 2r − b)
    1      max(0, g − f) + max(0, r − b)
    2      max(0, g − f) + k·max(0, r − b)
    3      k·(max(0, g − f) + max(0, g + r − b))
    =====  =========================================================================

    Args:
        stage: 0 to 3.
        forward: seconds of a microbatch's forward through all blocks.
        backward: seconds of the backward, usually twice those of the forward.
        gather: seconds of an all-gather of all weights.
        reduction: seconds of a reduce-scatter of all gradients; an all-gather of them takes as long.
        microbatches: k.

    Raises:
        ValueError: another stage, a time that is none, or no microbatches.

    >>> [step_waiting(stage, forward=1.0, backward=2.0, gather=1.5, reduction=1.5) for stage in range(4)]
    [1.0, 0.5, 0.5, 1.5]
    """
    check_stage(stage)
    whole("microbatches", microbatches, least=1)
    for name, value in (("forward", forward), ("backward", backward), ("gather", gather), ("reduction", reduction)):
        amount(name, value)
    if stage == 0:
        return max(0.0, 2 * reduction - backward)
    again = gather if stage == 3 else 0.0
    gathering, reducing = max(0.0, gather - forward), max(0.0, again + reduction - backward)
    return gathering * (microbatches if stage == 3 else 1) + reducing * (microbatches if stage >= 2 else 1)
