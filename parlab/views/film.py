"""`views.film`: the film of a run, a schedule or several of them, by its type."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from parlab.pipeline import Schedule, ScheduleTimeline
from parlab.views.engine.player import Film
from parlab.views.pipeline.moves_film import moves_film
from parlab.views.pipeline.schedule_film import schedule_film
from parlab.views.world.clock_race_film import clock_race_film
from parlab.views.world.timeline_film import timeline_film
from parlab.world import Run, Timeline


def film(source: Any, **options: Any) -> Film:
    """A film of `source` that plays by itself, in a notebook and in the book, without a kernel.

    The type of the source says which film it is:

    - a run, or a timeline: what each of at most 8 ranks does, and its messages (`timeline_film`); with `waits=True` the
      ranks as a ring, and who waits for whom;
    - {name: run}: up to three runs on one clock, a line from an action to itself in the next (`clock_race_film`;
      `run.wallclock` is a watch's); with `messages=True`, two ranks and the messages between them, carried or not;
    - a schedule, or what `simulate` returned: the microbatches that travel, and the activations that ranks keep
      (`schedule_film`);
    - a list of schedules of the same actions: the actions that glide to their new times (`moves_film`).

    A film of one certain program has a name of its own, and says what a run lacks for it: `pieces_film`, `ring_film`,
    `double_ring_film`, `attention_film`, `mlp_film`, `zero_film`.

    Args:
        source: one of these.
        options: what this film takes besides.

    Raises:
        ValueError: a source that has no film, an option that its film does not take, or a film of more than 60 kB.
    """
    make = _maker(source)
    known = list(inspect.signature(make).parameters)[1:]
    for name in options:
        if name not in known:
            raise ValueError(f"{name}: the film of this source takes {', '.join(known) or 'no options'}")
    return make(source, **options).finished()


def _maker(source: Any) -> Callable[..., Film]:
    """The film of sources of this type."""
    if isinstance(source, Schedule | ScheduleTimeline):  # before timelines: what `simulate` returned is one, too
        return schedule_film
    if isinstance(source, Run | Timeline):
        return timeline_film
    if isinstance(source, Mapping) and source and all(isinstance(one, Run | Timeline) for one in source.values()):
        return clock_race_film
    if isinstance(source, list | tuple) and source and all(isinstance(one, Schedule) for one in source):
        return moves_film
    raise ValueError(f"source={source!r:.60}: there is no film of it; see help(views.film)")
