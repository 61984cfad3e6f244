"""A rank program with its arguments, and how an engine carries it out in this process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from parlab import arrays
from parlab.world import values
from parlab.world.comm import Comm
from parlab.world.engines.base import Engine
from parlab.world.engines.process_state import interrupts, keep_freed_memory, one_blas_thread
from parlab.world.engines.tasks import Task
from parlab.world.errors import DeadlockError
from parlab.world.send_buffer import read_flags
from parlab.world.timeline import Timeline


class per_rank:  # noqa: N801 - reads as a function: run(program, 2, per_rank([a, b]))
    """An argument of `run` that gives rank r its own item, copied, so that the rank may change it.

    Args:
        items: one a rank.
    """

    def __init__(self, items: Sequence[Any]):
        if isinstance(items, str | dict | set) or not (hasattr(items, "__iter__") or hasattr(items, "__getitem__")):
            raise ValueError(f"items={items!r:.60}: per_rank takes a list, one item a rank")
        self.items = list(items)


@dataclass
class Outcome:
    """The outcome of a run: the tasks of all ranks with their results, errors and logs, and the deadlock, if any."""

    tasks: list[Task]
    deadlock: DeadlockError | None
    wallclock: Timeline | None = None
    shown: bool = True  # whether this process prints the ranks' prints


def carry_out(engine: Engine, program: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Run `program(comm, *args, **kwargs)` on the ranks of this process; `engine.tasks` then hold the results."""

    def body(task: Task) -> None:
        memo: dict[int, Any] = {}  # so that copies of two arguments share what the arguments share
        own_args = [_argument(arg, task.rank, memo) for arg in args]
        own_kwargs = {name: _argument(arg, task.rank, memo) for name, arg in kwargs.items()}
        task.result = program(Comm(engine, task, engine.world), *own_args, **own_kwargs)
        read_flags(task.flags)

    keep_freed_memory()
    with interrupts(engine.interrupt), one_blas_thread():
        engine.run(body)
    if engine.presses:
        raise KeyboardInterrupt


def _argument(argument: Any, rank: int, memo: dict[int, Any]) -> Any:
    """The argument that `rank` gets for an argument of `run`."""
    own = partial(_own, memo=memo)
    if isinstance(argument, per_rank):
        return each_part(argument.items[rank], values.copied, own)
    return each_part(argument, _read_only, own)


def each_part(argument: Any, of_array: Callable[[Any], Any], of_other: Callable[[Any], Any]) -> Any:
    """`argument` with the results of two functions in the place of its arrays and of its other objects.

    Raises:
        ValueError: it has a `per_rank` inside.
    """
    if type(argument) in (tuple, list) or (isinstance(argument, tuple) and hasattr(argument, "_make")):
        return values.rebuilt(argument, [each_part(item, of_array, of_other) for item in argument])
    if type(argument) is dict:
        return {key: each_part(item, of_array, of_other) for key, item in argument.items()}
    if isinstance(argument, per_rank):
        raise ValueError("per_rank inside a list or dict: wrap the whole argument, one list or dict a rank")
    is_array = arrays.is_array(argument) and not isinstance(argument, np.generic)
    return of_array(argument) if is_array else of_other(argument)


def _own(x: Any, memo: dict[int, Any]) -> Any:
    """A copy of a model, an optimizer or a random generator, as another process would have."""
    hashed: Any = type(x).__hash__
    if hashed not in (None, object.__hash__):  # compared by value, so it never changes
        return x
    try:
        return copy.deepcopy(x, memo)
    except TypeError:  # a module, a lock, ...
        return x


def _read_only(x: arrays.Array) -> arrays.Array:
    """A read-only view; in libraries without such views, a copy."""
    if not isinstance(x, np.ndarray):
        return values.copied(x)
    view = x.view()
    view.flags.writeable = False
    return view
