"""Memory levels as two staircases: what a block keeps goes down, what it makes and sends again goes up."""

from __future__ import annotations

from parlab.nn.config import LlamaConfig
from parlab.nn.formulas import block_flops
from parlab.sequence import MEMORY_LEVELS, attention_flops, bytes_sent, level_bytes, level_flops, unmasked_pairs
from parlab.views.drawing import marks, theme
from parlab.views.drawing.picture import Picture, framed, title
from parlab.world.units import format_bytes

BARS = (("bytes that a block keeps", theme.KINDS["compute"].color), ("work made again, of a forward", "#BDBDBD"))


def memory_levels(config: LlamaConfig, S: int, size: int, *, B: int = 1, itemsize: int = 2) -> Picture:
    """Draw, for each of `MEMORY_LEVELS`, what one block keeps on a rank and what it makes again, in a zigzag ring.

    Args:
        config: the model's sizes.
        S, size, B: tokens, ranks, batch.
        itemsize: bytes of an element.

    Raises:
        ValueError: a length that does not divide.
    """
    projections = sum(f.forward for name, f in block_flops(config, B, S // size).items() if name != "attention")
    pairs = unmasked_pairs(S, size, "zigzag")[0]
    forward = projections + attention_flops(pairs, B, config.num_attention_heads, config.head_dim)
    kept = {level: level_bytes(config, B, S, size, level, itemsize) for level in MEMORY_LEVELS}
    again = {level: level_flops(config, B, S, size, level)[0] / forward for level in MEMORY_LEVELS}
    ring = bytes_sent(S, size, config.num_key_value_heads, config.head_dim, itemsize, B)
    sent = {level: ring if level in ("high", "extreme") else 0 for level in MEMORY_LEVELS}
    headline = f"{S} tokens on {size} ranks: from {format_bytes(kept['none'])} to {format_bytes(kept['medium'])} for "
    headline += f"{100 * again['medium']:.0f} % of a forward, without a message"
    rows = [
        f"{level:<8} keeps {format_bytes(kept[level]):>9}, makes again {100 * again[level]:>3.0f} % of a forward, "
        f"sends again {format_bytes(sent[level])}"
        for level in MEMORY_LEVELS
    ]
    height = 3.7
    figure = Picture("\n".join([headline, *rows]), theme.WIDTH, height)
    values: list[list[float]] = [list(kept.values()), list(again.values())]
    texts = [[format_bytes(x) for x in values[0]], [f"{100 * x:.0f} %" for x in values[1]]]
    for number, (name, color) in enumerate(BARS):
        left, width, most = 0.95 + 5.0 * number, 3.6, max(values[number])
        axes = framed(figure, (left / theme.WIDTH, 0.35 / height, width / theme.WIDTH, 2.5 / height))
        axes.set_xlim(0, 1.02 * most)
        axes.set_ylim(4.5, -0.5)
        axes.set_xticks([])
        axes.set_yticks(range(5), list(MEMORY_LEVELS))
        axes.tick_params(length=0)
        low, high = [place - 0.38 for place in range(5)], [place + 0.38 for place in range(5)]
        marks.rectangles(axes, name, [0] * 5, values[number], low, high, [color] * 5)
        for place, (value, text) in enumerate(zip(values[number], texts[number], strict=True)):
            inside = value > 0.5 * most
            axes.text(
                value - 0.02 * most if inside else value + 0.02 * most,
                place,
                text,
                size=theme.SMALL,
                color=theme.INK,
                ha="right" if inside else "left",
                va="center",
            )
        figure.text(left / theme.WIDTH, 2.95 / height, name, size=theme.TEXT, color=theme.INK)
    title(figure, headline)
    return figure
