"""Tensor parallelism under the learner's hands: ranks, heads, sizes and the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from parlab.nn.llama import LlamaConfig
from parlab.tensor import block_collectives, block_time, llama_kept_by_place, traffic
from parlab.views.drawing import marks, theme
from parlab.views.drawing.picture import Picture
from parlab.views.sharding.block import block_text, draw_block, word
from parlab.views.widgets.explorer import Explorer, choice, steps
from parlab.world import CLASSROOM, DGX_A100, DGX_H100, Cluster
from parlab.world.units import format_bytes, format_time

PANEL = 1.6  # units high
SIZES = (1, 2, 4, 8)
ITEMSIZE = 2  # bytes of an element: 16 bits
CLUSTERS = (CLASSROOM, DGX_A100, DGX_H100)
COMPUTE, MESSAGES = theme.KINDS["compute"].color, theme.KINDS["send"].color


def tensor(
    t: int = 2,
    H: int = 32,
    G: int = 8,
    E: int = 4096,
    S: int = 4096,
    cluster: Cluster = DGX_A100,
    sequence_parallel: bool = False,
) -> Picture:
    """Draw a Llama block among t ranks, and what t costs: time, bytes sent, bytes kept. What `explore_tensor` shows.

    One sequence, forward and backward, 16-bit numbers, M = 3.5 E as in Llama 3 8B. All from closed forms, which tests
    hold to runs: time on the simulated clock with computing and sending one after the other, so that it is the most
    that overlap could leave; bytes that a rank sends; bytes that a rank keeps for the backward.

    Args:
        t: tensor-parallel ranks.
        H, G, E, S: query heads, key/value heads, hidden size, tokens.
        cluster: the hardware; the ranks share a node.
        sequence_parallel: between the parts every rank has S/t tokens.

    Raises:
        ValueError: sizes that do not fit, or do not divide.
    """
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=E,
        intermediate_size=7 * E // 2,
        num_hidden_layers=1,
        num_attention_heads=H,
        num_key_value_heads=G,
    )
    costs = {size: _costs(config, S, size, cluster, sequence_parallel) for size in sorted({*SIZES, t})}
    headline = f"t = {t}, H = {H}, G = {G}, E = {E}, S = {S} on {cluster.name}"
    lines = [headline, f"{'t':>3} {'computing':>11} {'sending':>11} {'bytes sent':>11} {'bytes kept':>11}"]
    for size, (compute, messages, sent, kept) in costs.items():
        times = f"{format_time(compute):>11} {format_time(messages):>11}"
        lines.append(f"{size:>3} {times} {format_bytes(sent):>11} {format_bytes(kept):>11}")
    text = "\n".join([*lines, block_text(config, t, sequence_parallel=sequence_parallel)])
    figure, axes = draw_block(text, headline, config, t, sequence_parallel=sequence_parallel, below=PANEL + 1.15)
    columns = list(zip(*costs.values(), strict=True))
    both = [(columns[0], COMPUTE), (columns[1], MESSAGES)]
    _panel(axes, 0, "time, computing and (dark) sending", both, list(costs), t, format_time)
    _panel(axes, 1, "bytes that a rank sends", [(columns[2], MESSAGES)], list(costs), t, format_bytes)
    _panel(axes, 2, "bytes that a rank keeps", [(columns[3], COMPUTE)], list(costs), t, format_bytes)
    return figure


def _costs(
    config: LlamaConfig, S: int, size: int, cluster: Cluster, sequence_parallel: bool
) -> tuple[int, int, int, int]:
    """Picoseconds of computing and of sending, bytes sent and kept, of a block on one of `size` ranks."""
    compute = messages = sent = 0
    for backward in (False, True):
        options = {"backward": backward, "sequence_parallel": sequence_parallel}
        time = block_time(config, 1, S, size, ITEMSIZE, cluster, **options)
        compute, messages = compute + time.compute, messages + time.messages
        calls = block_collectives(config, 1, S, size, ITEMSIZE, **options)
        sent += traffic(calls, size).nbytes[0]
    kept = llama_kept_by_place(config, 1, S, size, ITEMSIZE, sequence_parallel=sequence_parallel)
    return compute, messages, sent, sum(kept.values())


def _panel(
    axes: Axes,
    number: int,
    name: str,
    stacks: Sequence[tuple[Sequence[int], str]],
    sizes: Sequence[int],
    chosen: int,
    show: Callable[[int], str],
) -> None:
    """Bars over t, stacked, below the block; the chosen one has a bold name."""
    floor = -0.5 - PANEL - 0.75
    middles = [3.7 * number + 0.85 * place for place in range(len(sizes))]
    left, right = [middle - 0.3 for middle in middles], [middle + 0.3 for middle in middles]
    totals = [sum(values) for values in zip(*(values for values, _ in stacks), strict=True)]
    unit = PANEL / max(*totals, 1)
    low = [floor] * len(sizes)
    for values, color in stacks:
        high = [start + unit * value for start, value in zip(low, values, strict=True)]
        marks.rectangles(axes, name, left, right, low, high, [color] * len(sizes))
        low = high
    axes.hlines(floor, left[0] - 0.1, right[-1] + 0.1, color=theme.FAINT, linewidth=0.8)
    word(axes, (left[0] + right[-1]) / 2, floor + PANEL + 0.4, name, theme.TEXT)
    for middle, top, total, size in zip(middles, low, totals, sizes, strict=True):
        word(axes, middle, top + 0.12, show(total), theme.SMALL)
        word(axes, middle, floor - 0.15, f"t = {size}", theme.SMALL, weight="bold" if size == chosen else "normal")


def explore_tensor() -> Explorer:
    """Sliders for `tensor`: t, H, G, E, S, the cluster, and sequence parallelism."""
    controls = {
        "t": steps("ranks t", [(str(n), n) for n in SIZES], 2),
        "H": steps("query heads H", [(str(n), n) for n in (8, 16, 32, 64)], 32),
        "G": steps("key/value heads G", [(str(n), n) for n in (1, 2, 4, 8)], 8),
        "E": steps("hidden size E", [(str(n), n) for n in (1024, 2048, 4096, 8192)], 4096),
        "S": steps("tokens S", [(str(n), n) for n in (1024, 4096, 16384, 65536)], 4096),
        "cluster": choice("cluster", [(cluster.name, cluster) for cluster in CLUSTERS], DGX_A100),
        "sequence_parallel": choice("sequence parallelism", [("without", False), ("with", True)], False),
    }
    return Explorer("explore_tensor", controls, tensor)
