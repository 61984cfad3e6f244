"""A search by hand: the two bills of a layout of one's own, below those of Llama 3's."""

from __future__ import annotations

from functools import partial

from matplotlib.axes import Axes

from parlab.arguments import checked, one_of, whole
from parlab.plan import LLAMA_405B, Estimate, Layout, estimate
from parlab.views.engine import marks, theme
from parlab.views.engine.picture import Picture, percent, sheet, write
from parlab.views.plan.bills import BOTTOM, ROOM, ROW, TOP, bills_table, draw_bills, name_waits, with_rest
from parlab.views.plan.two_runs import STEP, meta_run
from parlab.world import DGX_H100
from parlab.world.units import format_bytes

MEMORY = 80e9  # bytes that we assume to be usable
LONGEST, LARGEST = 12.0, 120.0  # seconds and GiB; longer bills are cut, so the axes stay as they are
SHOWN = ("products", "attention", "tp", "pp", "dp", "bubble", "weights", "gradients", "activations")
OWN, META_NAME = "your layout", "Llama 3's"
HALF = 0.36  # of a row, up and down from its middle
LINE = {"color": theme.FAINT, "linewidth": 1.4, "linestyle": "dotted"}
RECOMPUTE = ("none", "mlp.hidden", "full")
RANKS = 16384


@checked(
    dict.fromkeys(("tp", "pp", "chunks", "zero"), partial(whole, least=1))
    | {"recompute": lambda name, value: one_of(name, value, RECOMPUTE), "recompute_layers": whole}
)
def layout(
    tp: int = 16, pp: int = 16, chunks: int = 1, zero: int = 1, recompute: str = "none", recompute_layers: int = 0
) -> Picture:
    """Draw the bills of Llama 3 405B on 16 384 H100s in a layout of your own.

    The other GPUs make replicas: dp is 16 384/(tp·pp). Sequences stay whole, with sequence parallelism, microbatches of
    one sequence, and pp of them in a row. The axes never change, so that bills of two layouts can be compared. A dotted
    line stands at Llama 3's seconds, and bytes beyond the usable 80 GB have a red frame. If a layout is not possible,
    the reason stands there.

    Args:
        tp, pp: ranks of tensor parallelism, and pipeline stages.
        chunks: stages of a rank.
        zero: the ZeRO stage, from 1 on.
        recompute: "none", "mlp.hidden" (the product of SwiGLU's gate and up) or "full".
        recompute_layers: layers of each rank that are computed again in full.

    Raises:
        ValueError: a size that is no whole number, or another way to recompute.

    >>> layout(tp=8, chunks=8, zero=2).text_shown.splitlines()[0]
    '6.58 s and 71.0 GiB: fits'
    """
    meta = meta_run(RANKS)
    height = TOP + 2 * ROW + BOTTOM
    how = {"zero": zero, "sequence_parallel": True, "recompute": recompute, "recompute_layers": recompute_layers}
    mine = Layout(max(RANKS // (tp * pp), 1), pp, 1, tp, chunks, **how)
    try:
        if mine.ranks != RANKS:
            raise ValueError(f"tp {tp} · pp {pp} does not divide {RANKS} GPUs")
        own = estimate(LLAMA_405B, DGX_H100, mine, **STEP)
    except ValueError as error:
        said = "This layout is not possible"
        figure = sheet([said, str(mine), str(error)], height + ROW, said)
        _draw(figure, {META_NAME: meta})
        write(figure, 0.15, height, "your layout: " + _shorter(str(error), mine), theme.TEXT)
        return figure
    fits = own.total_bytes <= MEMORY
    said = f"{own.total_seconds:.2f} s and {format_bytes(own.total_bytes)}: {'fits' if fits else 'does not fit'}"
    change = own.total_seconds / meta.total_seconds - 1
    said += f", {percent(abs(change))} {'slower' if change > 0 else 'faster'} than Llama 3's layout" if change else ""
    named = {META_NAME: meta, OWN: own}
    figure = sheet([said, str(mine), bills_table(named)], height, said)
    time, held = _draw(figure, named)
    time.axvline(meta.total_seconds, gid="goal", **LINE)
    name_waits(time, with_rest([dict(meta.seconds), dict(own.seconds)], SHOWN))
    if not fits:
        over = [marks.Interval(MEMORY / 2**30, min(own.total_bytes / 2**30, ROOM * LARGEST))]
        marks.frames(held, "over", over, [1], (-HALF, HALF), theme.ALARM, zorder=3)
    return figure


def _draw(figure: Picture, named: dict[str, Estimate]) -> tuple[Axes, Axes]:
    """Both bills on axes that stay as they are; the line of the usable memory has its name above it."""
    time, held = draw_bills(figure, named, MEMORY, LONGEST, LARGEST, SHOWN)
    time.set_xlim(0, ROOM * LONGEST)
    held.set_xlim(0, ROOM * LARGEST)
    left, right = held.get_position().intervalx
    place = left + (right - left) * MEMORY / 2**30 / (ROOM * LARGEST)
    write(figure, theme.WIDTH * place, TOP - 0.2, f"limit: {MEMORY / 2**30:.1f} GiB", theme.SMALL, ha="center")
    return time, held


def _shorter(problem: str, mine: Layout) -> str:
    """Why a layout is not possible, in one or two lines."""
    m = STEP["batch"] // mine.dp
    if mine.ranks != RANKS:
        return problem
    if m < mine.pp:
        return f"dp is {mine.dp}: a replica has {m} microbatches for {mine.pp} pipeline stages."
    if mine.pp * mine.chunks > LLAMA_405B.num_hidden_layers:
        return f"{mine.pp} stages · {mine.chunks} chunks: the model has {LLAMA_405B.num_hidden_layers} layers."
    return problem[:100]
