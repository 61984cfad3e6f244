"""Memory levels: each level keeps fewer bytes of a block than the level before, and computes and sends more again."""

from __future__ import annotations

from parlab.arguments import checked
from parlab.nn.config import LlamaConfig
from parlab.nn.formulas import block_flops
from parlab.sequence import (
    MEMORY_LEVELS,
    AttentionShape,
    level_bytes,
    level_flops,
    pair_flops,
    ring_cost,
    unmasked_pairs,
)
from parlab.views.arguments import RULES
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import name_rows
from parlab.views.drawing.picture import Picture, panel, percent, scale, sheet, write
from parlab.world.units import format_bytes


@checked(RULES)
def memory_levels(config: LlamaConfig, S: int, size: int, *, B: int = 1, itemsize: int = 2) -> Picture:
    """Draw, for each of `MEMORY_LEVELS`, the bytes that a block keeps and the work that it repeats, in a zigzag ring.

    Args:
        config: the model's sizes.
        S, size, B: tokens, ranks, batch.
        itemsize: bytes of an element.

    Raises:
        ValueError: no LlamaConfig, or a length that does not divide.
    """
    projections = sum(f.forward for name, f in block_flops(config, B, S // size).items() if name != "attention")
    pairs = unmasked_pairs(S, size, "zigzag")[0]
    forward = projections + pair_flops(pairs, B, config.num_attention_heads, config.head_dim)
    kept = {level: level_bytes(config, B, S, size, level, itemsize) for level in MEMORY_LEVELS}
    again = {level: level_flops(config, B, S, size, level)[0] / forward for level in MEMORY_LEVELS}
    heads = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    ring = ring_cost(AttentionShape(S, *heads, itemsize, B), size).nbytes
    sent = {level: ring if level in ("high", "extreme") else 0 for level in MEMORY_LEVELS}
    headline = f"{S} tokens on {size} ranks: from {format_bytes(kept['none'])} to {format_bytes(kept['medium'])} for "
    headline += f"{100 * again['medium']:.0f} % of a forward, without a message"
    rows = [
        f"{level:<8} keeps {format_bytes(kept[level]):>9}, makes again {100 * again[level]:>3.0f} % of a forward, "
        f"sends again {format_bytes(sent[level])}"
        for level in MEMORY_LEVELS
    ]
    figure = sheet([headline, *rows], 3.7, headline)
    work = theme.KINDS["compute"].color
    for left, name, color, lengths, said in (
        (0.95, "bytes that a block keeps", "#BDBDBD", kept, format_bytes),
        (5.95, "work made again, of a forward", work, again, percent),
    ):
        axes, most = panel(figure, left, 0.85, 3.6, 2.5), max(lengths.values())
        scale(axes.xaxis, ends=(0, 1.02 * most), ticks=())
        name_rows(axes, len(lengths), list(lengths))
        marks.bars(axes, name, 0, list(lengths.values()), color, half=0.38)
        for place, length in enumerate(lengths.values()):
            side, across = (-1, "right") if length > 0.5 * most else (1, "left")
            marks.word(axes, length + side * 0.02 * most, place, said(length), ha=across)
        write(figure, left, 0.75, name, theme.TEXT, va="baseline")
    return figure
