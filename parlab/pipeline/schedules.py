"""The schedules of the papers, each as the order of actions on one rank.

Letters: p ranks, m microbatches, v chunks (stages a rank; rank r has the stages r, r + p, r + 2p, ...). The actions are
F (forward), B (full backward), I (backward for the input) and W (backward for the weights). In a formula, the same
letters are the times of these actions for all layers of a rank. Activations [b, s, E] and their gradients [b, s, E]
pass between stages: b sequences a microbatch, s tokens, E features.

The longest stage is the longest time that any rank takes from its first start to its last end, without transfers. The
idle time of a rank is the longest stage minus the rank's work.

Invariant: for each stage and microbatch, F comes before B or I, and I before W. All stages take the microbatches of one
kind of action in the same order.

Source: GPipe (Huang et al., 2019) for the split into microbatches; each function names the paper of its order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain

from parlab.arguments import whole
from parlab.pipeline.actions import Action
from parlab.pipeline.schedule import Schedule, check_sizes, title


def naive(p: int, m: int) -> Schedule:
    """One microbatch at a time: all other ranks are idle. Idle time (mp − m)(F + B) on each rank; keeps 1 activation.

    >>> print(naive(p=2, m=2))
    rank 0: 0F0 0B0 0F1 0B1
    rank 1: 1F0 1B0 1F1 1B1
    """
    check_sizes(p=p, m=m)

    def order(r: int) -> list[Action]:
        return one_forward_one_backward(each("F", r, m), each("B", r, m), warmup=0)

    return Schedule(map(order, range(p)), name=title("naive", p, m))


def gpipe(p: int, m: int) -> Schedule:
    """All forwards, then all backwards. Idle time (p − 1)(F + B); keeps m activations.

    Source: GPipe (Huang et al., 2019), section 2.3.

    >>> print(gpipe(p=2, m=2))
    rank 0: 0F0 0F1 0B0 0B1
    rank 1: 1F0 1F1 1B0 1B1
    """
    check_sizes(p=p, m=m)

    def order(r: int) -> list[Action]:
        return each("F", r, m) + each("B", r, m)

    return Schedule(map(order, range(p)), name=title("GPipe", p, m))


def one_f_one_b(p: int, m: int) -> Schedule:
    """1F1B: rank r starts with p − r − 1 forwards; then one forward, one backward, in turn. Idle time (p − 1)(F + B)
    as GPipe's; keeps p − r activations, at most m.

    Source: PipeDream-Flush (Narayanan et al., 2021, "Memory-efficient pipeline-parallel DNN training"), section 3.2;
    Megatron-LM (Narayanan et al., 2021), section 2.2.

    >>> print(one_f_one_b(p=2, m=3))
    rank 0: 0F0 0F1 0B0 0F2 0B1 0B2
    rank 1: 1F0 1B0 1F1 1B1 1F2 1B2
    """
    check_sizes(p=p, m=m)

    def order(r: int) -> list[Action]:
        return one_forward_one_backward(each("F", r, m), each("B", r, m), warmup=p - r - 1)

    return Schedule(map(order, range(p)), name=title("1F1B", p, m))


def looped_bfs(p: int, m: int, chunks: int) -> Schedule:
    """All microbatches pass through one chunk before the next; the backwards go in reverse. Idle time
    (p − 1)(F + B)/v for m ≥ p; keeps mv chunks.

    Source: Breadth-First Pipeline Parallelism (Lamy-Poirier, 2023), section 4.1.

    >>> print(looped_bfs(p=1, m=2, chunks=2))
    rank 0: 0F0 0F1 1F0 1F1 1B1 1B0 0B1 0B0
    """
    check_sizes(p=p, m=m, chunks=chunks)

    def order(r: int) -> list[Action]:
        forwards = [action for stage in stages_of(r, p, chunks) for action in each("F", stage, m)]
        return forwards + [Action("B", stage, microbatch) for _, stage, microbatch in reversed(forwards)]

    return Schedule(map(order, range(p)), name=f"{title('looped breadth-first', p, m)}, {chunks} chunks")


def interleaved_one_f_one_b(p: int, m: int, chunks: int, group: int | None = None) -> Schedule:
    """1F1B over v chunks a rank: a group of microbatches passes through one chunk, then the next. Idle time
    (p − 1)(F + B)/v for m ≥ p, with v times the messages; keeps (v − 1)·group + 2(p − r) − 1 chunks, at most mv.

    Rank r starts with 2(p − r − 1) + (v − 1)·group forwards. The first backward is that of the last chunk, whose first
    forward stands behind (v − 1)·group others. Each rank further up begins a slot earlier, and its first gradient comes
    a slot later: two more forwards fit in between. With one more instead of two the idle time is the same if messages
    are free; if not, a rank waits for each of them, because it has nothing else to do meanwhile. With three more the
    ranks wait for each other.

    Args:
        group: microbatches in a group; at least p, or all m where these are fewer. The last group has the rest; if that
            is less than p, ranks wait for it. None: m divided by the number of whole groups of p, as in PyTorch.

    Source: Megatron-LM (Narayanan et al., 2021), section 2.2; the group size: Llama 3 (2024), section 3.3.2; where m is
    no multiple of p: PyTorch's `ScheduleInterleaved1F1B`.

    >>> print(interleaved_one_f_one_b(p=2, m=2, chunks=2))
    rank 0: 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
    rank 1: 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1
    """
    check_sizes(p=p, m=m, chunks=chunks)
    may_leave_a_rest = group is not None
    group = m // max(1, m // p) if group is None else whole("group", group, least=1)
    if not min(p, m) <= group <= m or (m % group and not may_leave_a_rest):
        raise ValueError(f"group={group}, m={m}: microbatches go in whole groups of at least p={p}: use a multiple")
    groups = [range(start, min(start + group, m)) for start in range(0, m, group)]

    def order(r: int) -> list[Action]:
        stages = stages_of(r, p, chunks)
        forwards = [Action("F", stage, i) for own in groups for stage in stages for i in own]
        backwards = [Action("B", stage, i) for own in groups for stage in reversed(stages) for i in own]
        return one_forward_one_backward(forwards, backwards, warmup=2 * (p - r - 1) + (chunks - 1) * group)

    return Schedule(map(order, range(p)), name=f"{title('interleaved 1F1B', p, m)}, {chunks} chunks")


def zb_h1(p: int, m: int) -> Schedule:
    """1F1B with the backward in two halves: rank r delays its W's by r microbatches, and fills its end with them.
    Idle time (p − 1)(F + I − W) for W ≤ F and W ≤ I; keeps p activations, at most m.

    Source: Zero Bubble Pipeline Parallelism (Qi et al., 2024), section 2.1 (its B is our I).

    >>> print(zb_h1(p=2, m=3))
    rank 0: 0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2
    rank 1: 1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2
    """
    check_sizes(p=p, m=m)

    def order(r: int) -> list[Action]:
        return split_backward(r, m, warmup=p - r - 1, delay=r)

    return Schedule(map(order, range(p)), name=title("ZB-H1", p, m))


def zb_h2(p: int, m: int) -> Schedule:
    """ZB-H1 with twice the forwards before the first backward, so that W's fill the end as well. Idle time
    (p − 1)(F + I − 2W) for W ≤ min(F, I) and m ≥ 2p − 1; keeps 2p − 1 activations.

    Source: Zero Bubble Pipeline Parallelism (Qi et al., 2024), section 2.2 (its B is our I).

    >>> print(zb_h2(p=2, m=3))
    rank 0: 0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2
    rank 1: 1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2
    """
    check_sizes(p=p, m=m)

    def order(r: int) -> list[Action]:
        return split_backward(r, m, warmup=2 * (p - r - 1), delay=2 * r)

    return Schedule(map(order, range(p)), name=title("ZB-H2", p, m))


def one_forward_one_backward(forwards: Sequence[Action], backwards: Sequence[Action], warmup: int) -> list[Action]:
    """`warmup` forwards; then a forward and a backward in turn; then the backwards that are left.

    `closed_forms.in_flight` counts the chunks that this warm-up keeps.
    """
    warmup = min(warmup, len(forwards))
    in_turn = chain.from_iterable(zip(forwards[warmup:], backwards, strict=False))
    return [*forwards[:warmup], *in_turn, *backwards[len(forwards) - warmup :]]


def split_backward(stage: int, m: int, warmup: int, delay: int) -> list[Action]:
    """`warmup` forwards; then a forward and an I in turn, with a W behind each I from number `delay` on; then the W's
    that are left."""
    forwards, weights = deque(each("F", stage, m)), deque(each("W", stage, m))
    actions = [forwards.popleft() for _ in range(min(warmup, m))]
    for i in range(m):
        if forwards:
            actions.append(forwards.popleft())
        actions.append(Action("I", stage, i))
        if i >= delay:
            actions.append(weights.popleft())
    return [*actions, *weights]


def each(kind: str, stage: int, m: int) -> list[Action]:
    """The action `kind` of a stage on each of m microbatches."""
    return [Action(kind, stage, microbatch) for microbatch in range(m)]


def stages_of(r: int, p: int, chunks: int) -> list[int]:
    """The stages of rank r, which go around: r, r + p, r + 2p, ..."""
    return [r + p * chunk for chunk in range(chunks)]
