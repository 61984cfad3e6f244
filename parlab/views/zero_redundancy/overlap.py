"""The waiting of ZeRO-3 against the tokens of a rank, with prefetch and without: formula as lines, runs as points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import mean
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from parlab.arguments import whole
from parlab.nn.formulas import flops_by_block
from parlab.nn.llama import LlamaConfig
from parlab.views.drawing import marks, theme
from parlab.views.drawing.picture import Picture, curve, line_legend, plot, scale, short_time
from parlab.world import Cluster, Link, Run, Timeline
from parlab.world.collectives.two_levels import hierarchical_all_gather_cost
from parlab.world.units import format_time
from parlab.zero import tokens_to_hide_a_gather

HEIGHT = 4.6  # inches
WITHOUT, WITH = curve("#D55E00", "dashed"), curve("#0072B2", "solid")
HIDDEN = "#E3EEF6"
POINT = {"marker": "o", "markersize": 8, "linestyle": "none", "markeredgecolor": theme.PAPER}
CROSSING = {"color": theme.INK, "linestyle": "dotted", "linewidth": 1.6}
ROUNDING = 1e-3  # of a gather: waits that differ by less are equal
ITEMSIZE = 2  # bytes of a weight in a message
FEWEST = 3  # layers: beside the first one of the backward no other layer's gradients are reduced


class LayerTimes(NamedTuple):
    """The times of a layer, in picoseconds: of its gather, which its reduction equals, and of its work for a token."""

    gather: float
    forward_a_token: float
    backward_a_token: float

    def waiting(self, tokens: float, prefetch: int) -> float:
        """Picoseconds of waiting. Beside its forward the next layer is gathered. Beside its backward the next layer is
        gathered, and another layer's gradients are reduced."""
        if prefetch == 0:
            return 3 * self.gather
        forward, backward = tokens * self.forward_a_token, tokens * self.backward_a_token
        return max(0, self.gather - forward) + max(0, 2 * self.gather - backward)

    @property
    def corners(self) -> tuple[float, float]:
        """The tokens of a rank from which prefetch leaves no waiting, beside a forward and beside a backward."""
        return self.gather / self.forward_a_token, 2 * self.gather / self.backward_a_token


def gather_overlap(
    runs: Mapping[int, Mapping[int, Run]], config: LlamaConfig, S: int, ranks_per_node: int | None = None
) -> Picture:
    """Draw the time that ZeRO-3 waits for a layer in a step, against the tokens of a rank, with prefetch and without.

    The formula is for a layer inside the model. Its gather takes g, the reduction of its gradients takes g, its forward
    takes f and its backward b. Without prefetch nothing overlaps, and the waiting is 3g. With prefetch it is
    max(0, g − f) + max(0, 2g − b). It holds on clusters with one port for all links.

    Args:
        runs: of a step with `forward_backward` at stage 3 and 16-bit weights: `{prefetch: {tokens a rank: run}}`, for
            prefetch 0 and 1. The FLOPs of their cluster's device are those that kernels reach (`Cluster.reaching`).
        config: of the model that ran, with 3 layers or more.
        S: tokens of a sequence; the tokens of a rank are a multiple.
        ranks_per_node: as `Zero` was told: weights are gathered and gradients reduced in two levels.

    Raises:
        ValueError: nodes that the ranks do not fill, no runs, something else, other numbers of ranks, one rank, fewer
            layers, or messages that take no time.
    """
    size, cluster = _checked(runs, config, S)
    layer = _layer(config, S, size, cluster, ranks_per_node)
    if not layer.gather:
        raise ValueError(f"cluster={cluster.name}: messages take no time on it; give it a finite bandwidth")
    computed = {
        prefetch: {tokens: _waiting(run.timeline, config) for tokens, run in sorted(by_tokens.items())}
        for prefetch, by_tokens in sorted(runs.items())
    }
    inside = cluster.intra.bandwidth if ranks_per_node else None
    crossing = tokens_to_hide_a_gather(
        cluster.device_of(0).flops,
        _slowest(cluster, size).bandwidth,
        size,
        ranks_per_node=ranks_per_node,
        inside=inside,
    )
    hidden = f"hidden from {math.ceil(max(layer.corners))} tokens a rank on"
    headline = f"What stage 3 waits for a layer in a step, {size} ranks: {hidden}"
    figure, axes = plot(_table(headline, computed, layer, crossing), HEIGHT, headline, left=1.05, top=1.0)
    last = 1.06 * max(crossing, *layer.corners, *(tokens for points in computed.values() for tokens in points))
    across, up = MaxNLocator(8, steps=[1, 2, 2.5, 5, 10], integer=True), MaxNLocator(6, steps=[1, 2, 5, 10])
    scale(axes.xaxis, "tokens a rank", ends=(0, last), ticks=across)
    scale(axes.yaxis, "waiting, a layer in a step", ends=(0, 3.4 * layer.gather), ticks=up, says=short_time)
    _draw_formula(axes, layer, crossing, last)
    for prefetch, points in computed.items():
        style = {**POINT, "color": (WITH if prefetch else WITHOUT)["color"], "gid": f"computed {prefetch}"}
        axes.plot(list(points), list(points.values()), clip_on=False, zorder=3, **style)
    entries = [("no prefetch: 3g", WITHOUT), ("prefetch: max(0, g − f) + max(0, 2g − b)", WITH)]
    line_legend(figure, [*entries, ("on the clock", {**POINT, "color": theme.FAINT})])
    return figure


