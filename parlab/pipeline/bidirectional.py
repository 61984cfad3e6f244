"""Schedules that feed the pipeline from both ends, so that a rank always has a forward to overlap with a backward.

Invariant: on each of its two chunks a rank takes the microbatches in their order, forward and backward; a W comes after
its I, and the W's in the order of their I's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from parlab.pipeline.actions import Action, Pair, Slot
from parlab.pipeline.schedule import Schedule, check_sizes, title


def dualpipe(p: int, m: int) -> Schedule:
    """Half of the microbatches enter at rank 0, the others at rank p − 1: rank r has the stages r and p − 1 − r, so a
    stage lives on two ranks and its weights are kept twice. Idle time (p/2 − 1)(F&B + B − 3W) by longest stage, where
    F = I = W and the overlapped pair F&B is atomic and saves nothing (`Costs(pair=F + B)`); keeps p + 1 activations.

    Args:
        p: even. m: even, at least 2p.

    Source: DeepSeek-V3 technical report (2024), section 3.2.1.

    >>> print(*dualpipe(p=2, m=4).ranks[0])
    0F0 1F2 0F1 1B2 (1F3;0B0)OVERLAP_F_B 1B3 0I1 0W1
    >>> print(*dualpipe(p=2, m=4).ranks[1])
    0F2 1F0 0F3 1B0 (1F1;0B2)OVERLAP_F_B 1B1 0I3 0W3
    """
    check_sizes(p=p, m=m)
    if p % 2:
        raise ValueError(f"p={p}: two ranks share each stage, so p must be even")
    if m % 2 or m < 2 * p:
        raise ValueError(f"m={m}: half of the microbatches enter at each end: use an even number, at least 2p={2 * p}")
    down, up = range(m // 2), range(m // 2, m)
    half = range(p // 2)
    ranks = [_eight_phases(r, p // 2, down, up) for r in half] + [
        _eight_phases(r, p // 2, up, down) for r in half[::-1]
    ]
    return Schedule(ranks, name=title("DualPipe", p, m))


def dualpipe_v(p: int, m: int) -> Schedule:
    """DualPipe cut in half: 2p stages on a V, rank r has the stages r and 2p − 1 − r, and no weights are kept twice.
    Idle time (p − 1)(F&B + B − 3W), F, B and W of a chunk, where DualPipe's is exact; keeps 2p + 1 chunks.

    Args:
        m: at least 2p.

    Source: DeepSeek's DualPipeV (2025), after the cut-in-half of Qi et al. (2025).

    >>> print(*dualpipe_v(p=1, m=2).ranks[0])
    0F0 1F0 0F1 1B0 (1F1;0B0)OVERLAP_F_B 1B1 0I1 0W1
    """
    check_sizes(p=p, m=m)
    if m < 2 * p:
        raise ValueError(f"m={m}: needs two microbatches a rank, m ≥ 2p={2 * p}")
    return Schedule([_eight_phases(r, p, range(m), range(m)) for r in range(p)], name=title("DualPipeV", p, m))


def _eight_phases(r: int, p: int, first: Sequence[int], second: Sequence[int]) -> list[Slot]:
    """Rank r of a V of p ranks, whose stages r and 2p − 1 − r take the microbatches `first` and `second`, as many."""
    slots: list[Slot] = []
    stages, microbatches = (r, 2 * p - 1 - r), (first, second)
    done = {(kind, chunk): 0 for kind in "FB" for chunk in (0, 1)}
    weights: deque[Action] = deque()

    def next_of(kind: str, chunk: int) -> Action:
        microbatch = microbatches[chunk][done[kind, chunk]]
        done[kind, chunk] += 1
        return Action(kind, stages[chunk], microbatch)

    def forward(chunk: int) -> None:
        slots.append(next_of("F", chunk))

    def backward(chunk: int, split: bool = False) -> None:
        full = next_of("B", chunk)
        if split:
            slots.append(full._replace(kind="I"))
            weights.append(full._replace(kind="W"))
        else:
            slots.append(full)

    def both(forward_chunk: int) -> None:
        slots.append(Pair(next_of("F", forward_chunk), next_of("B", 1 - forward_chunk)))

    later = p - r - 1  # the ranks after this one, on the way to the point of the V
    rounds = len(first) - 2 * p + r + 1  # of phase 4
    for _ in range(2 * later):  # 1: forwards
        forward(0)
    for _ in range(r + 1):  # 2: forwards of both chunks
        forward(0)
        forward(1)
    for _ in range(later):  # 3: the first backwards come, in halves
        backward(1, split=True)
        slots.append(weights.popleft())
        forward(1)
    for i in range(rounds):  # 4: every forward overlaps a backward
        if i == 0 and later == 0:  # the last rank of the V has just made what this backward needs
            forward(0)
            backward(1)
        else:
            both(0)
        both(1)
    for _ in range(later):  # 5: the first chunk has no forwards left
        backward(1)
        both(1)
    for i in range(r + 1):  # 6: backwards of both chunks, from the middle on in halves
        backward(1, split=2 * i > r)
        backward(0, split=2 * i >= r)
    for _ in range(later):  # 7: the W's fill the waits
        slots.append(weights.popleft())
        backward(0, split=True)
    slots.extend(weights)  # 8
    return slots
