"""The rules of this room's arguments, by name (`parlab.arguments.checked`).

Checks that join several arguments stand in the functions that take them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from parlab.arguments import Rule, amount, flag, instance, one_of, optional, positive, text, whole
from parlab.arrays import is_array
from parlab.world import Cluster, Run, Timeline

count = partial(whole, least=1)
HIERARCHICAL, GRID = EXCHANGES = ("hierarchical", "grid")  # of ranks told their node: two levels; one, links unmixed

EARLY, LATE = CROSSINGS = ("early", "late")  # with the first hop of a turn inside the node, or with the last


def several(name: str, value: Any) -> None:
    """Refuse what is no list, tuple, range or array.

    Raises:
        ValueError: so it is.
    """
    if isinstance(value, str) or not (hasattr(value, "__len__") or is_array(value)):
        raise ValueError(f"{name}={value!r:.60}: must be a list")


def texts(name: str, value: Any) -> None:
    """Refuse what is no list of strings.

    Raises:
        ValueError: so it is.
    """
    several(name, value)
    for number, item in enumerate(value):
        text(f"{name}[{number}]", item)


def recorded(name: str, value: Any) -> None:
    """Refuse what is neither a run nor its timeline.

    Raises:
        ValueError: so it is.
    """
    if not isinstance(value, Run | Timeline):
        raise ValueError(f"{name}={value!r:.60}: must be a Run or a Timeline")


RULES: dict[str, Rule] = {
    # sizes
    "S": whole,
    "size": whole,
    "rank": whole,
    "source": whole,
    "B": count,
    "H": count,
    "G": count,
    "D": count,
    "itemsize": count,
    "length": count,
    "limit": optional(count),
    "ranks": count,
    "world": count,
    "overlap": whole,
    "layer": whole,
    "seed": whole,
    # how attention is cut
    "causal": flag,
    "replicated": flag,
    "backward": flag,
    "documents": optional(several),
    "window": optional(count),
    "queries": optional(count),
    "kv_heads": optional(whole),
    "ulysses": whole,
    "ranks_per_node": optional(whole),
    "exchange": partial(one_of, choices=EXCHANGES),
    "crossing": partial(one_of, choices=CROSSINGS),
    # of measurements
    "cluster": partial(instance, kind=Cluster),
    "run": recorded,
    "kernel": positive,
    "step": amount,
    "flops_per_second": positive,
    "bytes_per_second": positive,
    "kv_heads_per_query_head": positive,
    "half_masked": flag,
    # texts and lists
    "word": text,
    "words": optional(texts),
    "sentences": optional(several),
    "budgets": several,
    "chunks": several,
    "work": several,
}
