"""What a step of a layout takes, and what its fullest rank holds, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parlab.arguments import instance, whole
from parlab.plan.layout import Case, Layout, check_possible, taken
from parlab.plan.memory import rank_bytes, sent_bytes
from parlab.plan.models import Config, Sizes
from parlab.plan.seconds import Hardware, Machine, step_seconds
from parlab.world import Cluster
from parlab.zero import MIXED, StateBytes


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
        kinds = self.seconds, self.bytes, self.sent
        seconds, nbytes, sent = (taken(values, self.layout.shape, chosen) for values in kinds)
        return Estimate(self.layout[chosen], seconds, nbytes, sent, self.flops, self.peak)


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
        batch, sequence: sequences of a step, of all replicas together; tokens of each.
        state, itemsize: bytes a parameter, and of an activation.
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
    for name, number in (("batch", batch), ("sequence", sequence), ("itemsize", itemsize)):
        whole(name, number, 1)
    instance("state", state, StateBytes)
    check_possible(Sizes(config), layout, batch, sequence)
    found = evaluate(Case(config, layout, batch, sequence, state, itemsize), Machine(cluster, hardware), layout)
    return found[0 if layout.is_one else slice(None)]


def evaluate(case: Case, machine: Machine, layout: Layout) -> Estimate:
    """`estimate` of what is possible and checked, in arrays that broadcast together."""
    kinds = step_seconds(machine, case), rank_bytes(case), sent_bytes(case)
    return Estimate(layout, *kinds, case.flops, machine.device.flops)
