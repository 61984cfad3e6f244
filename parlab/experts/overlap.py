"""Two lanes: rows travel while a rank computes.

A layer of experts waits for its rows. But two microbatches, one forward and one backward, have work for each other
(`merged_pair`):

    compute   ATTN(F)     MLP(B)        MLP(W)   MLP(F)        ATTN(B)   ATTN(W)
    travel    COMBINE(B)  DISPATCH(F)            DISPATCH(B)   COMBINE(F)

DISPATCH(B) and COMBINE(B) are the backwards of dispatch and of combine: COMBINE(B) brings the gradients to the experts.
Each message is posted as soon as what it carries is there, and waited for where it is needed.

Invariant: y, dx and all gradients are those of the block's own forward and backward, to the bit.

Source: DeepSeek-AI 2024, "DeepSeek-V3 technical report", section 3.2.1, figure 4 (DualPipe).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.arguments import checked_rank, instance
from parlab.arrays import Array, namespace
from parlab.experts.all_to_all import Plan, Travelling, make_plan
from parlab.experts.layer import DispatchCache, ExpertParallel
from parlab.nn.layers import Block
from parlab.nn.linear import as_rows
from parlab.nn.moe import MoECache, gates_of, rows_of, slots_of, sum_of_slots
from parlab.nn.routing import Routing
from parlab.nn.stage import Gradients
from parlab.world import Timeline

FORWARD = ("PLAN(F)", "ATTN(F)", "DISPATCH(F)", "MLP(F)", "COMBINE(F)")
BACKWARD = ("COMBINE(B)", "MLP(B)", "MLP(W)", "DISPATCH(B)", "ATTN(B)", "ATTN(W)")


class OverlappedExperts(ExpertParallel):
    """`ExpertParallel` by all-to-alls that are posted at once, and travel beside other work until they are waited for.

    Args: as for `ExpertParallel`, without `exchange`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.exchange != "all_to_all":
            raise ValueError(f"exchange={self.exchange!r}: only all_to_all overlaps; leave it out")

    def start(self, x: Array, routing: Routing) -> tuple[Plan, Travelling]:
        """The plan, and the rows under way to their experts."""
        plan = make_plan(self.comm, x, routing, self.num_experts)
        return plan, Travelling(self.comm, rows_of(x, plan.pairs, self.k), plan.sent, plan.received, "dispatch")

    def mix(self, x: Array, routing: Routing) -> tuple[Array, DispatchCache]:
        """As `ExpertParallel`."""
        plan, under_way = self.start(x, routing)
        answers, loads, caches = self.answers(under_way.wait(), plan)
        slots = slots_of(self.send_back(answers, plan, "combine").wait(), plan.pairs, self.k)  # [T, k, E]
        self.comm.hold("slots", slots)
        return sum_of_slots(slots, routing.gates), DispatchCache(plan, loads, caches, slots)

    def start_backward(self, dy: Array, routing: Routing, cache: DispatchCache) -> tuple[Travelling, Array]:
        """gate · dy under way to the experts, and dgates `[T, k]`."""
        plan = cache.plan
        leaving = rows_of(dy, plan.pairs, self.k) * gates_of(routing.gates, plan.pairs)  # [Σ sent, E]
        dgates = namespace(dy).sum(cache.slots * dy[:, None, :], axis=2)
        return Travelling(self.comm, leaving, plan.sent, plan.received, "dispatch, backward"), dgates

    def mix_backward(self, dy: Array, routing: Routing, cache: DispatchCache) -> tuple[Array, Array, list[Any]]:
        """As `ExpertParallel`."""
        under_way, dgates = self.start_backward(dy, routing, cache)
        drows, of_experts = self.answers_backward(under_way.wait(), cache)
        returned = self.send_back(drows, cache.plan, "combine, backward").wait()
        return sum_of_slots(slots_of(returned, cache.plan.pairs, self.k)), dgates, of_experts

    def send_back(self, rows: Array, plan: Plan, label: str) -> Travelling:
        """Rows `[R, E]`, by source, under way to their tokens."""
        return Travelling(self.comm, rows, plan.received, plan.sent, label)


class MergedPair(NamedTuple):
    """The results of one microbatch forward and another backward."""

    y: Array  # [B, S, E]
    cache: Any  # of the forward, as `block.forward` returns it
    dx: Array  # [B, S, E]
    gradients: Gradients


