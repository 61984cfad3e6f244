"""The estimate of a layout: seconds of a step, bytes of the fullest rank and bytes sent, by kind, from closed forms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from parlab.arguments import instance
from parlab.nn.config import Config, LlamaConfig
from parlab.nn.formulas import block_kept_bytes, gpt_kept_bytes
from parlab.pipeline.closed_forms import Column, in_flight
from parlab.plan.arguments import MOST_TOKENS, count, float_itemsize
from parlab.plan.layout import Case, Layout, Sizes, check_layouts, check_rules, joint_rules, own_rules
from parlab.plan.machine import Hardware, Machine
from parlab.plan.seconds import step_seconds
from parlab.plan.software import Software, software_of
from parlab.tensor.costs import SOFTMAX
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


def check_job(config: Any, cluster: Any, batch: Any, sequence: Any, hardware: Any | None, software: Any | None) -> None:
    """Refuse a model, a cluster, sizes or paces that are none; `estimate` and `search` share these arguments."""
    if not isinstance(config, Config):
        raise ValueError(f"config={config!r:.60}: a LlamaConfig or a GPTConfig is needed")
    instance("cluster", cluster, Cluster)
    count("batch", batch, MOST_TOKENS)
    count("sequence", sequence, MOST_TOKENS)
    if hardware is not None:
        instance("hardware", hardware, Hardware)
    if software is not None:
        instance("software", software, Software)


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
    software: Software | None = None,
) -> Estimate:
    """Estimate a step of training from closed forms.

    Args:
        config: a `LlamaConfig`, a `MixtralConfig` or a `GPTConfig`.
        cluster: the devices and their links.
        layout: one, or columns, which give the same numbers to the bit.
        batch: sequences of a step, of all replicas together.
        sequence: tokens of a sequence.
        state: bytes of the model's state a parameter.
        itemsize: bytes of an activation's element.
        hardware: the fractions of the data sheet that are reached. None: those of the cluster's device (`hardware_of`).
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
    check_job(config, cluster, batch, sequence, hardware, software)
    check_layouts(layout)
    instance("state", state, StateBytes)
    float_itemsize("itemsize", itemsize)
    check_rules(layout, own_rules(layout))
    check_rules(layout, joint_rules(Sizes(config), layout, batch, sequence))
    case = Case(config, layout, batch, sequence, state, itemsize, software or software_of(cluster))
    found = evaluate(case, Machine(cluster, hardware), layout)
    return found[slice(None) if layout.shape else 0]


def evaluate(case: Case, machine: Machine, layout: Layout) -> Estimate:
    """The estimate of a case that is checked already, in arrays that broadcast together."""
    kinds = step_seconds(machine, case), rank_bytes(case), sent_bytes(case)
    return Estimate(layout, *kinds, case.flops, machine.device.flops)


def kept_of_layer(case: Case, recompute: Column) -> Column:
    """Bytes of one layer and microbatch that a rank keeps for the backward, as `parlab.tensor.costs` lists them."""
    if isinstance(case.config, LlamaConfig):
        items = block_kept_bytes(case.config, 1, case.sequence, case.item)
    else:
        items = gpt_kept_bytes(case.sequence, 1, case.E, case.H, itemsize=case.item)
    if case.experts:
        items = {place: size for place, size in items.items() if place not in ("mlp.gate", "mlp.up", "mlp.hidden")}
    whole = sum(size for place, size in items.items() if "norm" in place or place.endswith((".x", "output_keep")))
    scores = sum(items.get(place, 0) for place in SOFTMAX)
    shared = (items["attention.k"] + items["attention.v"]) * (case.kv * case.t / case.G - 1)
    cut = sum(items.values()) - whole - scores + shared
    # Software that does not gather the inputs of column products again keeps them whole, and not its t-th of them
    inputs = 0 if case.software.gathers_again else items["attention.x"] + items["mlp.x"]
    kept = (whole - inputs) / case.between + inputs + (cut + np.where(recompute == "none", scores, 0)) / case.t
    kept = case.b / case.c * kept + kept_of_experts(case)
    return np.where(recompute == "full", case.x / case.between, kept)


def kept_of_experts(case: Case) -> Column:
    """Of a mixture, at an even load: rows, answers, what each expert keeps, and the routing of each token."""
    of_row = case.item * (2 * case.E + 3 * case.width) + 8 + 8 + case.item  # the pair's place, expert and gate
    return case.pairs_of_rank * of_row + case.n / case.between * case.experts * case.item