def _checked(runs: Any, config: Any, S: Any) -> tuple[int, Cluster]:
    if not isinstance(config, LlamaConfig) or config.num_hidden_layers < FEWEST:
        raise ValueError(f"config={config!r:.60}: a LlamaConfig with {FEWEST} layers or more is needed")
    whole("S", S, 1)
    if not isinstance(runs, Mapping) or not all(isinstance(points, Mapping) for points in runs.values()):
        raise ValueError(f"runs={runs!r:.60}: must be {{prefetch: {{tokens a rank: run}}}}")
    done = []
    for prefetch, points in runs.items():
        if prefetch not in (0, 1):
            raise ValueError(f"runs: prefetch {prefetch!r}: the formula knows 0 and 1")
        for tokens, run in points.items():
            if whole("runs: tokens", tokens) < 1 or tokens % S:
                raise ValueError(f"runs[{prefetch}]: {tokens!r} tokens a rank are no multiple of S={S}")
            if not isinstance(run, Run):
                raise ValueError(f"runs[{prefetch}][{tokens}]={run!r:.60}: must be what run() returned")
            done.append(run)
    sizes = {run.timeline.size for run in done}
    if len(sizes) != 1 or sizes == {1}:
        raise ValueError(f"runs: they have {sorted(sizes)} ranks, and need the same number, 2 or more")
    return sizes.pop(), done[0].cluster


def _slowest(cluster: Cluster, size: int) -> Link:
    """The slowest link among so many ranks, which sets the pace of a ring."""
    return cluster.intra if size <= cluster.ranks_per_node else cluster.inter


def _layer(config: LlamaConfig, S: int, size: int, cluster: Cluster, per_node: int | None) -> LayerTimes:
    own = [shape for name, shape in config.weight_shapes.items() if name.startswith("model.layers.0.")]
    weights = sum(map(math.prod, own))
    flops = flops_by_block(config, 1, S)["layers.0"]
    shard = -(-weights // size) * ITEMSIZE
    gather = (size - 1) * _slowest(cluster, size).picoseconds(shard)
    if per_node is not None:
        gather = hierarchical_all_gather_cost(size, shard, per_node, cluster.intra, cluster.inter).picoseconds
    picoseconds_a_token = 1e12 / cluster.device_of(0).flops / S
    return LayerTimes(
        gather=gather,
        forward_a_token=flops.forward * picoseconds_a_token,
        backward_a_token=(flops.backward_input + flops.backward_weight) * picoseconds_a_token,
    )


def _waiting(timeline: Timeline, config: LlamaConfig) -> float:
    """The waiting of an average layer and rank in a step: the time between its computations and those before them."""
    last = config.num_hidden_layers - 1
    spans = {(span.rank, span.name): span for span in timeline.computes}

    def between(before: str, after: str) -> float:
        return mean(spans[rank, after].start - spans[rank, before].end for rank in range(timeline.size))

    try:
        forward = mean(between(f"forward layers.{i - 1}", f"forward layers.{i}") for i in range(1, last + 1))
        return forward + mean(between(f"backward layers.{i + 1}", f"backward layers.{i}") for i in range(last - 1))
    except KeyError as error:
        needed = "a step of forward_backward on this config is needed"
        raise ValueError(f"runs: one did not compute {error}: {needed}") from None


def _table(headline: str, computed: Mapping[int, Mapping[int, float]], layer: LayerTimes, crossing: float) -> str:
    lines = [
        headline,
        f"a gather lasts {format_time(layer.gather)}; latency and attention's own FLOPs apart: from {crossing:.4g} on",
        f"{'prefetch':>8} {'tokens':>7} {'waits':>10} {'formula':>10}",
    ]
    equal = True
    for prefetch, points in computed.items():
        for tokens, waited in points.items():
            formula = layer.waiting(tokens, prefetch)
            lines.append(f"{prefetch:>8} {tokens:>7} {format_time(waited):>10} {format_time(formula):>10}")
            equal &= abs(waited - formula) <= ROUNDING * layer.gather
    return "\n".join([*lines, f"on the clock = formula at every point: {equal}"])


def _draw_formula(axes: Axes, layer: LayerTimes, crossing: float, last: float) -> None:
    """The lines of the formula, the area between them, and the crossing."""
    tokens = sorted([0, *layer.corners, last])
    without, prefetched = ([layer.waiting(at, prefetch) for at in tokens] for prefetch in (0, 1))
    axes.plot(tokens, without, gid="formula 0", **WITHOUT)
    axes.plot(tokens, prefetched, gid="formula 1", **WITH)
    axes.fill_between(tokens, prefetched, without, color=HIDDEN, linewidth=0)
    words = "hidden behind computing"
    marks.word(axes, 0.985 * last, 2.7 * layer.gather, words, theme.TEXT, ha="right", va="baseline")
    axes.plot([crossing] * 2, [0, 2.55 * layer.gather], gid="crossing", **CROSSING)
    words = f"{crossing:.4g} tokens: a weight's 2 FLOPs a token\n"
    words += "last as long as its gather,\nlatency and attention apart"
    place = {"xytext": (-6, 0), "textcoords": "offset points", "ha": "right", "va": "top"}
    axes.annotate(words, (crossing, 2.45 * layer.gather), size=theme.SMALL, color=theme.INK, **place)
