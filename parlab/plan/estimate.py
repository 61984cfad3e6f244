"""The estimate of a layout: seconds of a step, bytes of the fullest rank and bytes sent, by kind, from closed forms.

Invariant: one layout and columns of layouts give the same numbers to the bit. The three sums stand in
`parlab.plan.bills`; here their arguments are checked, and what they give is one record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from parlab.arguments import instance
from parlab.nn.config import Config
from parlab.plan.arguments import MOST_TOKENS, count, float_itemsize
from parlab.plan.bills import rank_bytes, sent_bytes, step_seconds
from parlab.plan.case import Case
from parlab.plan.layout import Layout, check_layouts
from parlab.plan.machine import Machine
from parlab.plan.rules import check_rules, joint_rules, own_rules
from parlab.plan.sizes import Sizes
from parlab.plan.software import Software, software_of
from parlab.world import Cluster
from parlab.zero import MIXED, StateBytes


@dataclass(frozen=True)
class Estimate:
    """The costs of one layout, as numbers, or of columns of layouts, as arrays.

    Attributes:
        layout: the layout, or the columns, of which `estimate[number]` gives one.
        seconds: of a step, by kind. Of an average rank: products, attention, elementwise, recomputation; the waiting
            for messages of tp, cp, pp and dp, and of a mixture ep, at an even load; imbalance, the additional work of
            the slowest rank; bubble; optimizer.
        bytes: of the fullest rank, by kind: weights, gradients, optimizer, activations, working.
        sent: bytes that all ranks send in a step, by strategy: tp, cp, pp, dp, and of a mixture ep, at an even load.
        flops: of the model in a step, without recomputation; of causal attention only the half that is not masked.
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
        """The seconds of a step."""
        return _added(self.seconds)

    @property
    def total_bytes(self) -> Any:
        """The bytes of the fullest rank."""
        return _added(self.bytes)

    @property
    def mfu(self) -> Any:
        """The part of all devices' peak that the model's FLOPs use; 0 of a peak without end."""
        if self.peak == math.inf:
            return 0 * self.total_seconds
        return self.flops / (self.total_seconds * self.layout.ranks * self.peak)

    def __getitem__(self, chosen: Any) -> Estimate:
        seconds, nbytes, sent = (self.layout.taken(kinds, chosen) for kinds in (self.seconds, self.bytes, self.sent))
        return Estimate(self.layout[chosen], seconds, nbytes, sent, self.flops, self.peak)


def _added(by_kind: dict[str, Any]) -> Any:
    """All kinds, rounded alike for one layout and for columns: since Python 3.12 `sum` rounds floats otherwise."""
    return reduce(add, by_kind.values())


def check_job(config: Any, cluster: Any, batch: Any, sequence: Any) -> None:
    """Refuse a model, a cluster or sizes that are none; `estimate` and `search` share these arguments."""
    if not isinstance(config, Config):
        raise ValueError(f"config={config!r:.60}: a LlamaConfig or a GPTConfig is needed")
    instance("cluster", cluster, Cluster)
    count("batch", batch, MOST_TOKENS)
    count("sequence", sequence, MOST_TOKENS)


def estimate(
    config: Config,
    cluster: Cluster,
    layout: Layout,
    *,
    batch: int,
    sequence: int,
    state: StateBytes = MIXED,
    itemsize: int = 2,
    software: Software | None = None,
) -> Estimate:
    """Estimate a step of training from closed forms.

    Args:
        config: a `LlamaConfig`, a `MixtralConfig` or a `GPTConfig`.
        cluster: the devices and their links, which reach what `hardware_of` says.
        layout: one, or columns, which give the same numbers to the bit.
        batch: sequences of a step, of all replicas together.
        sequence: tokens of a sequence.
        state: bytes of the model's state a parameter.
        itemsize: bytes of an activation's element.
        software: what it sends, when, and what it hides. None: `software_of` the cluster.

    Raises:
        ValueError: sizes that do not divide; the text names the field and the right values.

    >>> from parlab.plan import LLAMA_405B
    >>> from parlab.world import DGX_H100
    >>> llama_3 = Layout(dp=128, pp=16, tp=8, chunks=8, zero=2, schedule="looped_bfs", sequence_parallel=True)
    >>> found = estimate(LLAMA_405B, DGX_H100, llama_3, batch=2048, sequence=8192)
    >>> f"{found.total_seconds:.1f} s, {found.mfu:.0%} of the peak, {found.total_bytes / 2**30:.0f} GiB"
    '6.6 s, 40% of the peak, 71 GiB'
    """
    check_job(config, cluster, batch, sequence)
    check_layouts(layout)
    if software is not None:
        instance("software", software, Software)
    instance("state", state, StateBytes)
    float_itemsize("itemsize", itemsize)
    check_rules(layout, own_rules(layout))
    check_rules(layout, joint_rules(Sizes(config), layout, batch, sequence))
    case = Case(config, layout, batch, sequence, state, itemsize, software or software_of(cluster))
    found = evaluate(case, Machine(cluster))
    return found[:] if layout.shape else found[0]


def evaluate(case: Case, machine: Machine) -> Estimate:
    """The estimate of a case that is checked already, in arrays that broadcast together."""
    seconds, nbytes, sent = step_seconds(machine, case), rank_bytes(case), sent_bytes(case)
    return Estimate(case.given, seconds, nbytes, sent, case.flops, machine.device.flops)
