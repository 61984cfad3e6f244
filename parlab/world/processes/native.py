"""The engine with a library's own collectives, in the place of ours: `run(..., collectives="native")`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parlab.arrays import is_array
from parlab.world.engines.tasks import CollectiveCall, Group
from parlab.world.errors import Unwind
from parlab.world.processes.engine import ProcessEngine
from parlab.world.processes.mailboxes import ProcessGroup
from parlab.world.processes.transport import NativeTransport


class NativeEngine(ProcessEngine):
    """Runs one program on the processes of `transport`, with the collectives of its library."""

    transport: NativeTransport

    def __init__(self, transport: NativeTransport):
        super().__init__(transport)
        self.native: dict[Group, Any] = {}  # the library's collectives in each group
        self._connect(self.world)

    def subgroup(self, name: str, members: tuple[int, ...], split: CollectiveCall) -> ProcessGroup:
        """See `Engine`."""
        group = super().subgroup(name, members, split)
        self._connect(group)
        return group

    def _connect(self, group: ProcessGroup) -> None:
        """Make the library's collectives for `group` and for its background, now that all members call this."""
        for each in (group, self.background_of(group)):
            self.native[each] = self.transport.connect(each.members, each.tag("collectives"))

    def disconnect(self) -> None:
        """Free the library's collectives, after a run without an error."""
        for collectives in self.native.values():
            collectives.free()

    def run_algorithm(self, comm: Any, group: Group, algorithm: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """See `Engine`. A collective of the library returns its result when this rank's part is over."""
        start = getattr(self.native[group], getattr(algorithm, "__name__", ""), None)
        if start is None or not all(map(_known_to_libraries, arguments)):
            return super().run_algorithm(comm, group, algorithm, arguments)
        with self.mutex:
            handle, result = start(*arguments)
        self._poll(lambda: self.ending or handle.finish_if_over())
        if self.ending:
            raise Unwind
        return result


def _known_to_libraries(argument: Any) -> bool:
    """Whether an argument of a collective is no array, or one that every library of collectives knows."""
    if isinstance(argument, list) and argument:
        argument = argument[0]
    return not is_array(argument) or (isinstance(argument, np.ndarray) and argument.dtype != np.float16)
