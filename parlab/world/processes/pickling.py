"""A program on its way to other processes, by cloudpickle: functions and classes that they could not import travel
whole, whatever cell or script they were defined in, with the globals that they use. Results come back by pickle.
"""

from __future__ import annotations

import io
import linecache
import os
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Callable
from typing import Any, ClassVar

import cloudpickle

PROTOCOL = 4  # with 5 an array would come as a view of the bytes that it travelled in


def pack_program(program: Any) -> bytes:
    """`program`, and the text of the cells that its functions come from, for errors that show lines.

    A ValueError, if it holds something that cannot leave its process.
    """
    cells = {name: entry for name, entry in linecache.cache.items() if len(entry) == 4 and not os.path.exists(name)}
    texts = {name: (size, None, *text) for name, (size, _, *text) in cells.items()}  # None: compare it with no file
    file = io.BytesIO()
    try:
        _ProgramPickler(file, PROTOCOL).dump((texts, program))
    except Exception as error:
        raise ValueError(
            f"the program or its arguments cannot be handed to another process: {error}; what it uses of a notebook "
            "or a script must be functions, arrays, numbers and text, or come from a module"
        ) from error
    return file.getvalue()


def _reduced_code(code: types.CodeType) -> Any:
    """Code with the name of its file, by which errors find its lines: cloudpickle has dropped it since 3.1.3."""
    make, parts = cloudpickle.CloudPickler.dispatch_table[types.CodeType](code)
    return _code_of, (make, parts, code.co_filename)


def _code_of(make: Callable[..., types.CodeType], parts: tuple[Any, ...], filename: str) -> types.CodeType:
    return make(*parts).replace(co_filename=filename)


class _ProgramPickler(cloudpickle.CloudPickler):
    dispatch_table: ClassVar[Any] = ChainMap({types.CodeType: _reduced_code}, cloudpickle.CloudPickler.dispatch_table)


def unpack_program(data: bytes) -> Any:
    """The program that `pack_program` was given, in another process."""
    texts, program = pickle.loads(data)
    linecache.cache.update(texts)
    return program


def pack_result(result: Any) -> bytes:
    """A result or an error on its way back. A class of the caller's `__main__` goes by its name: it is known there."""
    file = io.BytesIO()
    _ResultPickler(file, PROTOCOL).dump(result)
    return file.getvalue()


class _ResultPickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, type) and thing.__module__ == "__main__":
            vars(sys.modules["__main__"]).setdefault(thing.__qualname__, thing)  # pickle looks it up before it goes
        return NotImplemented
