"""Copies of the library with one line changed, for the tests that see each usual mistake caught."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import parlab.nn.attention
import parlab.nn.tiles
import parlab.sequence.allgather
import parlab.sequence.attend
import parlab.sequence.double_ring
import parlab.sequence.heads
import parlab.sequence.layouts
import parlab.sequence.ring
import parlab.sequence.ring_schedule
import parlab.sequence.travel
import parlab.sequence.tree
import parlab.sequence.two_levels
import parlab.sequence.ulysses
import parlab.sequence.usp
import parlab.sequence.window

TILES, ATTENTION, SCHEDULE = parlab.nn.tiles, parlab.nn.attention, parlab.sequence.ring_schedule
ATTEND, HEADS, TWO_LEVELS = parlab.sequence.attend, parlab.sequence.heads, parlab.sequence.two_levels
TRAVEL, RING = parlab.sequence.travel, parlab.sequence.ring
DOUBLE, ULYSSES, USP = parlab.sequence.double_ring, parlab.sequence.ulysses, parlab.sequence.usp
ALLGATHER, TREE, WINDOW = parlab.sequence.allgather, parlab.sequence.tree, parlab.sequence.window
MODULES = (  # each imports from earlier ones
    *(TILES, ATTENTION, SCHEDULE, ATTEND, TRAVEL, RING, DOUBLE),
    *(HEADS, TWO_LEVELS, ULYSSES, USP, ALLGATHER, TREE, WINDOW),
)


def copy_of(module: ModuleType, old: str = "", new: str = "") -> ModuleType:
    """A second copy of `module`, with `old` replaced by `new`."""
    source = inspect.getsource(module)
    assert old in source, f"the mutant is stale: {old!r} is no longer there"
    copied = ModuleType(module.__name__)
    exec(compile(source.replace(old, new), module.__file__ or "", "exec"), copied.__dict__)
    return copied


def mutated(module: ModuleType, old: str = "", new: str = "") -> dict[str, Any]:
    """What all modules define, with the mutation of one of them in everything that uses it."""
    names: dict[str, Any] = {}
    for source in MODULES:
        copied = copy_of(source, *((old, new) if source is module else ()))
        own = {name for name, x in vars(copied).items() if getattr(x, "__module__", "") == source.__name__}
        vars(copied).update({name: x for name, x in names.items() if name in vars(copied) and name not in own})
        constants = {"CAUSAL", "STRICT"} if source is ATTENTION else set()
        names |= {name: vars(copied)[name] for name in own | constants}
    return names
