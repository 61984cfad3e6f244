"""The planner with sliders: the best layouts, their bills, and the best layout's neighbours."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice
from textwrap import fill
from typing import Any

from parlab.arguments import checked, one_of, positive, whole
from parlab.plan import MODELS, Plans, search, why
from parlab.views.drawing import theme
from parlab.views.drawing.picture import Picture, sheet, write
from parlab.views.planning.bills import BOTTOM, ROW, TOP, bills_table, draw_bills, short_name
from parlab.views.widgets.explorer import Explorer, choice, steps
from parlab.world import DGX_H100
from parlab.world.units import format_bytes

FIRST = 5  # layouts that are shown
LOSERS = 7  # lines of neighbours, one for each field
# A slider has 100 ms, so an eighth of all layouts is searched. It nearly always contains the best one
KNOBS: dict[str, Any] = {"microbatch": 1, "sequence_parallel": True}
NAMES = ("llama-8b", "llama-70b", "llama-405b", "gpt-175b", "gpt-1t")


@checked(dict.fromkeys(("gpus", "sequence", "batch"), partial(whole, least=1)))
def plan(
    model: str = "llama-405b", gpus: int = 16384, sequence: int = 8192, batch: int = 2048, memory: float = 80e9
) -> Picture:
    """Draw the five best layouts on H100s, and the neighbours of the best one. `explore_plan` shows this.

    To be quick it tries microbatches of one sequence, with sequence parallelism. At 101 random places of the sliders a
    `search` of all layouts had the same best one 92 times, and never one that is 3 % faster or more.

    Args:
        model: a name in `MODELS`.
        gpus: their number; all are used.
        sequence: tokens of a sequence.
        batch: sequences of a step.
        memory: bytes of a device.

    Raises:
        ValueError: an unknown model, or an argument that `search` refuses.
    """
    one_of("model", model, tuple(MODELS))
    positive("memory", memory)
    at = TOP + ROW * FIRST + BOTTOM
    height = at + 0.25 + 0.16 * (LOSERS + 4)
    try:
        plans = replace(_search(model, gpus, sequence, batch), memory=memory)
        best = plans.best
    except ValueError as error:  # its text stands in place of a plan
        problem = "no layout is possible" if "possible" in str(error) else "nothing fits"
        headline = f"{model} on {gpus} GPUs, {batch} sequences of {sequence} tokens: {problem}"
        figure = sheet(str(error), height, headline)
        said = str(error).replace("; ", ";\n").replace(" (dp ", "\n(dp ")
        write(figure, 0.15, 0.2 * height, said, theme.TEXT, linespacing=1.5)
        return figure
    found = {short_name(entry.layout): entry for entry in islice(plans, FIRST)}
    took = f"{best.total_seconds:.2f} s, MFU {best.mfu:.0%}, {format_bytes(best.total_bytes)}"
    headline = f"{model} on {gpus}: {short_name(best.layout)}: {took}"
    neighbours = why(plans)
    nearest = {n.knob: n for n in sorted(neighbours, key=lambda n: -abs(n.change))}
    fits = f"{len(plans)} of {len(plans.seconds)} layouts of microbatches of 1 fit"
    text = [headline, fits, bills_table(found), "One field turned:", *str(neighbours).splitlines()[1:]]
    figure = sheet(text, height, headline)
    draw_bills(figure, found, memory)
    heading = "One field of the best turned (microbatches of 1): the change in time, and what speaks against it"
    write(figure, 0.15, at, heading, weight="bold")
    shown = [nearest[knob] for knob in dict.fromkeys(n.knob for n in neighbours)]
    lines = "\n".join(f"{n.turned:20}{n.change:+8.1%}  {n.binds}" for n in shown[:LOSERS])
    flips = [f"from {format_bytes(e.total_bytes)} on {short_name(e.layout)}" for e in neighbours.flips[1:]]
    lines += "\n" + fill("with usable memory: " + ", ".join(flips), 110) if flips else ""
    write(figure, 0.15, at + 0.24, lines, 8.2, family="monospace", linespacing=1.35)
    return figure


@lru_cache(maxsize=32)
def _search(model: str, gpus: int, sequence: int, batch: int) -> Plans:
    """A search without a limit of memory, kept for the next slider: another memory needs no new search."""
    return search(MODELS[model], DGX_H100, gpus, batch=batch, sequence=sequence, memory=1e18, **KNOBS)


def explore_plan() -> Explorer:
    """Sliders for `plan`: model, GPUs, sequence, batch, and memory of a device."""
    controls = {
        "model": choice("model", NAMES, "llama-405b"),
        "gpus": steps("GPUs", [2**k for k in range(3, 16)], 16384),
        "sequence": steps("tokens a sequence", [2**k for k in range(11, 18)], 8192),
        "batch": steps("sequences a step", [2**k for k in range(4, 13)], 2048),
        "memory": steps("memory of a device", [(f"{gb} GB", gb * 1e9) for gb in (24, 40, 80, 96, 141, 192)], 80e9),
    }
    return Explorer("explore_plan", controls, plan)
