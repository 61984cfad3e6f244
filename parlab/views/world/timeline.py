"""The timeline of a run: a lane a rank, with what it computes, sends, receives, and whom it waits for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from matplotlib.axes import Axes

from parlab.views.engine import marks, theme
from parlab.views.engine.lanes import checked_ranks, lanes, legend, timeline_of
from parlab.views.engine.picture import Picture, note, percents, round_bytes
from parlab.world import Run, Span, Timeline, Wait

RECEIVES, PROGRAM, SENDS, WHOLE = (-0.46, -0.29), (-0.23, 0.23), (0.29, 0.46), (-0.42, 0.42)  # of a lane
ACTION = re.compile(r"\d+([FBIW])(\d+)")
ACTION_KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
SHORT = {  # in a lane
    "all_gather": ["all-gather", "gather"],
    "reduce_scatter": ["reduce-scatter", "reduce"],
    "all_reduce": ["all-reduce", "reduce"],
}
GRADIENTS = {"backward for the weights": "dW", "backward for the input": "dx"}  # in a narrow box


def timeline(run: Run | Timeline, *, ranks: Any = None, headline: str | None = None) -> Picture:
    """Draw what every rank did when: rank 0 on top, time to the right.

    In each lane, the bar in the middle is the program: computing, waiting for a rank that has not come, or waiting for
    a transfer that is under way. The strip above shows what the rank receives, the strip below what it sends. A run of
    `run_schedule` is drawn as it was executed; `views.schedule` draws the simulated schedule.

    Args:
        run: what `run` or `simulate` returned, or a timeline.
        ranks: which ranks to show; None: all.
        headline: what stands above; None: what the time goes into.

    Raises:
        ValueError: something else than a run, or ranks that are not there.
    """
    shown = timeline_of(run)
    chosen = checked_ranks(ranks, shown.size)
    whose = f"{shown.size} rank{'s' if shown.size > 1 else ''}{' on ' + shown.cluster if shown.cluster else ''}"
    figure, axes = lanes(repr(shown), shown, chosen, headline or f"{whose}: {time_spent(shown)}")
    lane_of = {rank: lane for lane, rank in enumerate(chosen)}
    messages = [t for t in shown.transfers if t.end > t.start]
    program = PROGRAM if messages else WHOLE
    kinds = draw_computes(axes, shown, lane_of, program) + draw_waits(axes, shown, lane_of, program)
    for kind, where, rank_of, texts_of in ENDS:
        own = [t for t in messages if rank_of(t) in lane_of]
        lane, texts = [lane_of[rank_of(t)] for t in own], list(map(texts_of, own))
        marks.boxes(axes, f"{kind}s", own, lane, where, theme.KINDS[kind].color, texts)
        kinds += [kind] * bool(own)
    if not shown.makespan:
        note(figure, "nothing took any time")
    legend(figure, kinds)
    return figure


def time_spent(shown: Timeline, *, queues: bool = False) -> str:
    """The makespan, and how much of the time of all ranks goes into what; the parts add up to 100 %. With `queues`, a
    wait for a transfer is one for a busy port until it starts.
    """
    queued = sum(start - wait.came for wait, start in zip(shown.waits, starts_of(shown), strict=True)) if queues else 0
    spent = {
        "computing": sum(map(shown.busy, range(shown.size))),
        "waiting for a rank": sum(wait.came - wait.start for wait in shown.waits),
        "waiting for a port": queued,
        "waiting for a transfer": sum(wait.end - wait.came for wait in shown.waits) - queued,
    }
    last = [0] * shown.size
    for rank, end in chain(((s.rank, s.end) for s in shown.computes), ((w.rank, w.end) for w in shown.waits)):
        last[rank] = max(last[rank], end)
    spent["done"] = sum(shown.makespan - end for end in last)
    spent["idle"] = max(0, shown.size * shown.makespan - sum(spent.values()))
    parts = percents({name: time for name, time in spent.items() if time})
    return ", ".join([shown.format(shown.makespan), *(f"{part} {name}" for name, part in parts.items())])


def starts_of(shown: Timeline) -> list[int]:
    """For each wait, when the transfer that ends it starts, and not before the other rank has come."""
    start_of = {(t.src, t.dst, t.end): t.start for t in shown.transfers}
    ends = (
        (w.rank, w.peer, w.end) if w.name == "send" else (w.peer, w.rank, w.end) for w in shown.waits
    )  # of the transfer: from, to, when
    return [max(wait.came, start_of.get(end, wait.came)) for wait, end in zip(shown.waits, ends, strict=True)]


def kind_of(name: str) -> str:
    """The kind of a computation, by its name: one of a pipeline's, or "compute"."""
    action = ACTION.fullmatch(name)
    return ACTION_KINDS[action[1]] if action else "compute"


