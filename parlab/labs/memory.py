"""The memory that an answer's own variables hold: the buffers of all arrays that can be reached from them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

import numpy as np

NOT_ENTERED = (ModuleType, type, CodeType, BuiltinFunctionType, FrameType)  # they lead to the whole process


def bytes_held(*roots: Any, kind: str = "") -> int:
    """Bytes of the arrays that can be reached from `roots`, each buffer once: a view holds the whole of it.

    Args:
        kind: of these kinds of dtype alone, such as "f"; "": all.

    >>> x = np.zeros(10)
    >>> bytes_held({"first": x[:2], "last": [x[8:]]})
    80
    """
    return sum(array.nbytes for array in _owners(roots) if not kind or array.dtype.kind in kind)


def _owners(roots: tuple[Any, ...]) -> Iterator[np.ndarray]:
    """The arrays that own the memory of those that can be reached."""
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        value = waiting.pop()
        while isinstance(value, np.ndarray) and isinstance(value.base, np.ndarray):
            value = value.base
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, FunctionType):
            waiting += value.__closure__ or ()
        elif isinstance(value, GeneratorType):
            waiting += _variables(value.gi_frame)
        elif not isinstance(value, NOT_ENTERED) and not type(value).__module__.startswith("parlab."):
            waiting += gc.get_referents(value)


def _variables(frame: FrameType | None) -> list[Any]:
    """The local variables of a frame, if it is the answer's own and not ours."""
    if frame is None or frame.f_globals.get("__name__", "").startswith("parlab."):
        return []
    return list(frame.f_locals.values())
