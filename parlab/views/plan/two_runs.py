"""Meta's two runs of Llama 3 405B beside a planner's bill of memory."""

from __future__ import annotations

from typing import Any

from parlab.plan import LLAMA_405B, Estimate, Layout, estimate
from parlab.views.engine import marks, theme
from parlab.views.engine.lanes import name_rows
from parlab.views.engine.picture import BOUND, Picture, key, panel, scale, sheet, write
from parlab.views.plan.bills import MEMORY
from parlab.world import DGX_H100

RUN = Layout(pp=16, tp=8, chunks=8, zero=2, sequence_parallel=True)  # of both: Llama team 2024, table 4, section 3.3.2
REPLICAS = {16384: 128, 8192: 64}
STEP: dict[str, Any] = {"batch": 2048, "sequence": 8192}
CARD = 79.6  # GiB that an 80 GB H100 reports: NVIDIA/nccl issue 1264
GIB = 2**30
AXIS = 160  # GiB


def meta_run(gpus: int, **turned: Any) -> Estimate:
    """The planner's bill of Meta's run on 16 384 or 8192 GPUs, with other fields of its layout where they are given."""
    return estimate(LLAMA_405B, DGX_H100, RUN.but(dp=REPLICAS[gpus], **turned), **STEP)


def two_runs(headline: str = "", schedule: str = "looped_bfs") -> Picture:
    """Draw a planner's memory of the fullest GPU in Meta's two runs of table 4 with sequences of 8192 tokens.

    Args:
        headline: above the figure. Empty: both sums.
        schedule: the order that the planner takes Meta's to be.
    """
    found = {gpus: meta_run(gpus, schedule=schedule) for gpus in REPLICAS}
    totals = [e.total_bytes / GIB for e in found.values()]
    said = headline or " and ".join(
        f"{total:.1f} GiB for {_gpus(gpus)}" for gpus, total in zip(found, totals, strict=True)
    )
    figure = sheet([said, *(f"{_gpus(gpus)}: {e.total_bytes / GIB:.1f} GiB" for gpus, e in found.items())], 2.95, said)
    left, top, width = 1.3, 1.15, 7.9
    axes = panel(figure, left, top, width, 1.2)
    name_rows(axes, len(found), [_gpus(gpus) for gpus in found], size=theme.TEXT)
    scale(axes.xaxis, "GiB of the fullest GPU", ends=(0, AXIS), ticks=range(0, AXIS + 1, 40))
    kept = [e.bytes["activations"] / GIB for e in found.values()]
    rest = [total - part for total, part in zip(totals, kept, strict=True)]
    colors = {"activations": MEMORY["activations"], "all else": MEMORY["weights"]}
    marks.stacked(axes, {"activations": kept, "all else": rest}, colors)
    over = [row for row, total in enumerate(totals) if total > CARD]
    spans = [marks.Interval(CARD, totals[row]) for row in over]
    marks.frames(axes, "too large", spans, over, (-0.36, 0.36), theme.ALARM, hatch="///", zorder=5)
    for row, total in enumerate(totals):
        marks.word(axes, 2, row, f"{total:.1f} GiB", gid="sum", weight="bold", size=theme.TEXT)
    axes.axvline(CARD, gid="device", **BOUND)
    write(figure, left + width * CARD / AXIS, top - 0.27, f"the card: {CARD} GiB", theme.TEXT, ha="center")
    key(figure, 0.15, 0.62, colors["activations"], "activations")
    key(figure, 1.35, 0.62, colors["all else"], "weights, gradients and all else")
    return figure


def _gpus(number: int) -> str:
    """`16 384 GPUs`, and `8192 GPUs`, as in the lessons."""
    return f"{number:,} GPUs".replace(",", " " if number > 9999 else "")
