"""What a step of a layout takes, and what its fullest rank holds, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.arguments import whole
from parlab.plan.case import Case
from parlab.plan.hardware import Hardware, hardware_of
from parlab.plan.layout import Layout, check_possible
from parlab.plan.memory import rank_bytes, sent_bytes
from parlab.plan.models import Config, sizes
from parlab.plan.stages import Pass, exposed_transfers, step
from parlab.plan.work import Machine, Seconds, ends, layer
from parlab.world import Cluster
from parlab.zero import StateBytes

Column = Any
MIXED = StateBytes()
OPTIMIZER_BYTES = 64  # a parameter, through memory: unscale, norm, clip, Adam's float32 state, new 16-bit weights
HOST_BYTES = 28  # of these, what an update on the host reads and writes: gradient, master, moments, weight


@dataclass(frozen=True)
class Estimate:
    """Of one layout, numbers; of columns of layouts, arrays.

    Attributes:
        layout: what was asked for.
        seconds: of a step, by kind: products, attention, elementwise, recomputation of an average rank; traffic of tp, cp,
            pp, dp, as far as it is waited for; imbalance (the slowest stage's work over the average), bubble, optimizer.
        bytes: of the fullest rank, by kind: weights, gradients, optimizer, activations, working.
        sent: bytes that all ranks send in a step, by strategy: tp, cp, pp, dp.
        flops: of a step, as the model needs them: no recomputation, and of causal attention only its half.
        mfu: the part of the devices' peak that these are.
    """

    layout: Layout
    seconds: dict[str, Any]
    bytes: dict[str, Any]
    sent: dict[str, Any]
    flops: float
    mfu: Any

    @property
    def total_seconds(self) -> Any:
        """Of a step."""
        return sum(self.seconds.values())

    @property
    def total_bytes(self) -> Any:
        """Of the fullest rank."""
        return sum(self.bytes.values())

    def __getitem__(self, chosen: int) -> Estimate:
        """Of one of the columns."""
        seconds, held, sent = (
            {kind: float(column[chosen]) for kind, column in each.items()} for each in (self.seconds, self.bytes, self.sent)
        )
        return Estimate(self.layout[chosen], seconds, held, sent, self.flops, float(self.mfu[chosen]))


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
    >>> f"{found.total_seconds:.1f} s, MFU {found.mfu:.0%}"
    ''
    """
    whole("batch", batch, 1)
    whole("sequence", sequence, 1)
    of_model = sizes(config)
    check_possible(of_model, layout, batch, sequence)
    case = Case(config, layout, batch, sequence, state, itemsize)
    machine = Machine(cluster, hardware or hardware_of(cluster))
    seconds, sent, held = step_seconds(machine, case), sent_bytes(case), rank_bytes(case)
    flops = model_flops(case, batch)
    mfu = flops / (sum(seconds.values()) * layout.ranks * cluster.device_of(0).flops)
    found = Estimate(layout, seconds, held, sent, flops, mfu)
    return found[0] if layout.is_one else found


def model_flops(case: Case, batch: int) -> float:
    """Of a step: three times the forward's products, and attention's."""
    E, L, H, G, D, M, V, S = *case.sizes[:7], case.sequence
    of_token = L * (2 * E * (H + G) * D + E * case.sizes.up + M * E) + E * V
    pairs = S * (S + 1) / 2 if case.sizes.fused else S * S
    return 3.0 * batch * (2 * S * of_token + L * 4 * pairs * H * D)


def step_seconds(machine: Machine, case: Case) -> Seconds:
    """By kind. Work and traffic inside stages are an average rank's: what the slowest has more is the imbalance."""
    sides = layer(machine, case)
    embedding, head = ends(machine, case)
    L, hides = case.sizes.L, machine.hardware.hides

    def end(extra: tuple[Seconds, Seconds], fewer: Column) -> Pass:
        return Pass(*((case.layers - fewer) * sum(a.values()) + sum(b.values()) for a, b in zip(sides, extra, strict=True)))

    chunk = Pass(*(case.layers * sum(side.values()) for side in sides))
    whole_step = step(case.p, case.m, case.v, chunk, end(embedding, case.fewer_first), end(head, case.fewer_last), case.in_turn)
    seconds = {}
    for kind in ("products", "attention", "elementwise", "recomputation", "tp", "cp"):
        of_layers = sum(side.get(kind, 0.0) for side in sides)
        seconds[kind] = case.m / case.p * (L * of_layers + sum(side.get(kind, 0.0) for side in (*embedding, *head)))
    seconds["pp"] = exposed_transfers(case, "pp" in hides) * _transfer(machine, case)
    params = np.max(case.stage_params, axis=0)
    seconds["dp"] = _data_traffic(machine, case, params, chunk)
    seconds["imbalance"], seconds["bubble"] = whole_step.imbalance, whole_step.bubble
    shard = params / np.where(case.zero > 0, case.data, 1)
    on_host = 2 * case.item * shard / machine.hardware.host_link + HOST_BYTES * shard / machine.hardware.host_memory
    seconds["optimizer"] = np.where(case.offload, on_host, OPTIMIZER_BYTES * shard / machine.memory)
    return seconds


def _transfer(machine: Machine, case: Case) -> Column:
    """Of a microbatch from stage to stage. Without sequence parallelism each of t ranks has all of it: Megatron sends a t-th
    from each and gathers them on the other side (Narayanan et al. 2021, section 4.1)."""
    nbytes = case.item * case.n * case.sizes.E
    scattered = case.t if machine.hardware.rails else case.between
    gather = machine.ring(nbytes, case.t, machine.together(case.t, 1))
    return machine.hop(nbytes / scattered, case.p * case.c * case.t) + np.where(scattered > case.between, gather, 0)


def _data_traffic(machine: Machine, case: Case, params: Column, chunk: Pass) -> Column:
    """What ZeRO's traffic is waited for: gradients and weights go in v pieces, behind the work on the other chunks; the
    last gradients and the first weights have nothing to hide behind.

    Passes are `parlab.zero.elements_sent`'s: with 1F1B, stages 2 and 3 send each microbatch's gradients, and stage 3
    gathers for each; breadth-first, all microbatches of a chunk share one pass (Lamy-Poirier 2023, section 4).
    """
    together = machine.together(case.c, case.t) * machine.together(case.d, case.t * case.c * case.p)
    gradient, weight = (
        machine.ring(size * params, case.data, together) for size in (case.state.gradient, case.state.weight)
    )
    k, stage = case.passes, case.zero.astype(int)
    gradients = gradient * np.choose(stage, [2, 1, k, k])
    before, again = (weight * np.choose(stage, times) for times in ([0, 1, 1, k], [0, 0, 0, k]))
    if "dp" not in machine.hardware.hides:
        return gradients + before + again
    group = np.where(case.in_turn, np.minimum(case.m, case.p), case.m)
    chunks = np.where(k > 1, case.m * case.v - 1, group * (case.v - 1))

    def waited(total: Column, passes: Column, work: Column) -> Column:
        piece = total / passes / case.v
        return piece + np.maximum(total - piece - chunks * work, 0)

    return waited(before, np.where(case.zero == 3, k, 1), chunk.forward) + waited(gradients + again, k, chunk.backward)
