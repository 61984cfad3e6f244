"""What a step of a layout takes, and what its fullest rank holds, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.arguments import whole
from parlab.plan.case import MIXED, Case, Column
from parlab.plan.hardware import Hardware
from parlab.plan.layout import Layout, check_possible
from parlab.plan.memory import rank_bytes, sent_bytes
from parlab.plan.models import Config, sizes
from parlab.plan.stages import Pass, exposed_transfers, step
from parlab.plan.work import Machine, Seconds, ends, layer
from parlab.world import Cluster
from parlab.zero import StateBytes

OPTIMIZER_BYTES = 64  # a parameter, through memory: unscale, norm, clip, Adam's float32 state, new 16-bit weights
HOST_BYTES = 28  # of these, what an update on the host reads and writes: gradient, master, moments, weight


@dataclass(frozen=True)
class Estimate:
    """Of one layout, numbers; of columns of layouts, arrays.

    Attributes:
        layout: what was asked for.
        seconds: of a step, by kind: products, attention, elementwise, recomputation of an average rank; traffic of tp,
            cp, pp, dp, as far as it is waited for; imbalance (what the slowest rank works more), bubble, optimizer.
        bytes: of the fullest rank, by kind: weights, gradients, optimizer, activations, working.
        sent: bytes that all ranks send in a step, by strategy: tp, cp, pp, dp.
        flops: of a step, as the model needs them: no recomputation, and of causal attention only its half.
        peak: FLOPs a second of a device.
    """

    layout: Layout
    seconds: dict[str, Any]
    bytes: dict[str, Any]
    sent: dict[str, Any]
    flops: float
    peak: float

    @property
    def total_seconds(self) -> Any:
        """Of a step."""
        return sum(self.seconds.values())

    @property
    def total_bytes(self) -> Any:
        """Of the fullest rank."""
        return sum(self.bytes.values())

    @property
    def mfu(self) -> Any:
        """The part of all devices' peak that the model's FLOPs use."""
        return self.flops / (self.total_seconds * self.layout.ranks * self.peak)

    def __getitem__(self, chosen: Any) -> Estimate:
        """Of one of the columns, by its number; of several, by arrays of numbers."""
        layout, shape = self.layout[chosen], self.layout.shape

        def take(kinds: dict[str, Any]) -> dict[str, Any]:
            picked = {kind: np.broadcast_to(column, shape)[chosen] for kind, column in kinds.items()}
            return {kind: float(x) for kind, x in picked.items()} if layout.is_one else picked

        return Estimate(layout, take(self.seconds), take(self.bytes), take(self.sent), self.flops, self.peak)


def estimate(
    config: Config,
    cluster: Cluster,
    layout: Layout,
    *,
    batch: int,
    sequence: int,
    state: StateBytes = MIXED,
    itemsize: int = 2,
    hardware: Hardware | None = None,
) -> Estimate:
    """A step of training, on paper.

    Args:
        config: a `LlamaConfig` or a `GPTConfig`.
        layout: one, or columns of layouts, which give the same numbers to the bit.
        batch: sequences of a step, of all replicas together.
        sequence: tokens of each.
        state: bytes a parameter.
        itemsize: bytes of an activation.
        hardware: which fractions of the data sheet are reached. None: those of the cluster's device (`hardware_of`).

    Raises:
        ValueError: sizes that do not divide; the text names the knob and what would be right.

    >>> from parlab.plan import LLAMA_405B
    >>> from parlab.world import DGX_H100
    >>> llama_3 = Layout(dp=128, pp=16, tp=8, chunks=8, zero=2, schedule="looped_bfs", sequence_parallel=True)
    >>> found = estimate(LLAMA_405B, DGX_H100, llama_3, batch=2048, sequence=8192)
    >>> f"{found.total_seconds:.1f} s, {found.mfu:.0%} of the peak, {found.total_bytes / 2**30:.0f} GiB"
    '6.4 s, 41% of the peak, 71 GiB'
    """
    whole("batch", batch, 1)
    whole("sequence", sequence, 1)
    whole("itemsize", itemsize, 1)
    check_possible(sizes(config), layout, batch, sequence)
    found = evaluate(Case(config, layout, batch, sequence, state, itemsize), Machine(cluster, hardware), layout)
    return found[0] if layout.is_one else found[np.arange(len(layout))]


def evaluate(case: Case, machine: Machine, layout: Layout) -> Estimate:
    """`estimate` of what is possible and checked, in arrays that broadcast together."""
    E, L, H, G, D, M, V, S = *case.sizes[:7], case.sequence
    pairs = S * (S + 1) / 2 if case.sizes.fused else S * S
    forward = 2 * S * (L * (2 * E * (H + G) * D + E * case.sizes.up + M * E) + E * V) + L * 4 * pairs * H * D
    flops, peak = 3.0 * case.batch * forward, machine.cluster.device_of(0).flops
    return Estimate(layout, step_seconds(machine, case), rank_bytes(case), sent_bytes(case), flops, peak)


def step_seconds(machine: Machine, case: Case) -> Seconds:
    """By kind. Work and traffic inside stages are an average rank's: what the slowest has more is the imbalance."""
    sides = layer(machine, case)
    embedding, head = ends(machine, case)

    def chunk_of(layers: Column, *extra: Seconds) -> Pass:
        more = extra or ({}, {})
        return Pass(*(layers * sum(a.values()) + sum(b.values()) for a, b in zip(sides, more, strict=True)))

    chunk = chunk_of(case.layers)
    first, last = chunk_of(case.layers - case.fewer_first, *embedding), chunk_of(case.layers - case.fewer_last, *head)
    whole_step = step(case.p, case.m, case.v, chunk, first, last, case.in_turn)
    seconds = {}
    for kind in ("products", "attention", "elementwise", "recomputation", "tp", "cp"):
        layers, others = (sum(side.get(kind, 0.0) for side in part) for part in (sides, (*embedding, *head)))
        seconds[kind] = case.m / case.p * (case.sizes.L * layers + others)
    params = np.maximum.reduce(np.broadcast_arrays(*case.stage_params))
    seconds["pp"] = exposed_transfers(case, "pp" in machine.hardware.hides) * _transfer(machine, case)
    seconds["dp"] = _data_traffic(machine, case, params, chunk)
    seconds["imbalance"], seconds["bubble"] = whole_step.imbalance, whole_step.bubble
    shard = params / np.where(case.zero > 0, case.data, 1)
    on_host = 2 * case.item * shard / machine.hardware.host_link + HOST_BYTES * shard / machine.hardware.host_memory
    seconds["optimizer"] = np.where(case.offload, on_host, OPTIMIZER_BYTES * shard / machine.memory)
    return seconds


