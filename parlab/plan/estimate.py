"""The estimate of a layout: seconds of a step, bytes of the fullest rank and bytes sent, by kind, from closed forms.

Invariant: one layout and columns of layouts give the same numbers to the bit, and bytes sent are those that a run of
`parlab.train` counts. The fullest rank is the first, the second or the last of the pipeline.

Source: Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models" (activations);
Rajbhandari et al. 2020, "ZeRO" (the model's state); the seconds are those of `parlab.plan.seconds`.
"""

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
from parlab.plan.case import Case, Sizes
from parlab.plan.layout import Layout, check_layouts
from parlab.plan.machine import Hardware, Machine
from parlab.plan.rules import check_rules, joint_rules, own_rules
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
        items = block_kept_bytes(case.config, 1, case.sequence, case.itemsize)
    else:
        items = gpt_kept_bytes(case.sequence, 1, case.hidden_size, case.heads, itemsize=case.itemsize)
    if case.num_experts:
        items = {place: size for place, size in items.items() if place not in ("mlp.gate", "mlp.up", "mlp.hidden")}
    whole = sum(size for place, size in items.items() if "norm" in place or place.endswith((".x", "output_keep")))
    scores = sum(items.get(place, 0) for place in SOFTMAX)
    shared = (items["attention.k"] + items["attention.v"]) * (case.own_kv_heads * case.tp / case.kv_heads - 1)
    cut = sum(items.values()) - whole - scores + shared
    # Software that does not gather the inputs of column products again keeps them whole, and not its t-th of them
    inputs = 0 if case.software.gathers_again else items["attention.x"] + items["mlp.x"]
    kept = (whole - inputs) / case.token_ranks + inputs + (cut + np.where(recompute == "none", scores, 0)) / case.tp
    kept = case.microbatch / case.cp * kept + kept_of_experts(case)
    return np.where(recompute == "full", case.input_bytes / case.token_ranks, kept)


def kept_of_experts(case: Case) -> Column:
    """Of a mixture, at an even load: rows, answers, what each expert keeps, and the routing of each token."""
    routed = 8 + 8 + case.itemsize  # the pair's place, expert and gate
    of_row = case.itemsize * (2 * case.hidden_size + 3 * case.expert_columns) + routed
    return case.expert_rows * of_row + case.tokens / case.token_ranks * case.num_experts * case.itemsize


def rank_bytes(case: Case) -> dict[str, Column]:
    """Bytes of the fullest rank, by kind. It is the first, the second or the last of the pipeline.

    The model's state is that of `parlab.zero.model_state_bytes`. The working set exists only for a moment. It holds the
    gradient of the widest activation and a layer's gathered input, the activations of a layer that is computed again,
    gradients before they are scattered (ZeRO-2 and 3), gathered weights (ZeRO-3), and on the last stage the logits and
    their softmax in float32 or wider.
    """
    state, zero, layers = case.state, case.zero, case.chunk_layers * case.chunks
    kept, made = (kept_of_layer(case, recompute) for recompute in (case.recompute, np.array("none")))
    # Layers whose weights are here: this one and the next; or the same of chunks
    opened = np.where(case.gathered_once, np.minimum(case.chunks, 2) * case.chunk_layers, 2)
    gathered = np.where(zero == 3, opened * state.weight, 0) * (case.layer_params + case.layer_expert_params)
    widest = case.tokens * case.up_columns / case.tp + case.expert_rows * 2 * case.expert_columns
    working = case.itemsize * (case.tokens * case.hidden_size + widest) + (made - kept) + gathered
    of_logit = case.itemsize + case.wide_itemsize + case.software.logit
    logits = case.tokens * case.loss_columns * of_logit + 2 * case.input_bytes / case.token_ranks
    unscattered = np.where(zero >= 2, state.gradient, 0)
    # Ranks that share the state that a stage of ZeRO shards
    over = [np.where(zero >= stage, case.data_ranks, 1) for stage in range(4)]
    over_experts = [np.where(zero >= stage, case.edp, 1) for stage in range(4)]
    fullest: dict[str, Column] = {}
    for rank, fewer, params in case.stages:
        experts = (layers - fewer) * case.layer_expert_params
        of_layer = case.layer_params + case.layer_expert_params
        whole = np.where(case.reductions > 1, of_layer, (params + experts) / case.chunks)
        weights, gradients, optimizer = (params / over[stage] + experts / over_experts[stage] for stage in (3, 2, 1))
        found = {
            "weights": state.weight * weights,
            "gradients": state.gradient * gradients,
            "optimizer": np.where(case.offload, 0, state.optimizer) * optimizer,
            "activations": in_flight(*case.pipeline, rank) / case.chunks * (layers - fewer) * kept,
            "working": working + unscattered * whole + np.where(rank == case.pp - 1, logits, 0),
        }
        fuller = sum(found.values()) > sum(fullest.values())
        fullest = {kind: np.where(fuller, x, fullest.get(kind, 0)) for kind, x in found.items()}
    return fullest


