"""Rings below each other on one clock, each work with the number and the colour of the K/V that it attends."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

from parlab.views.engine import theme
from parlab.views.engine.lanes import legend_of, timelines_of
from parlab.views.engine.picture import Picture
from parlab.views.sequence.ring_film import ring_of
from parlab.views.sequence.ring_masks import MOST_RANKS
from parlab.views.world.compare_timelines import below_each_other
from parlab.world import Run, Timeline

WORK = "K/V "  # and the rank that owns them: the name of a work


def compare_rings(runs: Mapping[str, Run | Timeline], *, headline: str | None = None) -> Picture:
    """Draw runs of ring attention as `compare_timelines` does, each work with the number and the colour of the rank
    whose K/V it attends.

    Args:
        runs: of 2 to 16 ranks, each under the name that stands above it.
        headline: what stands above all; None: how many.

    Raises:
        ValueError: nothing to compare, or a run that is no ring attention.
    """
    shown = timelines_of(runs, one_clock=True)
    named = {name: _named(name, one) for name, one in shown.items()}
    figure, kinds = below_each_other(named, headline, lambda work: theme.rank_color(int(work.name.removeprefix(WORK))))
    others = [theme.KINDS[kind] for kind in dict.fromkeys(kinds) if kind != "compute"]
    legend_of(figure, [(theme.rank_color(0), "works: in the colour of the K/V's rank", ""), *others])
    return figure


def _named(name: str, shown: Timeline) -> Timeline:
    """The same with other names of its works."""
    ring = ring_of(shown, MOST_RANKS)
    if ring is None:
        raise ValueError(f"runs[{name!r}]: must be ring attention on 2 to {MOST_RANKS} ranks")
    named = copy(shown)
    works = [span._replace(name=f"{WORK}{source}") for tiles in ring.tiles for span, source, _ in tiles]
    named.computes = sorted(works, key=lambda span: span.start)
    return named