def rank_bytes(case: Case) -> dict[str, Column]:
    """Bytes of the fullest rank, by kind. It is the first, the second or the last of the pipeline.

    The model's state is that of `parlab.zero.model_state_bytes`. The working set exists only for a moment. It holds the
    gradient of the widest activation and a layer's gathered input, the activations of a layer that is computed again,
    gradients before they are scattered (ZeRO-2 and 3), gathered weights (ZeRO-3), and on the last stage the logits and
    their softmax in float32 or wider.
    """
    state, zero, layers = case.state, case.zero, case.layers * case.v
    kept, made = (kept_of_layer(case, recompute) for recompute in (case.recompute, np.array("none")))
    opened = np.where(case.once, np.minimum(case.v, 2) * case.layers, 2)  # layers: this one and the next, or chunks
    gathered = np.where(zero == 3, opened * state.weight, 0) * (case.layer_params + case.layer_experts)
    widest = case.n * case.up / case.t + case.pairs_of_rank * 2 * case.width
    working = case.item * (case.n * case.E + widest) + (made - kept) + gathered
    logits = case.n * case.loss_columns * (case.item + case.wide + case.software.logit) + 2 * case.x / case.between
    unscattered = np.where(zero >= 2, state.gradient, 0)
    over = [
        np.where(zero >= stage, case.data, 1) for stage in range(4)
    ]  # ranks that share the state that a stage shards
    over_experts = [np.where(zero >= stage, case.edp, 1) for stage in range(4)]
    fullest: dict[str, Column] = {}
    for rank, fewer, params in case.stages:
        experts = (layers - fewer) * case.layer_experts
        of_layer = case.layer_params + case.layer_experts
        whole = np.where(case.passes > 1, of_layer, (params + experts) / case.v)
        weights, gradients, optimizer = (params / over[stage] + experts / over_experts[stage] for stage in (3, 2, 1))
        found = {
            "weights": state.weight * weights,
            "gradients": state.gradient * gradients,
            "optimizer": np.where(case.offload, 0, state.optimizer) * optimizer,
            "activations": in_flight(*case.pipeline, rank) / case.v * (layers - fewer) * kept,
            "working": working + unscattered * whole + np.where(rank == case.p - 1, logits, 0),
        }
        fuller = sum(found.values()) > sum(fullest.values())
        fullest = {kind: np.where(fuller, x, fullest.get(kind, 0)) for kind, x in found.items()}
    return fullest


def sent_bytes(case: Case) -> dict[str, Column]:
    """Bytes that all ranks send in a step, by strategy, as runs count them.

    The closed forms are those of `parlab.tensor.model_collectives`, `parlab.sequence.ring_cost` and
    `parlab.zero.elements_sent`.
    """
    state, E, t, c, item, cut = case.state, case.E, case.t, case.c, case.item, case.sequence_parallel
    again, turn = case.recompute == "full", (t - 1) * case.x
    shared = 2 * 2 * (t * case.kv / case.G - 1) * E * case.G * case.D * item  # dW of k and v, which t·kv/G ranks share
    norms = np.where(cut, 2 * (t - 1) * E * item, 0)
    layer = turn * (case.turns * (1 + again) + case.turns_back) + shared + 2 * norms
    # Each rank of tp runs the experts on the tokens that it has; if these differ, gradients are summed over tp
    mixture = np.where(cut, 2 * (t - 1) * (case.layer_experts + E * case.experts) * item, 0) if case.experts else 0
    layer = layer + mixture
    loss = 3 * 2 * case.n * case.wide if case.software.cuts_logits else case.logits
    outside = turn * np.where(cut, 5, 4) + norms + (t - 1) * loss
    around = 2 * case.n * case.kv * case.D * t * ((c - 1) * item * (2 + again) + np.where(c > 1, c * case.wide, 0))
    around_data = case.gradient * case.sums + state.weight * (case.gathers + case.regathers)
    # A tied table is gathered at both ends of the model, and has a gradient at both. One rank with both ends sends two
    # gradients, unless it keeps whole gradients. Two ranks with one end each first sum their two gradients, once a step
    table = case.V * E if case.tied else 0
    opened = np.where(case.kept_whole, 0, case.gradient * case.passes) + 2 * state.weight * case.regathers
    both = table * np.where(case.p == 1, opened, -2 * case.gradient * (case.passes - 1))
    summed = np.where(case.p == 1, 0, 2 * table * item)
    microbatches = case.m * case.data  # all ranks of a tensor-parallel group send for each of them
    rows = case.pairs_of_rank * (1 - 1 / case.ep) * E * item  # of a dispatch or a combine; the plan has N numbers
    exchanged = (4 + 2 * again) * rows + (1 + again) * 8 * case.experts * (case.ep - 1)
    of_mixture = {"ep": microbatches * t * case.L * exchanged} if case.experts else {}
    experts = (case.edp - 1) * case.ep * t * case.L * case.layer_experts * around_data
    return {
        "tp": microbatches * (case.L * layer + outside),
        "cp": microbatches * case.L * around,
        "pp": microbatches * 2 * (case.p * case.v - 1) * case.x * t / case.between + case.data * summed,
        "dp": (case.data - 1) * (t * case.params * around_data + both) + experts,
        **of_mixture,
    }
