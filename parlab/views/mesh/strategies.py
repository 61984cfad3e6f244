"""One training step on a mesh: a lane for each rank, and each message in the colour of its strategy."""

from __future__ import annotations

from typing import Any

from parlab.train import bytes_by_strategy, strategy_of
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import checked_ranks, lanes, legend_of, timeline_of
from parlab.views.drawing.picture import Picture
from parlab.views.timelines.timeline import ENDS, PROGRAM, draw_waits
from parlab.views.zero_redundancy.model_state import COLORS
from parlab.world import Run, Timeline
from parlab.world.timeline import Span
from parlab.world.units import format_bytes

STRATEGIES = {
    "tp": theme.Kind("#A6761D", "tp: layers"),
    "cp": theme.Kind("#C51B7D", "cp: K/V"),
    "pp": theme.Kind("#444444", "pp: stages"),
    "dp": theme.Kind("#1B4F9C", "dp: weights, gradients"),
}
OTHER = theme.Kind("#BBBBBB", "one norm")
FORWARD, BACKWARD = theme.KINDS["forward"], theme.KINDS["backward"]
STEP = theme.Kind(COLORS["optimizer"], "AdamW")


def step_by_strategy(run: Run | Timeline, *, ranks: Any = None, headline: str | None = None) -> Picture:
    """Draw the work of every rank in a step on a mesh.

    Computing and waiting stand in the middle of a rank's lane, the received messages above, and the sent ones below.
    Messages have the colour of their strategy, computing that of forward, backward or the optimizer.

    Args:
        run: of a program that called `Trainer.step`.
        ranks: the ranks to show. None: all.
        headline: above the figure. None: the part of the step in which the first of these ranks computes.

    Raises:
        ValueError: something else than a run, or ranks that are not there.
    """
    shown = timeline_of(run)
    chosen = checked_ranks(ranks, shown.size)
    counted = bytes_by_strategy(shown)
    said = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in counted.items() if nbytes)
    busy, all_of_it = shown.format(shown.busy(chosen[0])), shown.format(shown.makespan)
    headline = headline or f"Of {all_of_it} rank {chosen[0]} computes {busy}: the rest is messages, and waiting"
    figure, axes = lanes(f"{headline}\nsent by all: {said}\n{shown!r}", shown, chosen, headline)
    lane_of = {rank: lane for lane, rank in enumerate(chosen)}
    works = [span for span in shown.computes if span.rank in lane_of and span.end > span.start]
    phases = [_phase(span) for span in works]
    marks.boxes(
        axes, "computes", works, [lane_of[span.rank] for span in works], PROGRAM, [kind.color for kind in phases]
    )
    draw_waits(axes, shown, lane_of, PROGRAM)
    messages = [t for t in shown.transfers if t.end > t.start and t.src != t.dst]
    styles = [STRATEGIES.get(strategy_of(t), OTHER) for t in messages]
    for kind, where, rank_of, _ in ENDS:
        own = [(t, style.color) for t, style in zip(messages, styles, strict=True) if rank_of(t) in lane_of]
        lane = [lane_of[rank_of(t)] for t, _ in own]
        marks.boxes(axes, f"{kind}s", [t for t, _ in own], lane, where, [color for _, color in own])
    kinds = [style for style in (*STRATEGIES.values(), OTHER) if style in styles]
    legend_of(figure, [*(kind for kind in (FORWARD, BACKWARD, STEP) if kind in phases), *kinds])
    return figure


def _phase(span: Span) -> theme.Kind:
    """The part of the step to which a computation belongs, by its name."""
    if span.name == "AdamW":
        return STEP
    return BACKWARD if "backward" in span.name else FORWARD
