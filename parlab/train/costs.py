"""The bytes that a step sends, by strategy, as they were counted; `parlab.plan` has their closed forms."""

from __future__ import annotations

from collections import Counter

from parlab.arguments import instance
from parlab.world import Timeline, Transfer

STRATEGIES = {"data": "dp", "edp": "dp", "model": "norm"}  # of the groups that are not named after their strategy


def bytes_by_strategy(timeline: Timeline) -> dict[str, int]:
    """The bytes that all ranks sent to others, by strategy.

    dp: weights and gradients over dp × cp (an expert's over edp), and the loss. ep: tokens to their experts and back,
    if there are experts. norm: the sum of squares, for clipping and skipping, over all ranks; or, where ZeRO shards
    nothing, over those of one copy of the model.
    """
    instance("timeline", timeline, Timeline)
    found = Counter(dict.fromkeys(("dp", "pp", "cp", "tp", "norm"), 0))
    for transfer in timeline.transfers:
        if transfer.src != transfer.dst:
            found[_strategy_of(transfer)] += transfer.nbytes
    return dict(found)


def _strategy_of(transfer: Transfer) -> str:
    """The strategy by the message's group; that of all ranks has no name, and a step uses it for the norm alone."""
    group, named, _ = transfer.name.partition(": ")
    return STRATEGIES.get(group, group) if named else "norm"
