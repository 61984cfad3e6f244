"""The price of ZeRO's four stages on one model and cluster: bytes on a device, bytes sent, and time waited."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from parlab.arguments import checked, positive
from parlab.views.engine import marks, theme
from parlab.views.engine.arguments import RULES, within
from parlab.views.engine.explore import Explorer, choice, steps
from parlab.views.engine.lanes import legend_of, name_rows
from parlab.views.engine.marks import Interval
from parlab.views.engine.picture import BOUND, Picture, panel, scale, sheet, write
from parlab.views.engine.words import do
from parlab.views.zero.model_state import (
    COLORS,
    DEVICE,
    NAMES,
    PARTS,
    SIZES,
    STAGES,
    decimal_bytes,
    spoken,
)
from parlab.world import DGX_A100, DGX_H100, Cluster
from parlab.world.cluster import REACHED
from parlab.world.groups import checked_group
from parlab.world.units import format_time
from parlab.zero import StateBytes, model_state_bytes, step_waiting, tokens_to_hide_a_gather

FLOAT32 = StateBytes(gradient=4)  # as Megatron keeps and reduces gradients
RESERVE = 0.2 * DEVICE  # for activations, buffers and the blocks in use
LONGEST = 20  # times a device's memory: bars that are longer still are cut
ADAM = 0.02  # of the longest strip: the optimizer's mark, between two passes or behind the last
IF_IT_FITTED = 0.6  # of white, in the time of a stage that does not fit
COMPUTE, WAIT = theme.KINDS["compute"], theme.KINDS["wait"]._replace(name="waits for messages")
TOKENS = (256, 512, 1024, 1536, 2048, 2560, 4096, 8192, 16384)
MOST_LETTERS = 12  # passes that have room for a letter each
LEFT, APART, TOP, ROW, BELOW = 1.3, 0.35, 1.35, 0.72, 0.15  # inches
BAR, ADAM_BAR, SAID = (
    (-0.26, 0.2),
    (-0.36, 0.2),
    0.38,
)  # of a row: from and to of a bar and of the optimizer's mark, the middle of the words


def fraction(name: str, value: Any) -> None:
    """Refuse a pace beyond the data sheet's."""
    positive(name, value)
    if value > 1:
        raise ValueError(f"{name}={value!r}: a fraction of the data sheet, greater than 0 and at most 1, is needed")


class Price(NamedTuple):
    """Of one stage: bytes of each part on a device, what a rank sends in each pass and its bytes, seconds."""

    held: list[float]
    passes: tuple[str, ...]
    sent: list[float]
    computing: float
    waiting: float

    @property
    def fits(self) -> bool:
        """Whether the model's state fits a device, and leaves the reserve."""
        return sum(self.held) <= DEVICE - RESERVE