def _transfer(machine: Machine, case: Case) -> Column:
    """Of a microbatch from stage to stage. Without sequence parallelism each of t ranks has all of it: Megatron sends a
    t-th from each and gathers them on the other side (Narayanan et al. 2021, section 4.1)."""
    nbytes = case.item * case.n * case.sizes.E
    scattered = case.t if machine.hardware.rails else case.between
    gather = machine.ring(nbytes, case.t, machine.together(case.t, 1))
    return machine.hop(nbytes / scattered, case.p * case.c * case.t) + np.where(scattered > case.between, gather, 0)


def _data_traffic(machine: Machine, case: Case, params: Column, chunk: Pass) -> Column:
    """What ZeRO's traffic is waited for: gradients and weights go in v pieces, behind the work on the other chunks; the
    last gradients and the first weights have nothing to hide behind. Passes are `parlab.zero.elements_sent`'s."""
    together = machine.together(case.c, case.t) * machine.together(case.d, case.t * case.c * case.p)
    gradient, weight = (
        machine.ring(size * params, case.data, together) for size in (case.state.gradient, case.state.weight)
    )
    k, stage = case.passes, case.zero
    gradients = gradient * np.where(stage == 0, 2, k)
    before = weight * np.where(stage == 0, 0, np.where(stage == 3, k, 1))
    again = weight * np.where(stage == 3, k, 0)
    if "dp" not in machine.hardware.hides:
        return gradients + before + again
    group = np.where(case.in_turn, np.minimum(case.m, case.p), case.m)
    of_rank = case.v - case.fewer_last / case.layers  # chunks' worth of layers, of the rank that has least
    chunks = np.maximum(np.where(k > 1, case.m * of_rank - 1, group * (of_rank - 1)), 0)

    def waited(total: Column, passes: Column, work: Column) -> Column:
        piece = total / passes / case.v
        return piece + np.maximum(total - piece - chunks * work, 0)

    return waited(before, np.where(stage == 3, k, 1), chunk.forward) + waited(gradients + again, k, chunk.backward)
