"""The price of ZeRO's four stages on one model and cluster: bytes on a device, bytes sent, and time waited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from parlab.arguments import checked, positive
from parlab.plan.arguments import fraction
from parlab.views.arguments import RULES
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import legend_of, name_rows
from parlab.views.drawing.marks import Interval
from parlab.views.drawing.picture import BOUND, Picture, panel, scale, sheet, write
from parlab.views.widgets.explorer import Explorer, choice, steps
from parlab.views.zero_redundancy.model_state import (
    COLORS,
    DEVICE,
    END,
    NAMES,
    PARTS,
    SIZES,
    STAGES,
    decimal_bytes,
    spoken,
)
from parlab.world import DGX_A100, DGX_H100, Cluster
from parlab.world.units import format_time
from parlab.zero import MIXED, StateBytes, model_state_bytes, step_waiting, tokens_to_hide_a_gather

GRADIENTS = {"in 16 bits": MIXED, "in float32": StateBytes(gradient=4)}
COMPUTE, WAIT = theme.KINDS["compute"], theme.KINDS["wait"]._replace(name="waits for messages")
MOST_LETTERS = 12  # passes that have room for a letter each
LEFT, APART, TOP, ROW, BELOW = 1.3, 0.35, 1.35, 0.72, 0.5  # inches
BAR, SAID = (-0.26, 0.2), 0.38  # of a row: from and to of its bar, and the middle of the words below
APART_FROM = "Computed. Latency, the optimizer's work, and the first and the last message are apart."
TOO_MANY = "Activations, buffers and the blocks in use come on top of the bytes on a device."


class Price(NamedTuple):
    """Of one stage: bytes of each part on a device, what a rank sends in each pass and its bytes, seconds."""

    held: list[float]
    passes: tuple[str, ...]
    sent: list[float]
    computing: float
    waiting: float

    @property
    def fits(self) -> bool:
        """Whether the model's state fits a device."""
        return sum(self.held) <= DEVICE