@checked(RULES | {"params": positive, "products": fraction, "stages": partial(within, most=len(STAGES))})
def price_tag(
    params: float = 70e9,
    P: int = 64,
    tokens: int = 1024,
    state: StateBytes = FLOAT32,
    cluster: Cluster = DGX_A100,
    products: float = REACHED,
    microbatches: int = 4,
    stages: int = len(STAGES),
) -> Picture:
    """Draw what each stage of ZeRO costs: bytes on a device, bytes that a rank sends, seconds of a step.

    In the strip of what a rank sends each box is a pass: weights are gathered, or gradients reduced, once through the
    model. The optimizer's mark stands where it updates. Where the ranks fill several nodes a ring runs over each of a
    node's network cards, so that all cards carry a share. Latency, the optimizer's work, and the first and the last
    message are left out. A model's state fits if it leaves a fifth of the 80 GB. `explore_price_tag` shows this.

    Args:
        params: Ψ.
        P: ranks.
        tokens: of a rank, in a microbatch.
        state: bytes a parameter; gradients travel as they are kept.
        cluster: the hardware. Its device has 80 GB.
        products: the fraction of the device's peak that products reach. At 1 there is least to hide messages behind.
        microbatches: k, of a step.
        stages: how many are drawn, from stage 0 on: the picture grows. Its scales are those of all four.

    Raises:
        ValueError: no parameters, tokens, ranks or microbatches, ranks that do not fill nodes, a fraction that is
            none, or stages that are not 1 to 4.

    >>> price_tag(7.5e9, tokens=512)
    7.5 billion parameters, 64 A100s, 4 × 512 tokens each: of the stages that fit, 1 waits least
    stage   on device  fits   passes  sent by a rank    computes       waits
        0      135 GB  no          2         59.1 GB      454 ms      220 ms
        1     46.4 GB  yes         2         44.3 GB      454 ms      108 ms
        2     16.9 GB  yes         5          133 GB      454 ms      324 ms
        3     2.11 GB  yes        12          236 GB      454 ms      727 ms
    """
    prices = [_price(params, P, stage, tokens, state, cluster.reaching(products), microbatches) for stage in STAGES]
    longest = max(sum(price.sent) for price in prices), max(price.computing + price.waiting for price in prices)
    end = DEVICE * min(LONGEST, max(2, 1.03 * sum(prices[0].held) / DEVICE))
    prices = prices[:stages]
    each = f"{microbatches} × {tokens}" if microbatches > 1 else tokens
    headline = (
        f"{spoken(params).capitalize()} parameters, {P} {_device(cluster, P)}, {each} tokens each: {_verdict(prices)}"
    )
    lines = [headline, "stage   on device  fits   passes  sent by a rank    computes       waits"]
    for stage, price in enumerate(prices):
        times = "".join(f"{format_time(1e12 * seconds):>12}" for seconds in (price.computing, price.waiting))
        held, fits = decimal_bytes(sum(price.held)), "yes" if price.fits else "no"
        lines.append(f"{stage:>5}{held:>12}  {fits:<3}{len(price.sent):>10}{decimal_bytes(sum(price.sent)):>16}{times}")
    figure = sheet(lines, TOP + ROW * stages + BELOW, headline)
    wide = (theme.WIDTH - LEFT - 3 * APART) / 3
    for column, (draw, said) in enumerate(
        (
            (partial(_draw_held, end=end), "on a device (dashed: 80 GB)"),
            (partial(_draw_sent, longest=longest[0]), "sent by a rank in a step"),
            (partial(_draw_time, longest=longest[1]), "time of a step"),
        )
    ):
        left = LEFT + column * (wide + APART)
        axes = panel(figure, left, TOP, wide, ROW * stages)
        write(figure, left, TOP - 0.28, said, theme.TEXT, weight="bold")
        name_rows(axes, stages, NAMES[:stages] if column == 0 else ())
        draw(axes, prices)
    parts = PARTS | {"optimizer": "Adam and its state"}
    entries = [(COLORS[part], name, "") for part, name in parts.items()]
    legend_of(figure, [*entries, (COMPUTE.color, "computes", ""), (WAIT.color, WAIT.name, WAIT.hatch)])
    return figure


def _passes(stage: int, microbatches: int) -> tuple[str, ...]:
    """The name of the sent part in each pass of a step."""
    if stage == 3:
        return ("weights", "weights", "gradients") * microbatches
    return ("gradients",) * (microbatches if stage == 2 else 1) + (("weights",) if stage else ("gradients",))


def _price(
    params: float, P: int, stage: int, tokens: int, state: StateBytes, cluster: Cluster, microbatches: int
) -> Price:
    device, node = cluster.device, cluster.ranks_per_node
    bandwidth = cluster.intra.bandwidth
    if node < P:  # a ring through each card: together they pass what one ring would
        checked_group("ranks_per_node", node, P)
        bandwidth = min(bandwidth, node * cluster.inter.bandwidth)
    a_token = 2 * params / device.flops  # seconds of a forward; a backward takes twice as long
    itemsize = {"weights": state.weight, "gradients": state.gradient}
    lasts = {
        name: a_token * tokens_to_hide_a_gather(device.flops, bandwidth, P, itemsize=nbytes)
        for name, nbytes in itemsize.items()
    }
    alone = (StateBytes(state.weight, 0, 0), StateBytes(0, state.gradient, 0), StateBytes(0, 0, state.optimizer))
    passes, forward = _passes(stage, microbatches), tokens * a_token
    messages = (lasts["weights"], lasts["gradients"])
    return Price(
        [model_state_bytes(params, P, stage, state=part) for part in alone],
        passes,
        [params * itemsize[name] * (P - 1) / P for name in passes],
        3 * forward * microbatches,
        step_waiting(stage, forward, 2 * forward, *messages, microbatches=microbatches),
    )


def _device(cluster: Cluster, P: int) -> str:
    return cluster.device.name.split()[0] + "s" * (P > 1)


def _verdict(prices: Sequence[Price]) -> str:
    fitting = [stage for stage, price in enumerate(prices) if price.fits]
    if not fitting:
        return "none fits yet" if len(prices) < len(STAGES) else "no stage fits"
    if len(fitting) == 1:
        return f"only stage {fitting[0]} fits, and waits {format_time(1e12 * prices[fitting[0]].waiting)}"
    least = min(prices[stage].waiting for stage in fitting)
    best = [str(stage) for stage in fitting if prices[stage].waiting <= least * (1 + 1e-9)]
    if len(best) == len(fitting):
        return "all stages that fit wait equally" if least else "no stage that fits waits"
    said = " and ".join(filter(None, [", ".join(best[:-1]), best[-1]]))
    return f"of the stages that fit, {said} {do(len(best), 'wait')} least"