def draw_computes(
    axes: Axes,
    shown: Timeline,
    lane_of: dict[int, int],
    where: tuple[float, float],
    color: Callable[[Span], str] | None = None,
    timed: Span | None = None,
) -> list[str]:
    """The computations of the ranks in `lane_of`, between two heights of their lanes; the kinds that were drawn.
    `color` finds a work's colour in place of its kind's. `timed` bears the time that it takes in place of its name.

    A pipeline's action is drawn by its letter and labelled with its microbatch; anything else by its name, or, where
    that has no room, a gradient of weights by dW and one of an input by dx.
    """
    spans = [span for span in shown.computes if span.rank in lane_of and span.end > span.start]
    actions = [ACTION.fullmatch(span.name) for span in spans]
    kinds = [kind_of(span.name) for span in spans]
    texts = [[action[2]] if action else _named(span.name) for span, action in zip(spans, actions, strict=True)]
    if timed in spans:
        texts[spans.index(timed)] = [shown.format(timed.end - timed.start)]
    colors = [color(span) if color else theme.KINDS[kind].color for span, kind in zip(spans, kinds, strict=True)]
    marks.boxes(axes, "computes", spans, [lane_of[span.rank] for span in spans], where, colors, texts)
    return kinds


def _named(name: str) -> list[str]:
    """The words for a box, the longest first: its name, and the gradient that it makes."""
    return [name, *(short for end, short in GRADIENTS.items() if name.endswith(end))]


def draw_waits(
    axes: Axes,
    shown: Timeline,
    lane_of: dict[int, int],
    where: tuple[float, float],
    *,
    words: bool = True,
    queues: bool = False,
) -> list[str]:
    """The waits, as `draw_computes`: until the other rank has come, then until the transfer has passed. `words`: with
    the rank or the transfer that each waits for. `queues`: of the transfer, the time before it starts is drawn apart.
    """
    starts = starts_of(shown) if queues else [wait.came for wait in shown.waits]
    waits = [(wait, start) for wait, start in zip(shown.waits, starts, strict=True) if wait.rank in lane_of]
    drawn = []
    absent = [wait._replace(end=wait.came) for wait, _ in waits]
    queued = [wait._replace(start=wait.came, end=start) for wait, start in waits]
    under_way = [wait._replace(start=start) for wait, start in waits]
    for kind, part in (("wait", absent), ("port", queued), ("transfer", under_way)):
        spans = [wait for wait in part if wait.end > wait.start]
        marks.hatched_boxes(axes, f"{kind}s", spans, [lane_of[wait.rank] for wait in spans], where, theme.KINDS[kind])
        named = (spans if len(spans) < marks.MANY else fused(spans, _goes_on)) if words else []
        texts = [_with_its_collective(shown, wait, awaited(kind, wait)) for wait in named]
        marks.labels(axes, named, [lane_of[wait.rank] for wait in named], where, texts)
        drawn += [kind] * bool(spans)
    return drawn


def _with_its_collective(shown: Timeline, wait: Wait, texts: list[str]) -> list[str]:
    """The texts; where a rank waits for its own collective, the shorter ones are the name of what ended then."""
    if wait.peer != wait.rank:
        return texts
    ended = [t.name for t in shown.transfers if t.end == wait.end and wait.rank in (t.src, t.dst)]
    return [texts[0], *short_of(ended[0])] if ended else texts


def short_of(collective: str) -> list[str]:
    """The name of a collective in a lane, the longest first."""
    return SHORT.get(collective, [collective.replace("_", "-")])


def _goes_on(last: Wait, wait: Wait) -> bool:
    return (last.rank, last.end, last.peer) == (wait.rank, wait.start, wait.peer)


def fused(spans: Iterable[Any], follows: Callable[[Any, Any], bool]) -> list[Any]:
    """The spans in their order, each that `follows` the last made one with it; they are named tuples with an `end`."""
    found: list[Any] = []
    for span in sorted(spans):
        if found and follows(found[-1], span):
            found[-1] = found[-1]._replace(end=max(found[-1].end, span.end))
        else:
            found.append(span)
    return found


def awaited(kind: str, wait: Wait) -> list[str]:
    """The rank or transfer that a wait needs, in full and in short. A background collective names its own rank."""
    if wait.peer == wait.rank:
        return ["waits for its own collective", "its own"]
    if kind == "port":
        return ["waits for a port", "port"]
    if kind == "wait":
        return [f"waits for rank {wait.peer}", f"for {wait.peer}"]
    way = "to" if wait.name == "send" else "from"
    return [f"transfer {way} rank {wait.peer}", f"{way} {wait.peer}"]


ENDS: Any = (  # of a message: its kind, where it is drawn on whose lane, and with which texts, the longest first
    ("send", SENDS, lambda t: t.src, lambda t: [f"{round_bytes(t.nbytes)} to rank {t.dst}", f"to {t.dst}"]),
    ("receive", RECEIVES, lambda t: t.dst, lambda t: [f"from rank {t.src}", f"from {t.src}"]),
)
