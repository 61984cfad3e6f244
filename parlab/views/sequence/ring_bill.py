"""The seconds of a million tokens' attention in one ring, with each of three repairs, and of its work alone."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from parlab.arguments import checked
from parlab.sequence import (
    FLASH_ATTENTION_3,
    AttentionShape,
    least_step_cost,
    method_times,
    pair_flops,
    unmasked_pairs,
)
from parlab.views.engine import marks, theme
from parlab.views.engine.arguments import among
from parlab.views.engine.explore import Explorer, steps
from parlab.views.engine.lanes import legend_of, name_rows
from parlab.views.engine.marks import Interval
from parlab.views.engine.picture import Picture, panel, percent, scale, sheet
from parlab.world import DGX_H100
from parlab.world.cluster import picoseconds

S, H, D, LAYERS, ITEMSIZE = 2**20, 32, 128, 32, 2  # the model of lesson 02's first screen, in bf16
GPUS = (32, 64, 128, 256, 512, 1024)
STEPS = {0: "free", 1: "best case", 3: "3 × that"}  # of a call and its merge, as multiples of `least_step_cost`
ONE_RING, WORK_ALONE = "one ring", "the work alone"
REPAIRS = {"1: 8 K/V heads": (8, "ring"), "2: double ring": (32, "double ring"), "3: USP": (32, "USP")}
WORK, CALLS, WAITS = (theme.KINDS[kind] for kind in ("compute", "backward", "transfer"))
LEGEND = {"work": WORK, "calls and merges": CALLS, "the GPU waits for messages": WAITS}
LEFT, ROW, HALF, TOP = 1.6, 0.52, 0.33, 0.95  # inches


class Bill(NamedTuple):
    """The seconds of all layers: the work, the calls and merges after it, and the wait for messages that remains."""

    work: float
    calls: float = 0.0
    waits: float = 0.0

    @property
    def seconds(self) -> float:
        """All of them."""
        return sum(self)

    def __str__(self) -> str:
        return f"work {self.work:.2f} s, calls and merges {self.calls:.2f} s, waits {self.waits:.2f} s"


BILLED = {"gpus": partial(among, choices=GPUS), "step": partial(among, choices=tuple(STEPS))}


@checked(BILLED)
def ring_bill(gpus: int = 256, step: int = 1) -> Picture:
    """Draw the seconds of 32 layers in one ring, with each of three repairs, and of the work alone, below each other.

    The attention is causal and forward, of 2²⁰ tokens on H100s in nodes of eight, with 32 query heads. There are as
    many K/V heads, but 8 in the first repair; the second is the double ring, and the third USP with its best groups
    (`method_times`). Beside each time stands the share of it that is work.

    Args:
        gpus: a power of two from 32 to 1024.
        step: a call and the merge of its output cost so many times their best case (`least_step_cost`): 0, 1 or 3.

    Raises:
        ValueError: GPUs or a step that are not among these.

    >>> ring_bill(256)
    256 GPUs: one ring takes 11.0 s, the best repair 1.82 s
    one ring        work 1.75 s, calls and merges 0.47 s, waits 8.81 s
    1: 8 K/V heads  work 1.75 s, calls and merges 0.47 s, waits 0.60 s
    2: double ring  work 1.75 s, calls and merges 0.47 s, waits 0.00 s
    3: USP          work 1.75 s, calls and merges 0.06 s, waits 0.01 s
    """
    repaired = _repaired(gpus, step)
    bills = {ONE_RING: _bill(H, "ring", gpus, step), **repaired}
    best = min(repaired.values(), key=_seconds)
    headline = f"{gpus} GPUs: one ring takes {_said(bills[ONE_RING])}, the best repair {_said(best)}"
    rows = [f"{name:16}{bill}" for name, bill in bills.items()]
    shown = bills | {WORK_ALONE: Bill(best.work)}
    figure = sheet([headline, *rows], TOP + len(shown) * ROW + 0.65, headline)
    axes = panel(figure, LEFT, TOP, theme.WIDTH - LEFT - 0.3, len(shown) * ROW)
    most = max(map(_seconds, shown.values()))
    scale(axes.xaxis, f"seconds, {LAYERS} layers", ends=(0, 1.25 * most), says="{:g}".format)
    name_rows(axes, len(shown), list(shown), line=False)
    work, calls, waits = zip(*shown.values(), strict=True)
    marks.stacked(axes, {"work": work, "calls": calls}, {"work": WORK.color, "calls": CALLS.color}, half=HALF)
    ends = [Interval(bill.work + bill.calls, bill.seconds) for bill in shown.values()]
    marks.hatched_boxes(axes, "waits", ends, range(len(shown)), (-HALF, HALF), WAITS)
    for row, bill in enumerate(shown.values()):
        said = f"  {_said(bill)}, {percent(bill.work / bill.seconds)} work"
        marks.word(axes, bill.seconds, row, said, size=theme.TEXT, ha="left", va="center")
    legend_of(figure, [(kind.color, name, kind.hatch) for name, kind in LEGEND.items()])
    return figure


def explore_ring_bill() -> Explorer:
    """Controls for `ring_bill`: the GPUs, and the cost of a call and its merge."""
    controls = {
        "gpus": steps("GPUs", GPUS, 256),
        "step": steps("a call and merge", [(name, step) for step, name in STEPS.items()], 1),
    }
    return Explorer("explore_ring_bill", controls, ring_bill)


@checked(BILLED)
def best_repair(gpus: int = 256, step: int = 1) -> int:
    """The number of the repair that takes the fewest seconds in `ring_bill`, of the same arguments and errors.

    >>> best_repair(256, step=0)
    2
    """
    bills = list(_repaired(gpus, step).values())
    return 1 + bills.index(min(bills, key=_seconds))


def _repaired(gpus: int, step: int) -> dict[str, Bill]:
    return {name: _bill(kv_heads, method, gpus, step) for name, (kv_heads, method) in REPAIRS.items()}


def _bill(kv_heads: int, method: str, gpus: int, step: int) -> Bill:
    """The wait is what remains of the method's time when the work, and the calls and merges of all steps, are paid."""
    shape = AttentionShape(S, H, kv_heads, D, ITEMSIZE)
    step_cost = step * least_step_cost(shape, gpus, DGX_H100)
    found = method_times(shape, gpus, DGX_H100, FLASH_ATTENTION_3, step_cost=step_cost)[method]
    flops = pair_flops(unmasked_pairs(S, gpus, "zigzag")[0], 1, H, D)
    work = picoseconds(DGX_H100.reaching(FLASH_ATTENTION_3).device.seconds(flops, 0))
    calls = (gpus // found.ulysses - 1) * step_cost
    waits = max(0, found.picoseconds - work - calls)  # the clock rounds each step
    return Bill(*(LAYERS * part / 1e12 for part in (work, calls, waits)))


def _seconds(bill: Bill) -> float:
    return bill.seconds


def _said(bill: Bill) -> str:
    """Three digits: `11.0 s`, `1.75 s`."""
    return f"{bill.seconds:.{1 if bill.seconds >= 10 else 2}f} s"