def _words(axes: Axes, texts: Sequence[str], bold: Sequence[bool] = (False,) * len(STAGES)) -> None:
    """Words below each bar."""
    for row, (text, strong) in enumerate(zip(texts, bold, strict=False)):
        marks.word(axes, 0, row + SAID, text, weight="bold" if strong else "normal")


def _draw_held(axes: Axes, prices: Sequence[Price], end: float) -> None:
    scale(axes.xaxis, ends=(0, end), ticks=(), line=False)
    for row, price in enumerate(prices):
        spans, start = [], 0.0
        for nbytes in price.held:
            spans.append(Interval(start, start := min(end, start + nbytes)))
        marks.boxes(axes, f"held {row}", spans, [row] * 3, BAR, list(COLORS.values()))
        if sum(price.held) > end:
            axes.plot([0.97 * end], [row + sum(BAR) / 2], ">", color=theme.PAPER, markersize=7, gid="longer")
    ends = [row + edge for row in range(len(prices)) for edge in (1.4 * BAR[0], BAR[1])]
    axes.vlines([DEVICE] * len(prices), ends[::2], ends[1::2], color=theme.PAPER, linewidth=4)
    axes.vlines([DEVICE] * len(prices), ends[::2], ends[1::2], gid="device", **BOUND)
    said = [f"{decimal_bytes(sum(price.held))}, {'fits' if price.fits else 'does not fit'}" for price in prices]
    _words(axes, said, [price.fits for price in prices])


def _draw_sent(axes: Axes, prices: Sequence[Price], longest: float) -> None:
    mark = ADAM * longest  # as wide as the optimizer's box
    scale(axes.xaxis, ends=(0, longest + mark or 1), ticks=(), line=False)
    most = max(len(price.passes) for price in prices)
    for row, price in enumerate(prices):
        before = len(price.passes) - price.passes[::-1].index("gradients")  # passes until all gradients are summed
        starts = np.cumsum([0, *price.sent[:-1]]) + mark * (np.arange(len(price.sent)) >= before)
        spans = [Interval(start, start + nbytes) for start, nbytes in zip(starts, price.sent, strict=True)]
        texts = [[name, name[0].upper()] if most <= MOST_LETTERS else [] for name in price.passes]
        marks.boxes(axes, f"sent {row}", spans, [row] * len(spans), BAR, [COLORS[name] for name in price.passes], texts)
        adam = Interval(spans[before - 1].end, spans[before - 1].end + mark)
        marks.boxes(axes, f"optimizer {row}", [adam], [row], ADAM_BAR, COLORS["optimizer"])
    said = [f"{len(price.sent)} passes, {decimal_bytes(sum(price.sent))}" for price in prices]
    _words(axes, [words if sum(price.sent) else "nothing to send" for words, price in zip(said, prices, strict=True)])


def _draw_time(axes: Axes, prices: Sequence[Price], longest: float) -> None:
    scale(axes.xaxis, ends=(0, 1.01 * longest), ticks=(), line=False)  # the last edge is drawn whole
    computing = [Interval(0, price.computing) for price in prices]
    colors = [COMPUTE.color if price.fits else theme.paler(COMPUTE.color, IF_IT_FITTED) for price in prices]
    marks.boxes(axes, "computing", computing, range(len(prices)), BAR, colors)
    for row, price in enumerate(prices):
        if price.waiting:
            waits = [Interval(price.computing, price.computing + price.waiting)]
            marks.hatched_boxes(axes, f"waiting {row}", waits, [row], BAR, WAIT)
    said = [f"{format_time(1e12 * (p.computing + p.waiting))}, waits {format_time(1e12 * p.waiting)}" for p in prices]
    _words(axes, [words if p.fits else f"if it fitted: {words}" for words, p in zip(said, prices, strict=True)])


def explore_price_tag() -> Explorer:
    """Controls of `price_tag` on 64 GPUs: the model, the tokens of a microbatch, the GPUs."""
    controls = {
        "params": steps("parameters", SIZES, 70e9, spoken),
        "tokens": steps("tokens each", TOKENS, 1024),
        "cluster": choice("GPUs", [("A100", DGX_A100), ("H100", DGX_H100)], DGX_A100),
    }
    return Explorer("explore_price_tag", controls, price_tag)
