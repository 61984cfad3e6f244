"""The rules of this room's arguments, by name (`parlab.arguments.checked`).

Checks that join list_like arguments stand in the functions that take them.
"""

from __future__ import annotations

from typing import Any

from parlab.arguments import text
from parlab.arrays import is_array
from parlab.world import Run, Timeline

HIERARCHICAL, GRID = EXCHANGES = ("hierarchical", "grid")  # of ranks told their node: two levels; one, links unmixed

EARLY, LATE = CROSSINGS = ("early", "late")  # with the first hop of a turn inside the node, or with the last


def list_like(name: str, value: Any) -> Any:
    """`value`, a list, tuple, range or array.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, str) or not (hasattr(value, "__len__") or is_array(value)):
        raise ValueError(f"{name}={value!r:.60}: must be a list")
    return value


def texts(name: str, value: Any) -> None:
    """Refuse what is no list of strings.

    Raises:
        ValueError: so it is.
    """
    list_like(name, value)
    for number, item in enumerate(value):
        text(f"{name}[{number}]", item)


def recorded(name: str, value: Any) -> None:
    """Refuse what is neither a run nor its timeline.

    Raises:
        ValueError: so it is.
    """
    if not isinstance(value, Run | Timeline):
        raise ValueError(f"{name}={value!r:.60}: must be a Run or a Timeline")
