"""Rings below each other on one clock, each work with the number of the K/V that it attends."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

from parlab.views.attention.masks import MOST_RANKS
from parlab.views.attention.ring_film import ring_of
from parlab.views.drawing.lanes import timelines_of
from parlab.views.drawing.picture import Picture
from parlab.views.timelines.panels import compare_timelines
from parlab.world import Run, Timeline


def compare_rings(runs: Mapping[str, Run | Timeline], *, headline: str | None = None) -> Picture:
    """Draw runs of ring attention as `compare_timelines` does, each work named by the rank whose K/V it attends.

    Args:
        runs: of 2 to 16 ranks, each under the name that stands above it.
        headline: what stands above all; None: how many.

    Raises:
        ValueError: nothing to compare, or a run that is no ring attention.
    """
    shown = timelines_of(runs, one_clock=True)
    return compare_timelines({name: _named(name, one) for name, one in shown.items()}, headline=headline)


def _named(name: str, shown: Timeline) -> Timeline:
    """The same with other names of its works."""
    ring = ring_of(shown, MOST_RANKS)
    if ring is None:
        raise ValueError(f"runs[{name!r}]: must be ring attention on 2 to {MOST_RANKS} ranks")
    named = copy(shown)
    works = [span._replace(name=f"K/V {source}") for tiles in ring.tiles for span, source, _ in tiles]
    named.computes = sorted(works, key=lambda span: span.start)
    return named