@checked(RULES | {"params": positive, "products": fraction})
def price_tag(
    params: float = 70e9,
    P: int = 64,
    tokens: int = 8192,
    state: StateBytes = MIXED,
    cluster: Cluster = DGX_A100,
    products: float = 1.0,
    microbatches: int = 1,
) -> Picture:
    """Draw what each stage of ZeRO costs: bytes on a device, bytes that a rank sends, seconds of a step.

    Weights are gathered and gradients reduced in two levels where the ranks fill several nodes. `explore_price_tag`
    shows this.

    Args:
        params: Ψ.
        P: ranks.
        tokens: of a rank, in a microbatch.
        state: bytes a parameter; gradients travel as they are kept.
        cluster: the hardware. Its device has 80 GB.
        products: the fraction of the device's peak that products reach. At 1 there is least to hide messages behind.
        microbatches: k, of a step.

    Raises:
        ValueError: no parameters, tokens, ranks or microbatches, ranks that do not fill nodes, or a fraction that is
            none.

    >>> price_tag(7.5e9, 64, tokens=1024)
    Ψ = 7.5 billion on 64 A100s, 1024 tokens each: of the stages that fit, 1 and 2 wait least
    stage   on device  fits   passes  sent by a rank    computes       waits
        0      120 GB  no          2         29.5 GB      148 ms      120 ms
        1     31.4 GB  yes         2         29.5 GB      148 ms     71.1 ms
        2     16.6 GB  yes         2         29.5 GB      148 ms     71.1 ms
        3     1.88 GB  yes         3         44.3 GB      148 ms      180 ms
    Computed. Latency, the optimizer's work, and the first and the last message are apart.
    Activations, buffers and the blocks in use come on top of the bytes on a device.
    """
    prices = [_price(params, P, stage, tokens, state, cluster.reaching(products), microbatches) for stage in STAGES]
    each = f"{microbatches} × {tokens}" if microbatches > 1 else tokens
    headline = f"Ψ = {spoken(params)} on {P} {_device(cluster, P)}, {each} tokens each: {_verdict(prices)}"
    lines = [headline, "stage   on device  fits   passes  sent by a rank    computes       waits"]
    for stage, price in enumerate(prices):
        times = "".join(f"{format_time(1e12 * seconds):>12}" for seconds in (price.computing, price.waiting))
        held, fits = decimal_bytes(sum(price.held)), "yes" if price.fits else "no"
        lines.append(f"{stage:>5}{held:>12}  {fits:<3}{len(price.sent):>10}{decimal_bytes(sum(price.sent)):>16}{times}")
    figure = sheet([*lines, APART_FROM, TOO_MANY], TOP + ROW * len(STAGES) + BELOW + 0.25, headline)
    wide = (theme.WIDTH - LEFT - 3 * APART) / 3
    for column, (draw, said) in enumerate(
        (
            (_draw_held, "on a device (dashed: 80 GB)"),
            (_draw_sent, "sent by a rank in a step"),
            (_draw_time, "time of a step"),
        )
    ):
        left = LEFT + column * (wide + APART)
        axes = panel(figure, left, TOP, wide, ROW * len(STAGES))
        write(figure, left, TOP - 0.28, said, theme.TEXT, weight="bold")
        name_rows(axes, len(STAGES), NAMES if column == 0 else ())
        draw(axes, prices)
    for row, words in enumerate((APART_FROM, TOO_MANY)):
        write(figure, 0.15, TOP + ROW * len(STAGES) + 0.12 + 0.24 * row, words)
    entries = [(COLORS[part], name, "") for part, name in PARTS.items()]
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
    device, node = cluster.device_of(0), cluster.ranks_per_node
    levels: dict[str, Any] = {"bandwidth": cluster.intra.bandwidth}
    if node < P:
        levels = {"bandwidth": cluster.inter.bandwidth, "ranks_per_node": node, "inside": cluster.intra.bandwidth}
    a_token = 2 * params / device.flops  # seconds of a forward; a backward takes twice as long
    itemsize = {"weights": state.weight, "gradients": state.gradient}
    lasts = {
        name: a_token * tokens_to_hide_a_gather(device.flops, ranks=P, itemsize=nbytes, **levels)
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
    return cluster.device_of(0).name.split()[0] + "s" * (P > 1)


def _verdict(prices: Sequence[Price]) -> str:
    fitting = [stage for stage in STAGES if prices[stage].fits]
    if not fitting:
        return f"no stage fits {decimal_bytes(DEVICE)}"
    if len(fitting) == 1:
        return f"only stage {fitting[0]} fits, and waits {format_time(1e12 * prices[fitting[0]].waiting)}"
    least = min(prices[stage].waiting for stage in fitting)
    best = [str(stage) for stage in fitting if prices[stage].waiting <= least * (1 + 1e-9)]
    if len(best) == len(fitting):
        return "all stages that fit wait equally" if least else "no stage that fits waits"
    said = " and ".join(filter(None, [", ".join(best[:-1]), best[-1]]))
    return f"of the stages that fit, {said} wait{'s' * (len(best) == 1)} least"


def _words(axes: Axes, texts: Sequence[str], bold: Sequence[bool] = (False,) * 4) -> None:
    """Words below each bar."""
    for row, (text, strong) in enumerate(zip(texts, bold, strict=True)):
        marks.word(axes, 0, row + SAID, text, weight="bold" if strong else "normal")


def _draw_held(axes: Axes, prices: Sequence[Price]) -> None:
    scale(axes.xaxis, ends=(0, END), ticks=(), line=False)
    for row, price in enumerate(prices):
        spans, start = [], 0.0
        for nbytes in price.held:
            spans.append(Interval(start, start := min(END, start + nbytes)))
        marks.boxes(axes, f"held {row}", spans, [row] * 3, BAR, list(COLORS.values()))
        if sum(price.held) > END:
            axes.plot([0.97 * END], [row + sum(BAR) / 2], ">", color=theme.PAPER, markersize=7, gid="longer")
    ends = [row + edge for row in STAGES for edge in (1.4 * BAR[0], BAR[1])]
    axes.vlines([DEVICE] * len(STAGES), ends[::2], ends[1::2], color=theme.PAPER, linewidth=4)
    axes.vlines([DEVICE] * len(STAGES), ends[::2], ends[1::2], gid="device", **BOUND)
    said = [f"{decimal_bytes(sum(price.held))}, {'fits' if price.fits else 'does not fit'}" for price in prices]
    _words(axes, said, [price.fits for price in prices])


def _draw_sent(axes: Axes, prices: Sequence[Price]) -> None:
    scale(axes.xaxis, ends=(0, max(sum(price.sent) for price in prices) or 1), ticks=(), line=False)
    most = max(len(price.passes) for price in prices)
    for row, price in enumerate(prices):
        spans, start = [], 0.0
        for nbytes in price.sent:
            spans.append(Interval(start, start := start + nbytes))
        texts = [[name, name[0].upper()] if most <= MOST_LETTERS else [] for name in price.passes]
        marks.boxes(axes, f"sent {row}", spans, [row] * len(spans), BAR, [COLORS[name] for name in price.passes], texts)
    said = [f"{len(price.sent)} passes, {decimal_bytes(sum(price.sent))}" for price in prices]
    _words(axes, [words if sum(price.sent) else "nothing to send" for words, price in zip(said, prices, strict=True)])


def _draw_time(axes: Axes, prices: Sequence[Price]) -> None:
    longest = max(price.computing + price.waiting for price in prices)
    scale(axes.xaxis, ends=(0, 1.01 * longest), ticks=(), line=False)  # the last edge is drawn whole
    computing = [Interval(0, price.computing) for price in prices]
    marks.boxes(axes, "computing", computing, list(STAGES), BAR, COMPUTE.color)
    for row, price in enumerate(prices):
        if price.waiting:
            waits = [Interval(price.computing, price.computing + price.waiting)]
            marks.hatched_boxes(axes, f"waiting {row}", waits, [row], BAR, WAIT)
    said = [f"{format_time(1e12 * (p.computing + p.waiting))}, waits {format_time(1e12 * p.waiting)}" for p in prices]
    _words(axes, said)


def explore_price_tag() -> Explorer:
    """Sliders for `price_tag`: the model, the ranks, the tokens, the gradients' dtype, and the cluster.

    They open with 8192 tokens, where no stage that fits waits: which waits least with fewer is for the reader to say.
    """
    controls = {
        "params": steps("parameters Ψ", SIZES, 7.5e9, spoken),
        "P": steps("GPUs P", [2**k for k in range(11)], 64),
        "tokens": steps("tokens each", [2**k for k in range(8, 16)], 8192),
        "microbatches": steps("microbatches k", (1, 2, 4, 8), 1),
        "state": choice("gradients", list(GRADIENTS.items()), MIXED),
        "cluster": choice("cluster", (DGX_A100, DGX_H100), DGX_A100, lambda one: one.name),
        "products": steps("products reach", (0.4, 0.6, 0.8, 1.0), 1.0, "{:.0%}".format),
    }
    return Explorer("explore_price_tag", controls, price_tag)
