"""Copies of the library with one line changed, for the tests that see each usual mistake caught."""

from __future__ import annotations

import inspect
from importlib import import_module
from types import ModuleType
from typing import Any

MODULES = [  # below parlab; each imports from earlier ones
    *("world.groups", "nn.tiles", "nn.attention", "sequence.tiles", "sequence.attend", "sequence.homeward"),
    *("sequence.packed_ring", "sequence.ring", "sequence.double_ring", "sequence.heads"),
    *("sequence.two_levels", "sequence.ulysses", "sequence.usp", "sequence.allgather", "sequence.tree"),
    "sequence.window",
]


def copy_of(name: str, old: str = "", new: str = "") -> ModuleType:
    """A second copy of the module of this name, with `old` replaced by `new`."""
    module = import_module(f"parlab.{name}")
    source = inspect.getsource(module)
    assert old in source, f"the mutant is stale: {old!r} is no longer there"
    copied = ModuleType(module.__name__)
    exec(compile(source.replace(old, new), module.__file__ or "", "exec"), copied.__dict__)
    return copied


def mutated(module: str = "", old: str = "", new: str = "") -> dict[str, Any]:
    """What all modules define, with the mutation of one of them in everything that uses it."""
    names: dict[str, Any] = {}
    for source in MODULES:
        copied = copy_of(source, *((old, new) if source == module else ()))
        own = {name for name, x in vars(copied).items() if getattr(x, "__module__", "") == f"parlab.{source}"}
        vars(copied).update({name: x for name, x in names.items() if name in vars(copied) and name not in own})
        constants = {"CAUSAL", "STRICT"} if source == "nn.attention" else set()
        names |= {name: vars(copied)[name] for name in own | constants}
    return names
