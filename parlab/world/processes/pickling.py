"""A program, packed for another process of the same Python: functions and classes that it could not import travel
whole, whatever cell or script they were defined in, with the globals that they use.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import importlib
import io
import linecache
import marshal
import os
import pickle
import sys
import types
from typing import Any


class _Pickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, types.ModuleType):
            return importlib.import_module, (thing.__name__,)
        if isinstance(thing, types.MappingProxyType):
            return _proxy, (dict(thing),)
        if type(thing).__module__ == "dataclasses" and (name := _sentinel(thing)):
            return getattr, (dataclasses, name)
        if isinstance(thing, types.FunctionType) and not _importable(thing):
            names = _globals_of(thing.__code__)
            used = {name: thing.__globals__[name] for name in names if name in thing.__globals__}
            cells = [_contents(cell) for cell in thing.__closure__ or ()]
            state = (used, cells, thing.__defaults__, thing.__kwdefaults__, thing.__dict__)
            key = (thing.__module__, id(thing.__globals__))
            return _function, (marshal.dumps(thing.__code__), key, thing.__qualname__), state, None, None, _fill
        if isinstance(thing, type) and not _importable(thing):
            skip = ("__dict__", "__weakref__", *getattr(thing, "__slots__", ()))
            members = {name: member for name, member in vars(thing).items() if name not in skip}
            slots = {"__slots__": members.pop("__slots__")} if "__slots__" in members else {}
            made = (type(thing), thing.__name__, thing.__bases__, {"__module__": thing.__module__, **slots})
            return _class, made, members, None, None, _fill_class
        return NotImplemented


def _sentinel(thing: Any) -> str | None:
    """The name under which `dataclasses` knows a thing that is only itself."""
    return next((name for name, known in vars(dataclasses).items() if known is thing), None)


def _importable(thing: Any) -> bool:
    """Whether another process finds it where it says that it is."""
    if thing.__module__ == "__main__" or "<locals>" in thing.__qualname__:
        return False
    if isinstance(thing, type):
        return True  # or pickle knows it in another way, as the type of None
    found: Any = sys.modules.get(thing.__module__)
    for name in thing.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is thing


def _globals_of(code: types.CodeType) -> set[str]:
    """The global names that a function, or what is defined in it, uses."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname.endswith(("_GLOBAL", "_NAME"))}
    return names.union(*(_globals_of(const) for const in code.co_consts if isinstance(const, types.CodeType)))


def _contents(cell: Any) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # it is empty
        return []


_worlds: dict[Any, dict[str, Any]] = {}  # the globals of each module whose functions have come here


def _function(code: bytes, key: tuple[str, int], name: str) -> types.FunctionType:
    world = _worlds.setdefault(key, {"__name__": key[0], "__builtins__": builtins})
    made = marshal.loads(code)
    function = types.FunctionType(made, world, None, None, tuple(types.CellType() for _ in made.co_freevars))
    function.__qualname__, function.__module__ = name, key[0]
    return function


def _fill(function: Any, state: Any) -> None:
    used, cells, function.__defaults__, function.__kwdefaults__, attributes = state
    function.__globals__.update(used)
    function.__dict__.update(attributes)
    for cell, contents in zip(function.__closure__ or (), cells, strict=True):
        for content in contents:
            cell.cell_contents = content


def _proxy(members: dict[str, Any]) -> Any:
    return types.MappingProxyType(members)  # whose own name is not where it says


def _class(kind: type, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> type:
    made = kind(name, bases, members)
    if made.__module__ == "__main__":  # so that what is made of it finds the way back
        setattr(sys.modules["__main__"], name, made)
    return made


def _fill_class(made: type, members: dict[str, Any]) -> None:
    for name, member in members.items():
        setattr(made, name, member)


def packed(thing: Any) -> bytes:
    """`thing`, and the text of the cells that its functions come from, for errors that show lines.

    A ValueError, where it holds something that cannot leave its process.
    """
    known = [(name, entry) for name, entry in linecache.cache.items() if len(entry) == 4 and not os.path.exists(name)]
    lines = {name: (entry[0], None, *entry[2:]) for name, entry in known}  # None: not to be compared with a file
    file = io.BytesIO()
    try:
        _Pickler(file, 4).dump((lines, thing))  # 5 would make arrays that are views of something else
    except Exception as error:
        raise ValueError(
            f"the program or its arguments cannot be handed to another process: {error}; what it uses of a notebook "
            "or a script must be functions, arrays, numbers and text, or come from a module"
        ) from error
    return file.getvalue()


def unpacked(data: bytes) -> Any:
    """What `packed` was given, in another process."""
    lines, thing = pickle.loads(data)
    linecache.cache.update(lines)
    return thing