def sent_bytes(case: Case) -> dict[str, Column]:
    """Bytes that all ranks send in a step, by strategy, as runs count them.

    The closed forms are those of `parlab.tensor.model_collectives`, `parlab.sequence.ring_cost` and
    `parlab.zero.elements_sent`.
    """
    found = {"tp": _tensor_bytes(case), "cp": _ring_bytes(case), "pp": _pipeline_bytes(case), "dp": _data_bytes(case)}
    return found | ({"ep": _expert_bytes(case)} if case.num_experts else {})


def _all_microbatches(case: Case) -> Column:
    """For each of them all ranks of a tensor-parallel group send."""
    return case.microbatches * case.data_ranks


def _tensor_bytes(case: Case) -> Column:
    """Turns of a layer's input, gradients that several ranks have a part of, and the loss."""
    E, G, t, item, cut = case.hidden_size, case.kv_heads, case.tp, case.itemsize, case.sequence_parallel
    turn, again = (t - 1) * case.input_bytes, case.recompute == "full"
    shared = 2 * 2 * (t * case.own_kv_heads / G - 1) * E * G * case.head_dim * item  # dW of k and v, which ranks share
    norms = np.where(cut, 2 * (t - 1) * E * item, 0)
    layer = turn * (case.forward_turns * (1 + again) + case.backward_turns) + shared + 2 * norms
    if case.num_experts:  # run on the tokens that a rank has; if these differ, gradients are summed over tp
        experts = case.layer_expert_params + E * case.num_experts
        layer = layer + np.where(cut, 2 * (t - 1) * experts * item, 0)
    loss = 3 * 2 * case.tokens * case.wide_itemsize if case.software.cuts_logits else case.logit_bytes
    outside = turn * np.where(cut, 5, 4) + norms + (t - 1) * loss
    return _all_microbatches(case) * (case.num_layers * layer + outside)


def _ring_bytes(case: Case) -> Column:
    """c − 1 hops of K and V forward and backward, and c of dK and dV in float32 or wider."""
    c, again = case.cp, case.recompute == "full"
    hops = (c - 1) * case.itemsize * (2 + again) + np.where(c > 1, c * case.wide_itemsize, 0)
    around = 2 * case.tokens * case.own_kv_heads * case.head_dim * case.tp * hops
    return _all_microbatches(case) * case.num_layers * around


def _pipeline_bytes(case: Case) -> Column:
    """A layer's input and its gradient between stages; and the gradients of a tied table, which two ranks sum."""
    hops = 2 * (case.pp * case.chunks - 1)
    table = case.vocab_size * case.hidden_size if case.tied else 0
    summed = np.where(case.pp == 1, 0, 2 * table * case.itemsize)
    sent = _all_microbatches(case) * hops * case.input_bytes * case.tp / case.token_ranks
    return sent + case.data_ranks * summed


def _data_bytes(case: Case) -> Column:
    """ZeRO's passes over gradients and weights.

    A tied table is gathered at both ends of the model, and has a gradient at both. One rank with both ends sends two
    gradients, unless it keeps whole gradients. Two ranks with one end each first sum their two gradients, once a step.
    """
    weight, gradient, t = case.state.weight, case.gradient_bytes, case.tp
    passes = gradient * case.gradient_passes + weight * (case.forward_gathers + case.backward_gathers)
    table = case.vocab_size * case.hidden_size if case.tied else 0
    opened = np.where(case.whole_gradients, 0, gradient * case.reductions) + 2 * weight * case.backward_gathers
    both = table * np.where(case.pp == 1, opened, -2 * gradient * (case.reductions - 1))
    experts = (case.edp - 1) * case.ep * t * case.num_layers * case.layer_expert_params * passes
    return (case.data_ranks - 1) * (t * case.params * passes + both) + experts


def _expert_bytes(case: Case) -> Column:
    """Dispatch and combine, forward and backward, and the plan of N numbers."""
    again, ep = case.recompute == "full", case.ep
    rows = case.expert_rows * (1 - 1 / ep) * case.hidden_size * case.itemsize  # of a dispatch or a combine
    exchanged = (4 + 2 * again) * rows + (1 + again) * 8 * case.num_experts * (ep - 1)
    return _all_microbatches(case) * case.tp * case.num_layers * exchanged