def merged_pair(
    block: Block, x: Array, dy: Array, cache: Mapping[str, Any], seconds: Mapping[str, float] | None = None
) -> MergedPair:
    """A decoder block on two microbatches: forward on `x`, and the backward of `dy`, in the order above.

    Args:
        block: whose `mlp` is an `OverlappedExperts`.
        x: `[B, S, E]`, of one microbatch.
        dy, cache: the gradient of the other's y, and the cache of its forward.
        seconds: how long ATTN(F), ATTN(B) and ATTN(W) take on the clock; None: no time. (The experts log their FLOPs.)

    Raises:
        ValueError: another mlp.
    """
    mlp = block.mlp
    instance("block.mlp", mlp, OverlappedExperts)
    assert isinstance(mlp, OverlappedExperts)
    comm, took = mlp.comm, seconds or {}

    def attention(name: str) -> Any:
        return comm.compute(name, seconds=took.get(name, 0))

    of_mlp: MoECache = cache["mlp"]
    dy_rows = as_rows(dy)  # [T, E]
    combine_b, dgates = mlp.start_backward(dy_rows, of_mlp.routing, of_mlp.mixed)

    own: dict[str, Any] = {}
    with attention("ATTN(F)"):
        h, own["attention_norm"] = block.attention_norm.forward(x)
        h, own["attention"] = block.attention.forward(h)
        middle = x + h
        h, own["mlp_norm"] = block.mlp_norm.forward(middle)
        h = as_rows(h)
        routing = mlp.routed(h)
    loads = mlp.loads_together(routing) if mlp.auxiliary else None
    plan, dispatch_f = mlp.start(h, routing)

    drows, experts_b = mlp.answers_backward(combine_b.wait(), of_mlp.mixed)  # MLP(B)
    dispatch_b = mlp.send_back(drows, of_mlp.mixed.plan, "combine, backward")
    through_router, of_router = mlp.backward_of_router(dgates, of_mlp)
    gradients = mlp.backward_weight((of_router, experts_b))  # MLP(W)

    answers, loads_f, experts_f = mlp.answers(dispatch_f.wait(), plan)  # MLP(F)
    combine_f = mlp.send_back(answers, plan, "combine")

    returned = slots_of(dispatch_b.wait(), of_mlp.mixed.plan.pairs, mlp.k)  # [T, k, E]
    with attention("ATTN(B)"):
        dh = namespace(dy).reshape(sum_of_slots(returned) + through_router, dy.shape)
        dh, of_mlp_norm = block.mlp_norm.backward_input(dh, cache["mlp_norm"])
        dmiddle = dy + dh
        dh, of_attention = block.attention.backward_input(dmiddle, cache["attention"])
        dh, of_norm = block.attention_norm.backward_input(dh, cache["attention_norm"])
        dx = dmiddle + dh
    with attention("ATTN(W)"):
        gradients |= block.mlp_norm.backward_weight(of_mlp_norm)
        gradients |= block.attention.backward_weight(of_attention)
        gradients |= block.attention_norm.backward_weight(of_norm)

    slots = slots_of(combine_f.wait(), plan.pairs, mlp.k)
    own["mlp"] = MoECache(h, routing, loads, DispatchCache(plan, loads_f, experts_f, slots))
    y = middle + namespace(x).reshape(sum_of_slots(slots, routing.gates), x.shape)
    return MergedPair(y, own, dx, gradients)


def pair_in_turn(
    block: Block, x: Array, dy: Array, cache: dict[str, Any], seconds: Mapping[str, float] | None = None
) -> MergedPair:
    """As `merged_pair`, one after the other: the forward on `x`, and then the backward of `dy`."""
    instance("block.mlp", block.mlp, OverlappedExperts)
    assert isinstance(block.mlp, OverlappedExperts)
    comm, took = block.mlp.comm, seconds or {}
    with comm.compute("ATTN(F)", seconds=took.get("ATTN(F)", 0)):
        pass  # the block's forward logs none for its attention
    y, own = block.forward(x)
    dx, gradients = block.backward(dy, cache)
    with comm.compute("ATTN(B) and (W)", seconds=took.get("ATTN(B)", 0) + took.get("ATTN(W)", 0)):
        pass
    return MergedPair(y, own, dx, gradients)


def merged_seconds(took: Mapping[str, float]) -> float:
    """The time of `merged_pair`, where every rank sends and receives equally much.

    `took`: seconds of each of FORWARD and BACKWARD. Each lane goes on when its own last part is done, and what the next
    part needs is there.

    >>> merged_seconds(dict.fromkeys(FORWARD + BACKWARD, 1.0)), 11.0  # one after the other: 11
    (7.0, 11.0)
    """
    planned = max(took["ATTN(F)"], took["COMBINE(B)"]) + took["PLAN(F)"]  # the counts travel behind COMBINE(B)
    dispatched = planned + took["DISPATCH(F)"]
    mlp_b = planned + took["MLP(B)"]
    returned = max(dispatched, mlp_b) + took["DISPATCH(B)"]
    mlp_f = max(mlp_b + took["MLP(W)"], dispatched) + took["MLP(F)"]
    combined = max(returned, mlp_f) + took["COMBINE(F)"]
    attention = max(mlp_f, returned) + took["ATTN(B)"] + took["ATTN(W)"]
    return max(attention, combined)


def hidden_share(timeline: Timeline, rank: int) -> float:
    """Of the time in which a message to or from `rank` is under way, the share in which the rank computes.

    Raises:
        ValueError: no such rank, or none of its messages takes time.
    """
    instance("timeline", timeline, Timeline)
    checked_rank(rank, "rank", timeline.size)
    travel = _joined([(t.start, t.end) for t in timeline.transfers if rank in (t.src, t.dst) and t.src != t.dst])
    computes = _joined([(span.start, span.end) for span in timeline.computes if span.rank == rank])
    under_way = sum(end - start for start, end in travel)
    if not under_way:
        raise ValueError(f"rank={rank}: none of its messages takes time")
    hidden = sum(max(0, min(end, stop) - max(start, begin)) for start, end in travel for begin, stop in computes)
    return hidden / under_way


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of spans of time, as spans that do not meet."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found
