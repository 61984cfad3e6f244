"""`views.film`: the film of a run, a schedule or a timeline, by what it is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from parlab.pipeline import Schedule, ScheduleTimeline
from parlab.plan import Plans, Walk
from parlab.views.engine.player import Film
from parlab.views.pipeline.moves_film import moves_film, schedules
from parlab.views.pipeline.schedule_film import schedule_film
from parlab.views.plan.limit_film import limit_film
from parlab.views.plan.walk_film import walk_film
from parlab.views.sequence.attention_film import attention_film, plan_of
from parlab.views.sequence.double_ring_film import double_ring_film, double_ring_of
from parlab.views.sequence.ring_film import ring_film, ring_of
from parlab.views.tensor.mlp_film import cut_mlp, mlp_film
from parlab.views.world.clock_race_film import clock_race_film, clocks
from parlab.views.world.pieces_film import moves_of, pieces_film, race_film, raceable
from parlab.views.world.timeline_film import timeline_film
from parlab.views.zero.gather_film import gather_film, gathers
from parlab.views.zero.zero_film import step_of, zero_film
from parlab.world import Run, Timeline

FILMS: list[tuple[Callable[[Any], bool], Callable[..., Film]]] = [
    (lambda source: isinstance(source, Timeline) and cut_mlp(source), mlp_film),
    (lambda source: isinstance(source, Timeline) and bool(moves_of(source)), pieces_film),
    (raceable, race_film),
    (gathers, gather_film),
    (clocks, clock_race_film),
    (lambda source: isinstance(source, Timeline) and step_of(source) is not None, zero_film),
    (lambda source: isinstance(source, Schedule | ScheduleTimeline), schedule_film),
    (schedules, moves_film),
    (lambda source: isinstance(source, Timeline) and plan_of(source) is not None, attention_film),
    (lambda source: isinstance(source, Timeline) and ring_of(source) is not None, ring_film),
    (lambda source: isinstance(source, Timeline) and double_ring_of(source) is not None, double_ring_film),
    (lambda source: isinstance(source, Walk), walk_film),
    (lambda source: isinstance(source, Plans), limit_film),
    (lambda source: isinstance(source, Timeline), timeline_film),
]
"""For each subject: whether a source is of this subject, and its film. The first that fits is taken."""


def film(source: Any, **options: Any) -> Film:
    """A film of `source` that plays by itself, in a notebook and in the book, without a kernel.

    The film shows

    - for the run of one `all_reduce`, `reduce_scatter` or `all_gather` on 2 to 6 ranks (by ring, recursive doubling,
      halving, circulant or in two levels; not every number of ranks fits all of these): the pieces that travel;
    - for up to three such runs by name, {name: run}: the same below each other, on one clock;
    - for one or two steps of ZeRO-3 by name, {name: run}: gathers beside the work, and the waiting that they leave;
    - for up to three other runs by name, {name: run}: what each rank does by one clock below what it does by the other,
      with a line from an action to itself (`run.wallclock` is a watch's); with `messages=True`, two ranks and the
      messages between them, carried or not;
    - for the run of one attention across 2 or 4 ranks, forward, on contiguous shards, without a mask (USP with a causal
      one too; USP and the double ring also composed of their parts): the K/V, queries and outputs that travel between
      rectangles of tokens × heads (`ranks_per_node=` draws the nodes);
    - for the run of any other ring attention on 2 to 4 ranks, forward or backward: the mask that fills tile by tile,
      the K/V that go around, and each rank's work and ports; for a double ring on two nodes of two the same, forward;
    - for a step of an MLP that is cut among 2 to 4 ranks (`parlab.views.tensor.mlp_film` names its computations): the
      columns, and the shares that add (with sequence parallelism also the tokens that are gathered);
    - for a step of ZeRO-3 on 2 to 4 ranks: blocks that are gathered before their use, and gradients that are reduced;
    - for a pipeline schedule, at its `costs`: the microbatches that travel, and the activations that ranks keep;
    - for a list of schedules of the same actions, each a few moves from the one before or with more memory: the actions
      that glide to their new times (with `kept=`, also the bytes that each rank keeps; the first schedule may have
      whole backwards, which the second one cuts);
    - for a search by hand (`parlab.plan.Walk`): the two bills of each layout, and its way on the map;
    - for a search (`parlab.plan.Plans`): the best layout as more and more memory is usable;
    - for any other run of at most 8 ranks, or the first `ranks` of it: what each rank does, and its messages.

    Args:
        source: one of these.
        options: what the subject's film takes besides.

    Raises:
        ValueError: a source that has no film, an option that its film does not take, or a film of more than 60 kB.
    """
    shown = source.timeline if isinstance(source, Run) else source
    make = next((make for fits, make in FILMS if fits(shown)), None)
    if make is None:
        raise ValueError(f"source={source!r:.60}: there is no film of it; see help(views.film)")
    known = list(inspect.signature(make).parameters)[1:]
    for name in options:
        if name not in known:
            raise ValueError(f"{name}: the film of this source takes {', '.join(known) or 'no options'}")
    made = make(shown, **options)
    made.html  # noqa: B018  (a film that is too large is refused here)
    return made
