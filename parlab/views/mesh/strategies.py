"""One training step on a mesh: a row for what a rank computes, and one for the messages of each strategy."""

from __future__ import annotations

from matplotlib.axes import Axes

from parlab.arguments import checked_rank
from parlab.train import bytes_by_strategy, strategy_of
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import legend_of, name_rows, time_axis, timeline_of
from parlab.views.drawing.picture import Picture, inches, panel, sheet, write
from parlab.views.timelines.timeline import fused
from parlab.views.zero_redundancy.model_state import COLORS
from parlab.world import Run, Timeline
from parlab.world.timeline import Span, Transfer
from parlab.world.units import format_bytes

STRATEGIES = {
    "tp": theme.Kind("#A6761D", "tp: layers"),
    "cp": theme.Kind("#C51B7D", "cp: K/V"),
    "pp": theme.Kind("#444444", "pp: stages"),
    "dp": theme.Kind("#1B4F9C", "dp × cp: ZeRO"),
}
OTHER = {"ep": theme.Kind("#8A8A8A", "ep: tokens")}
FORWARD, BACKWARD = theme.KINDS["forward"], theme.KINDS["backward"]
STEP = theme.Kind(COLORS["optimizer"], "AdamW")
NAMES, SENT, TOP, ROW, BOTTOM = 2.0, 0.95, 0.9, 0.36, 0.6  # inches: beside the rows, above them, of each, below
HALF = 0.34  # of a row


def step_by_strategy(run: Run | Timeline, *, rank: int = 0, headline: str | None = None) -> Picture:
    """Draw one rank's work in a step on a mesh: a row of what it computes, and a row of messages for each strategy.

    A box in a strategy's row is a message that the rank sends or receives, or several without a pause between them. In
    the first row a gap is time in which the rank waits; a long one for another rank says for which. Words stand beside
    a pipeline's sums, of a tied table's gradients and of the loss.

    Args:
        run: of a program that called `Trainer.step`.
        rank: the rank to show.
        headline: above the figure. None: the part of the step in which the rank computes.

    Raises:
        ValueError: something else than a run, or a rank that is not there.
    """
    shown = timeline_of(run)
    rank = checked_rank(rank, "rank", shown.size)
    counted = bytes_by_strategy(shown)
    said = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in counted.items() if nbytes)
    busy, all_of_it = shown.format(shown.busy(rank)), shown.format(shown.makespan)
    headline = headline or f"Of {all_of_it} rank {rank} computes {busy}: the rest is messages, and waiting"
    messages = [t for t in shown.transfers if t.end > t.start and t.src != t.dst and rank in (t.src, t.dst)]
    kinds = STRATEGIES | OTHER
    rows = {name: _without_pauses([t for t in messages if strategy_of(t) == name]) for name in kinds}
    rows = {name: own for name, own in rows.items() if own}
    height = ROW * (1 + len(rows))
    figure = sheet(f"{headline}\nsent by all: {said}\n{shown!r}", TOP + height + BOTTOM, headline)
    axes = panel(figure, NAMES, TOP, theme.WIDTH - NAMES - SENT, height)
    time_axis(axes, shown)
    name_rows(axes, 1 + len(rows), [f"rank {rank} computes", *(kinds[name].name for name in rows)], line=False)
    works = [span for span in shown.computes if span.rank == rank and span.end > span.start]
    phases = [_phase(span) for span in works]
    where = (-HALF, HALF)
    marks.boxes(axes, "computes", works, [0] * len(works), where, [kind.color for kind in phases])
    waits = fused(
        (wait._replace(end=wait.came) for wait in shown.waits if wait.rank == rank and wait.came > wait.start),
        lambda last, wait: (last.end, last.peer) == (wait.start, wait.peer),
    )
    waits = [wait for wait in waits if wait.peer != rank]
    texts = [[f"waits for rank {wait.peer}", f"for {wait.peer}"] for wait in waits]
    marks.labels(axes, waits, [0] * len(waits), where, texts, theme.FAINT)
    for row, (name, own) in enumerate(rows.items(), 1):
        marks.boxes(axes, name, own, [row] * len(own), where, kinds[name].color)
    if "pp" in rows:
        _name_sums(axes, [*rows].index("pp") + 1, [t for t in messages if strategy_of(t) == "pp"], works)
    write(figure, theme.WIDTH - 0.15, TOP - 0.1, "sent by all", color=theme.FAINT, ha="right", va="baseline")
    for row, name in enumerate(rows, 1):
        write(figure, theme.WIDTH - 0.15, TOP + ROW * (row + 0.5), format_bytes(counted[name]), ha="right", va="center")
    legend_of(figure, [kind for kind in (FORWARD, BACKWARD, STEP) if kind in phases])
    return figure


def _name_sums(axes: Axes, row: int, messages: list[Transfer], works: list[Span]) -> None:
    """Words beside a pipeline's sums, if there is room: the tied table's before AdamW, the loss's after it."""
    updates = [span for span in works if span.name == "AdamW"]
    if not updates:
        return
    sums = [t for t in messages if t.name.endswith("all_reduce")]
    table = [t.end for t in sums if t.end <= updates[0].start]
    loss = [t.start for t in sums if t.start >= updates[-1].end]
    words = " table " if table else "", "loss " if loss else ""
    first, last = axes.get_xlim()
    before = min(loss, default=last)
    room = before - max((t.end for t in messages if t.end <= before), default=first)
    if room * 72 * inches(axes)[0] / (last - first) < sum(map(marks.text_width, words)):
        return
    for x, word, side in ((max(table, default=first), words[0], "left"), (before, words[1], "right")):
        if word:
            marks.word(axes, x, row, word, color=theme.FAINT, va="center", ha=side)


def _without_pauses(messages: list[Transfer]) -> list[Span]:
    """The times in which there is a message, as spans."""
    spans = [Span(0, t.start, t.end, "transfer", t.name) for t in messages]
    return fused(spans, lambda last, span: span.start <= last.end)


def _phase(span: Span) -> theme.Kind:
    """The part of the step to which a computation belongs, by its name."""
    if span.name == "AdamW":
        return STEP
    return BACKWARD if "backward" in span.name else FORWARD
