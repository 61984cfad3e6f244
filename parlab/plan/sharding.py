"""ZeRO's shards and passes: among how many ranks a state is cut, and how often all gradients and weights travel.

Invariant: a pass is one reduce-scatter of all gradients, or one all-gather of all weights; an all-reduce is two.

Source: Rajbhandari et al. 2020, "ZeRO". With several microbatches a step: the Llama team 2024, "The Llama 3 herd of
models", section 3.3.2 (groups of microbatches); `parlab.zero.elements_sent` counts the passes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parlab.pipeline.closed_forms import Column, Pipeline
from parlab.plan.layout import Layout
from parlab.plan.software import Software


class Sharding(NamedTuple):
    """The ranks that cut a state, and its passes in a step.

    Fields:
        zero: the stage.
        shards, expert_shards: into how many ZeRO cuts a parameter, and an expert's.
        whole_gradients: ZeRO keeps them whole until the step ends.
        gathered_once: ZeRO-3 gathers weights once for all microbatches.
        reductions: how often a gradient is reduced in a step.
        gradient_passes, forward_gathers, backward_gathers: times that ZeRO sends all gradients, and all weights before
            the forward and before the backward.
        each_microbatch: of several microbatches each sends its gradients, a layer's before the next layer's come; else
            those of a chunk are summed over microbatches first.
    """

    zero: Column
    shards: Column
    expert_shards: Column
    whole_gradients: Column
    gathered_once: Column
    reductions: Column
    gradient_passes: Column
    forward_gathers: Column
    backward_gathers: Column
    each_microbatch: Column

    def held(self, params: Column, experts: Column, from_stage: int) -> Column:
        """Of a rank's parameters, and its experts', those whose part of the state it holds: its shards, if ZeRO cuts
        that part `from_stage` on (the optimizer's from stage 1, gradients from 2, weights from 3); else all."""
        cut = self.zero >= from_stage
        return params / np.where(cut, self.shards, 1) + experts / np.where(cut, self.expert_shards, 1)


def sharding_of(layout: Layout, pipeline: Pipeline, software: Software) -> Sharding:
    """The record of columns of layouts.

    ZeRO-2 and ZeRO-3 keep no whole gradients, and send those of each microbatch at once. But where several
    microbatches go through a chunk in a row, gradients may be summed meanwhile, and sent once for the group. ZeRO-2
    does so where all microbatches are one group, and in some software for each group. Some software does so with
    ZeRO-3's gradients and weights, too, where all are one group.
    """
    zero, alternates, microbatches = layout.zero, pipeline.alternates, pipeline.microbatches
    groups = np.ceil(microbatches / pipeline.group)
    whole = (zero < 2) | ((zero == 2) & ~alternates)
    once = (zero == 3) & ~alternates & software.gathers_once
    by_group = (zero == 2) & alternates & software.sends_by_group
    reductions = np.where(whole | once, 1, np.where(by_group, groups, microbatches))
    all_reduced = (zero == 0) | ((zero == 1) & (not software.scatters_gradients))
    ranks = layout.dp * layout.cp
    return Sharding(
        zero=zero,
        shards=ranks,
        expert_shards=ranks / layout.ep,
        whole_gradients=whole,
        gathered_once=once,
        reductions=reductions,
        gradient_passes=np.where(all_reduced, 2, reductions),
        forward_gathers=np.where(zero == 3, reductions, zero > 0),  # ZeRO-1 and ZeRO-2: the new weights, once
        backward_gathers=np.where(zero == 3, reductions, 0),
        each_microbatch=(reductions > 1) & ~(by_group & (pipeline.group > 1)),
    )
